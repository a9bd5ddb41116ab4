package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// systemd returns the user's manager of systemd, whose units are in dir. runtimeDir is
// XDG_RUNTIME_DIR, which units call %t.
func systemd(s service, dir, runtimeDir string) *manager {
	const (
		units  = "roundhouse.socket roundhouse.service"
		reload = "systemctl --user daemon-reload"
	)
	answers := func(ctx context.Context) bool {
		return succeeds(ctx, "systemctl", "--user", "show", "--property=Version")
	}
	return &manager{
		files: []serviceFile{
			{filepath.Join(dir, "roundhouse.service"), serviceUnit(s)},
			{filepath.Join(dir, "roundhouse.socket"), socketUnit(s.socket, runtimeDir)},
		},
		installed: func(ctx context.Context, say func(string, ...any)) {
			say("to start it, now and at every login:")
			if !answers(ctx) || !succeeds(ctx, "systemctl", "--user", "daemon-reload") {
				say("  %s", reload)
			}
			say("  systemctl --user enable --now %s", units)
			say("with roundhouse.socket alone it starts when a local program first needs it")
			say("its log: journalctl --user -u roundhouse.service; variables that the configuration names: %s", filepath.Join(filepath.Dir(filepath.Dir(dir)), "roundhouse", "environment"))
		},
		leaving: func(ctx context.Context) {
			if answers(ctx) {
				_ = succeeds(ctx, "systemctl", "--user", "disable", "roundhouse.socket", "roundhouse.service") // they may not be enabled
			}
		},
		removed: func(ctx context.Context, say func(string, ...any)) {
			say("a daemon that runs is not ended; that takes:")
			say("  systemctl --user stop %s", units)
			if !answers(ctx) || !succeeds(ctx, "systemctl", "--user", "daemon-reload") {
				say("  %s", reload)
			}
		},
	}
}

// serviceUnit is the unit of the daemon. Only the daemon is told to end (KillMode), which
// ends its servers in order; a wrong configuration (status 2) is not tried again.
func serviceUnit(s service) []byte {
	command := []string{quoteUnit(s.executable)} // no variable is looked for in it
	for _, a := range s.args {
		command = append(command, quoteUnit(strings.ReplaceAll(a, "$", "$$")))
	}
	return fmt.Appendf(nil, `# %s
[Unit]
Description=Roundhouse: MCP servers, shared by many agent sessions
Requires=roundhouse.socket
After=roundhouse.socket

[Service]
Type=exec
ExecStart=%s
ExecReload=/bin/kill -HUP $MAINPID
Environment=%s
EnvironmentFile=-%%E/roundhouse/environment
Restart=on-failure
RestartPreventExitStatus=2
KillMode=mixed
TimeoutStopSec=%d

[Install]
WantedBy=default.target
Also=roundhouse.socket
`, mark, strings.Join(command, " "), quoteUnit("PATH="+s.path), int(s.stopWithin.Seconds()))
}

// socketUnit is the unit of the socket for local programs.
func socketUnit(socket, runtimeDir string) []byte {
	address := escapeUnit(socket)
	if rest, ok := strings.CutPrefix(socket, filepath.Clean(runtimeDir)+"/"); ok && runtimeDir != "" {
		address = "%t/" + escapeUnit(rest)
	}
	return fmt.Appendf(nil, `# %s
[Unit]
Description=Roundhouse's socket for local programs

[Socket]
ListenStream=%s
SocketMode=0600
DirectoryMode=0700

[Install]
WantedBy=sockets.target
`, mark, address)
}

// escapeUnit writes a value so that no specifier is seen in it.
func escapeUnit(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// quoteUnit writes one word of a list in a unit.
func quoteUnit(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(escapeUnit(s)) + `"`
}
