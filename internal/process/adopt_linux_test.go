package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// firstMain is the first process of a container: what others left dead there is reaped,
// while nobody's exit status is lost.
func firstMain() {
	fail := func(format string, args ...any) {
		fmt.Printf(format+"\n", args...)
		os.Exit(1)
	}
	if os.Getpid() != 1 {
		fail("the pid is %d", os.Getpid())
	}
	mgr, err := NewManager(Config{})
	if err != nil {
		fail("%v", err)
	}
	p, err := mgr.Start(context.Background(), Spec{Server: "x", Command: "sh", Args: []string{"-c", "setsid sleep 600 & exec sleep 600"}, Env: Environ(nil, false)})
	if err != nil {
		fail("%v", err)
	}
	reaper := p.tree.reaper.Pid
	// An orphan that has nothing to do with us, and what our own reaper leaves.
	if err := exec.Command("sh", "-c", "sleep 0.1 &").Run(); err != nil {
		fail("%v", err)
	}
	if err := syscall.Kill(reaper, syscall.SIGKILL); err != nil {
		fail("%v", err)
	}
	<-p.Gone()
	for begun := time.Now(); time.Since(begun) < 3*adoptedLook; {
		exit, ok := errors.AsType[*exec.ExitError](exec.Command("sh", "-c", "exit 7").Run())
		if !ok || exit.ExitCode() != 7 {
			fail("the status of a child was lost: %v", exit)
		}
	}
	for begun := time.Now(); len(ownChildren()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > 20*time.Second {
			fail("children are left: %v", ownChildren())
		}
	}
	p.Close(context.Background())
	if err := mgr.Close(); err != nil {
		fail("%v", err)
	}
	fmt.Println("clean")
	os.Exit(0)
}

// P1: as the first process of a container we reap the orphans that we are given.
func TestTheFirstProcessReapsOrphans(t *testing.T) {
	t.Parallel()
	if err := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "true").Run(); err != nil {
		t.Skipf("no namespaces here: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--pid", "--fork", "--mount-proc", os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"=first")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "clean") {
		t.Errorf("%v: %s", err, out)
	}
}
