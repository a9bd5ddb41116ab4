//go:build interop

package interop

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"
)

// The control: what the other tests ask of roundhouse passes against the official
// everything server's own Streamable HTTP. If this fails, the steps are wrong.
func TestControlWithoutRoundhouse(t *testing.T) {
	s := nodeServer(t, "everything", "streamableHttp")
	address := freeAddress(t)
	output := new(tail)
	cmd := exec.Command(s.Command, s.Args...)
	cmd.Env = append(os.Environ(), "PORT="+address[strings.LastIndexByte(address, ':')+1:])
	cmd.Stdout, cmd.Stderr = output, output
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	until(t, "the everything server listens", func() bool { return strings.Contains(output.String(), "listening on port") })

	var group errgroup.Group
	for i, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", legacy, ""} {
		c := connect(t, "http://"+address+"/mcp", version, mcp.ClientOptions{})
		group.Go(func() error { return useEverything(t.Context(), c, i) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}
