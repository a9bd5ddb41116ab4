package process

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// allowed are the variables that a server gets from our environment (P8), and
// allowedPrefixes how further ones begin. Names are compared in upper case, since
// proxy variables are written in either.
var (
	allowed = []string{
		"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "FTP_PROXY",
		"NODE_EXTRA_CA_CERTS",
	}
	allowedPrefixes = []string{"LC_", "XDG_", "SSL_CERT_"}

	// allowedWindows is what programs need to start there at all.
	allowedWindows = []string{
		"ALLUSERSPROFILE", "APPDATA", "COMMONPROGRAMFILES", "COMMONPROGRAMFILES(X86)", "COMPUTERNAME",
		"COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "NUMBER_OF_PROCESSORS", "OS", "PATHEXT",
		"PROCESSOR_ARCHITECTURE", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432",
		"PSMODULEPATH", "PUBLIC", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERDOMAIN", "USERNAME",
		"USERPROFILE", "WINDIR",
	}
)

// Environ returns the environment of a server (P8): the allow-list of our own
// environment, or all of it when inherit is true, with extra merged over it. It is
// sorted. On Windows, names are compared without case.
func Environ(extra map[string]string, inherit bool) []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if inherit || passes(name, runtime.GOOS) {
			env = append(env, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		env = append(env, name+"="+extra[name])
	}
	return mergeEnv(env)
}

func passes(name, goos string) bool {
	name = strings.ToUpper(name)
	if slices.Contains(allowed, name) || goos == "windows" && slices.Contains(allowedWindows, name) {
		return true
	}
	return slices.ContainsFunc(allowedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// mergeEnv sorts env by name, keeps the last of equal names, and drops our own
// variables and entries without a name.
func mergeEnv(env []string) []string {
	values := map[string]string{}
	for _, v := range env {
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" || name == markerVar || name == reaperVar {
			continue
		}
		values[fold(name)] = v
	}
	out := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		out = append(out, values[name])
	}
	return out
}

// fold returns the form under which two names of variables are the same.
func fold(name string) string {
	if runtime.GOOS == "windows" {
		return strings.ToUpper(name)
	}
	return name
}

// lookupEnv returns the value of a variable in env; the last one counts.
func lookupEnv(env []string, name string) string {
	for _, v := range slices.Backward(env) {
		if n, value, ok := strings.Cut(v, "="); ok && fold(n) == fold(name) {
			return value
		}
	}
	return ""
}

// LookPath finds a command as the server will see it: in the PATH of its own
// environment, or relative to its directory when it is a path. Entries of PATH that are empty
// or relative are not searched, since they depend on where we run.
func LookPath(command, dir string, env []string) (string, error) {
	if filepath.Base(command) != command {
		path := command
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		found, err := executable(path, env)
		if err != nil {
			return "", fmt.Errorf("command %q: %w", command, err)
		}
		return found, nil
	}
	path := lookupEnv(env, "PATH")
	denied := ""
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			continue
		}
		found, err := executable(filepath.Join(d, command), env)
		if err == nil {
			return found, nil
		}
		if denied == "" && !os.IsNotExist(err) {
			denied = fmt.Sprintf(" (%v)", err)
		}
	}
	return "", fmt.Errorf("command %q was not found in PATH %q%s; write its full path, or set PATH in the server's env: %w",
		command, path, denied, fs.ErrNotExist)
}
