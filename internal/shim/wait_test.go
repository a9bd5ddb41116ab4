package shim_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/socket"
)

// H8, case 5: 25 ms, doubled up to 2 s, with jitter, for as long as it takes.
func TestBackOff(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		time.Sleep(time.Minute)
		f.leave()
		l.close()
		time.Sleep(time.Minute)
		f.mu.Lock()
		dials := f.dials[1:]
		f.mu.Unlock()
		want := 25 * time.Millisecond
		for i := 1; i < len(dials); i++ {
			gap := dials[i].Sub(dials[i-1])
			if gap < want*3/4 || gap > want*5/4 {
				t.Errorf("dial %d came after %s, want about %s", i, gap, want)
			}
			want = min(2*want, 2*time.Second)
		}
		if len(dials) < 30 {
			t.Errorf("there were %d dials in a minute", len(dials))
		}
		f.come()
		f.again()
	})
}

// Case 5: the first dial after a good line is at once, and a daemon that accepts and
// drops is not dialed in a hot loop.
func TestADaemonThatDropsLinesIsNotHammered(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		time.Sleep(10 * time.Second)
		begun := time.Now()
		l.close()
		f.accept().close()
		if took := time.Since(begun); took > 0 {
			t.Errorf("the first dial came after %s", took)
		}
		for time.Since(begun) < time.Minute {
			f.accept().close()
		}
		if n := len(f.dials); n > 60 {
			t.Errorf("%d dials in a minute", n)
		}
	})
}

// H8: a request does not sit out the rest of a pause between dials.
func TestARequestEndsThePause(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.leave()
		l.close()
		time.Sleep(time.Minute)
		f.come()
		synctest.Wait()
		if len(f.lines) == 0 { // the pause is still on
			begun := time.Now()
			f.send(request(1, "tools/call"))
			f.again().want(request(1, "tools/call"))
			if took := time.Since(begun); took > 0 {
				t.Errorf("it took %s", took)
			}
		}
	})
}

// Case 72: a daemon that comes within the wait is waited for, also at first.
func TestADaemonThatIsAbsentForTenSeconds(t *testing.T) {
	runAs(t, &fixture{absent: socket.ErrNobody}, func(t *testing.T, f *fixture) {
		time.Sleep(500 * time.Millisecond)
		f.send(hello)
		time.Sleep(7 * time.Second) // dials are up to 2.5 s apart by now
		f.quiet()
		f.come()
		l := f.accept()
		l.want(hello)
		l.send(welcome)
		f.want(welcome)
		f.send(initialized)
		l.want(initialized)
		f.leave()
		l.close()
		f.send(request(1, "tools/call"))
		time.Sleep(9900 * time.Millisecond)
		f.come()
		f.send(request(2, "tools/call"))
		f.again().want(request(1, "tools/call"), request(2, "tools/call"))
	})
}

// Case 72: while there is none, each request waits its own ten seconds and then gets
// a clear error; the client is answered for ever, and the shim does not end.
func TestADaemonThatStaysAwayIsAnErrorForEachRequest(t *testing.T) {
	runAs(t, &fixture{absent: socket.ErrNobody}, func(t *testing.T, f *fixture) {
		time.Sleep(time.Hour)
		for id := range 3 {
			begun := time.Now()
			f.send(request(id, "tools/call"))
			text := f.wantError(fmt.Sprint(id), "interrupted", "no")
			if took := time.Since(begun); took != 10*time.Second {
				t.Errorf("the error came after %s", took)
			}
			contains(t, text, "no roundhouse daemon could be reached within 10s")
			contains(t, text, "no daemon listens")
		}
		f.send(hello)
		f.wantError("0", "interrupted", "no")
		f.come()
		f.connected() // the client may try again
	})
}

// A dial that hangs does not hold up the errors.
func TestAHangingDialDoesNotStopTheClock(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.mu.Lock()
		f.hang = true
		f.mu.Unlock()
		l.close()
		f.send(request(1, "tools/call"))
		begun := time.Now()
		f.wantError("1", "interrupted", "no")
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("the error came after %s", took)
		}
	})
}

// M2: a request that waits and is cancelled gets no answer and is never sent.
func TestARequestThatWaitsCanBeCancelled(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.leave()
		l.close()
		f.send(request(1, "tools/call"), request(2, "tools/call"), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		synctest.Wait()
		f.come()
		f.again().want(request(2, "tools/call"))
		f.quiet()
	})
}

// Notifications wait for a daemon too, but not without limit.
func TestNotificationsAreKeptBounded(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.leave()
		l.close()
		synctest.Wait()
		note := func(i int) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/x","params":{"n":%d}}`, i)
		}
		f.send(request(1, "tools/call"))
		for i := range 1000 {
			f.send(note(i))
		}
		synctest.Wait()
		f.come()
		l = f.again()
		l.want(request(1, "tools/call"))
		for i := 1000 - 256; i < 1000; i++ {
			l.want(note(i))
		}
	})
}
