package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares a text with a file of testdata/service.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "service", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is now:\n%s", path, got)
	}
}

// plain is a usual service, and odd one of which every word needs care.
var (
	plain = service{
		executable: "/usr/local/bin/roundhouse", args: []string{"serve", "--config=/home/me/.mcp.json", "--listen=127.0.0.1:7420"},
		path: "/home/me/bin:/usr/bin:/bin", socket: "/run/user/1000/roundhouse/roundhouse.sock", stopWithin: 45 * time.Second,
	}
	odd = service{
		executable: "/opt/100% pure/roundhouse", args: []string{"serve", `--config=/home/me/$HOME/"a" \b&<c>%h.json`, "--socket=/s/50%.sock"},
		path: `/usr/bin:/a b/$x/%t`, socket: "/s/50%.sock", stopWithin: time.Minute,
	}
)

func TestUnits(t *testing.T) {
	const runtimeDir = "/run/user/1000"
	golden(t, "plain.service", serviceUnit(plain))
	golden(t, "odd.service", serviceUnit(odd))
	golden(t, "plain.socket", socketUnit(plain.socket, runtimeDir))
	golden(t, "odd.socket", socketUnit(odd.socket, runtimeDir))
	for _, dir := range []string{"", "/run/user/100", "relative"} {
		if got := socketUnit(plain.socket, dir); !bytes.Contains(got, []byte("ListenStream="+plain.socket+"\n")) {
			t.Errorf("with the runtime directory %q:\n%s", dir, got)
		}
	}
}

// systemd itself finds nothing wrong with the units, and reads what was meant.
func TestUnitsAreValid(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("there is no systemd-analyze")
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]service{"plain": plain, "odd": odd} {
		dir := t.TempDir()
		s.executable = filepath.Join(dir, "100% $HOME", "roundhouse") // it must exist
		if err := errors.Join(os.Mkdir(filepath.Dir(s.executable), 0o755), os.Symlink(executable, s.executable)); err != nil {
			t.Fatal(err)
		}
		m := systemd(s, dir, "/run/user/1000")
		args := []string{"verify", "--user"}
		for _, f := range m.files {
			if err := os.WriteFile(f.path, f.text, 0o644); err != nil {
				t.Fatal(err)
			}
			args = append(args, f.path)
		}
		cmd := exec.CommandContext(t.Context(), "systemd-analyze", args...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "XDG_RUNTIME_DIR=" + dir}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestLaunchAgent(t *testing.T) {
	golden(t, "plain.plist", launchAgent(plain, "/Users/me/Library/Logs/roundhouse.log"))
	text := launchAgent(odd, "/l")
	golden(t, "odd.plist", text)
	var found []string
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := token.(xml.CharData); ok {
			found = append(found, string(c))
		}
	}
	for _, want := range append(odd.args, odd.executable, odd.path) {
		if !strings.Contains(strings.Join(found, "\x00"), "\x00"+want+"\x00") {
			t.Errorf("%q is not in it", want)
		}
	}
}

// On macOS there is one file, which comes and goes alone.
func TestLaunchd(t *testing.T) {
	home := t.TempDir()
	m := launchd(plain, home, 501)
	var out, log bytes.Buffer
	if err := m.install(context.Background(), false, &out, &log); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(home, "Library", "LaunchAgents", "roundhouse.plist")
	if out.String() != path+"\n" || !strings.Contains(log.String(), "roundhouse:   launchctl bootstrap gui/501 "+path+"\n") {
		t.Errorf("it says %q and %q", out.String(), log.String())
	}
	if there, ours, err := isOurs(path); !there || !ours || err != nil {
		t.Errorf("it wrote %v, its own %v, %v", there, ours, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("it left %v, %v", entries, err)
	}
	out.Reset()
	log.Reset()
	if err := launchd(service{}, home, 501).uninstall(context.Background(), &out, &log); err != nil {
		t.Fatal(err)
	}
	if out.String() != path+"\n" || !strings.Contains(log.String(), "launchctl bootout gui/501/roundhouse\n") {
		t.Errorf("it says %q and %q", out.String(), log.String())
	}
	if there, _, err := isOurs(path); there || err != nil {
		t.Errorf("it is still there: %v", err)
	}
}
