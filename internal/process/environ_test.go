package process

import (
	"runtime"
	"slices"
	"strings"
	"testing"
)

// P8, case 13: the allow-list passes and secrets do not; extra is merged over it.
func TestEnviron(t *testing.T) {
	for name, value := range map[string]string{
		"OPENAI_API_KEY": "sk", "LC_TIME": "C", "XDG_CACHE_HOME": "/c", "https_proxy": "http://p", "HTTP_PROXY": "http://q",
		"SSL_CERT_FILE": "/f", "NODE_EXTRA_CA_CERTS": "/ca", "HOME": "/home/me", "LANG": "C", "AWS_SECRET_ACCESS_KEY": "s",
		"LD_PRELOAD_X": "l", "ROUNDHOUSE_TOKEN": "t", markerVar: "outer", reaperVar: "outer",
	} {
		t.Setenv(name, value)
	}
	env := Environ(map[string]string{"HOME": "/other", "X": "1", "EMPTY": ""}, false)
	for _, want := range []string{"LC_TIME=C", "XDG_CACHE_HOME=/c", "https_proxy=http://p", "HTTP_PROXY=http://q", "SSL_CERT_FILE=/f",
		"NODE_EXTRA_CA_CERTS=/ca", "HOME=/other", "LANG=C", "X=1", "EMPTY="} {
		if !slices.Contains(env, want) {
			t.Errorf("environment lacks %s", want)
		}
	}
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD_X", "ROUNDHOUSE_TOKEN", markerVar, reaperVar:
			t.Errorf("environment has %s", name)
		}
	}
	if !slices.Contains(env, "PATH="+lookupEnv(env, "PATH")) || !slices.IsSorted(env) {
		t.Errorf("environment %q", env)
	}

	all := Environ(map[string]string{"OPENAI_API_KEY": "configured"}, true)
	if lookupEnv(all, "OPENAI_API_KEY") != "configured" || lookupEnv(all, "AWS_SECRET_ACCESS_KEY") != "s" {
		t.Error("inherit does not pass all, with extra over it")
	}
	if lookupEnv(all, markerVar) != "" || lookupEnv(all, reaperVar) != "" {
		t.Error("inherit passes our own variables")
	}
}

// Case 13: what Windows programs need passes there, and only there.
func TestWindowsVariables(t *testing.T) {
	for _, name := range []string{"PATHEXT", "ComSpec", "windir", "SystemRoot", "TEMP"} {
		if !passes(name, "windows") || passes(name, "linux") {
			t.Errorf("%s: windows %v, linux %v", name, passes(name, "windows"), passes(name, "linux"))
		}
	}
}

func TestMergeEnvKeepsTheLast(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("names are compared without case there")
	}
	got := mergeEnv([]string{"A=1", "B=2", "noise", "=C", "A=3", "a=4"})
	if want := []string{"A=3", "B=2", "a=4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
