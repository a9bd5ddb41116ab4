//go:build unix

package badserver

import (
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// grandchild starts one and kills it when the test ends.
func (p *peer) grandchild(how string) int {
	p.t.Helper()
	pid, err := strconv.Atoi(p.tool("spawn", fmt.Sprintf(`{"how":%q}`, how)))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	return pid
}

func TestGrandchildrenOutliveTheServer(t *testing.T) {
	for _, how := range spawnWays {
		t.Run(how, func(t *testing.T) {
			p := ready(t)
			pid := p.grandchild(how)
			group, err := syscall.Getpgid(pid)
			if err != nil {
				t.Fatal(err)
			}
			server, err := syscall.Getpgid(p.cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			if stays := how != "setsid"; stays != (group == server) {
				t.Errorf("group %d, the server's is %d", group, server)
			}
			if how == "ignore_term" {
				if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			_ = p.stdin.Close()
			if how == "hold_stdout" {
				p.waited()
				select {
				case line := <-p.lines:
					t.Errorf("stdout ended or brought %q", line)
				case <-time.After(100 * time.Millisecond):
				}
			} else {
				p.ended()
			}
			if err := syscall.Kill(pid, 0); err != nil {
				t.Errorf("the grandchild is gone: %v", err)
			}
		})
	}
}

func TestIgnoredTermination(t *testing.T) {
	for _, c := range []struct {
		switches []string
		survives bool
	}{{nil, false}, {[]string{"-ignore-term"}, true}} {
		p := ready(t, c.switches...)
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if p.lives() != c.survives {
			t.Errorf("%v: survives: %v", c.switches, !c.survives)
		}
	}
}

func TestStoppedServerAnswersNothingUntilItIsContinued(t *testing.T) {
	p := ready(t)
	id := p.startTool("stop", `{}`)
	if !p.lives() || len(p.lines) > 0 {
		t.Fatal("did not stop")
	}
	done := make(chan struct{})
	var continuing sync.WaitGroup
	continuing.Go(func() {
		// Again and again: the first may come before the server has stopped.
		for {
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	defer continuing.Wait()
	defer close(done)
	p.answer(id)
}

func TestGrandchildAtStartIsNamedOnStderr(t *testing.T) {
	p := ready(t, "-grandchild", "double_fork")
	_ = p.stdin.Close()
	p.ended()
	var pid int
	if _, err := fmt.Sscanf(p.stderr.String(), "badserver: started grandchild %d\n", &pid); err != nil {
		t.Fatalf("%v in %q", err, p.stderr.String())
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the grandchild is gone: %v", err)
	}
}
