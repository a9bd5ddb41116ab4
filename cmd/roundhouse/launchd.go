package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"path/filepath"
	"strings"
)

// launchLabel is the name of the service for launchd.
const launchLabel = "roundhouse"

// launchd returns the user's manager on macOS.
func launchd(s service, home string, uid int) *manager {
	path := filepath.Join(home, "Library", "LaunchAgents", launchLabel+".plist")
	log := filepath.Join(home, "Library", "Logs", "roundhouse.log")
	return &manager{
		files: []serviceFile{{path, launchAgent(s, log)}},
		installed: func(_ context.Context, say func(string, ...any)) {
			say("to start it, now and at every login:")
			say("  launchctl bootout gui/%d/%s  (if it runs already)", uid, launchLabel)
			say("  launchctl bootstrap gui/%d %s", uid, path)
			say("its log: %s", log)
		},
		leaving: func(context.Context) {},
		removed: func(_ context.Context, say func(string, ...any)) {
			say("a daemon that runs is not ended; that takes:")
			say("  launchctl bootout gui/%d/%s", uid, launchLabel)
		},
	}
}

// launchAgent is the property list of the service.
func launchAgent(s service, log string) []byte {
	var args []string
	for _, a := range append([]string{s.executable}, s.args...) {
		args = append(args, "\t\t<string>"+escapeXML(a)+"</string>\n")
	}
	return fmt.Appendf(nil, `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- %s -->
<plist version="1.0">
<dict>
	<key>Label</key>
	<string>%s</string>
	<key>ProgramArguments</key>
	<array>
%s	</array>
	<key>EnvironmentVariables</key>
	<dict>
		<key>PATH</key>
		<string>%s</string>
	</dict>
	<key>RunAtLoad</key>
	<true/>
	<key>KeepAlive</key>
	<dict>
		<key>SuccessfulExit</key>
		<false/>
	</dict>
	<key>ExitTimeOut</key>
	<integer>%d</integer>
	<key>StandardErrorPath</key>
	<string>%s</string>
</dict>
</plist>
`, mark, launchLabel, strings.Join(args, ""), escapeXML(s.path), int(s.stopWithin.Seconds()), escapeXML(log))
}

func escapeXML(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a Buffer takes everything
	return b.String()
}
