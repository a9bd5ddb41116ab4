package daemon_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"roundhouse/internal/store"
)

// C3, C5, A.16 row 44: while the disk takes no more, calls under train fail with a native
// error, and those under observe go through; when it does again, so does recording, and
// what was missed is known.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	upstream := engine(t, 3, func() time.Duration { return 10 * time.Millisecond })
	d := n.serve(recording(upstream.URL))
	room := func(bytes uint64) {
		limit := &unix.Rlimit{Cur: bytes, Max: math.MaxUint64}
		if err := unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_FSIZE, limit, nil); err != nil {
			t.Skipf("the size of the daemon's files cannot be limited: %v", err)
		}
	}
	ask := func(session, policy string) answer {
		return d.do("POST", "/sessions/"+session+"/v1/chat/completions", streamBody, "X-Roundhouse-Record", policy)
	}
	if a := ask("before", "train"); a.err != nil || !strings.HasSuffix(string(a.body), doneChunk) {
		t.Fatalf("got %s, %v", a.body, a.err)
	}
	room(1)
	if a := ask("failed", "train"); strings.Contains(string(a.body), "[DONE]") || !strings.Contains(string(a.body), `"error"`) {
		t.Errorf("on a full disk a call under train got %d %s, %v", a.status, a.body, a.err)
	}
	if a := ask("observed", "observe"); a.err != nil || !strings.HasSuffix(string(a.body), doneChunk) {
		t.Errorf("on a full disk a call under observe got %s, %v", a.body, a.err)
	}
	room(math.MaxUint64)
	for _, session := range []string{"after", "failed"} {
		if a := ask(session, "train"); a.err != nil || !strings.HasSuffix(string(a.body), doneChunk) {
			t.Errorf("when there was room again a call got %s, %v", a.body, a.err)
		}
	}
	d.signal(unix.SIGTERM)
	d.wantExit(0)
	st, err := store.Open(t.Context(), store.Config{Path: n.path("state/roundhouse.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	complete := map[string]int{}
	for c, err := range st.Calls(t.Context(), store.CallFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Result.Outcome == store.Complete {
			complete[c.Session.ID]++
		}
	}
	if complete["before"] != 1 || complete["after"] != 1 || complete["failed"] != 1 || complete["observed"] != 0 {
		t.Errorf("stored are %v", complete)
	}
	for _, session := range []string{"failed", "observed"} {
		if s, err := st.Session(t.Context(), "local", session); err != nil || s.Incomplete == "" {
			t.Errorf("%s: nothing says that something is missing: %+v, %v", session, s, err)
		}
	}
}
