package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// What certainly did not reach the server is sent once more (R5, case 4).

// refuse fails one call, as a remote server's link does.
func (l *link) refuse(f wire.Frame, err error, sent bool) {
	l.tell(func(h upstream.Handler) { h.Failed(f.ID(), err, sent) })
}

// settling is how long a link whose session was lost still lives.
const settling = 100 * time.Millisecond

// forget fails one call because the server has forgotten the session, and ends the
// link a moment later, as a link over Streamable HTTP does.
func (l *link) forget(f wire.Frame) {
	l.refuse(f, upstream.ErrSessionLost, false)
	time.AfterFunc(settling, func() { l.Abort(upstream.ErrSessionLost) })
}

// saw returns how often each link got a method, in the order of their starts.
func (w *world) saw(method string) (counts []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.links {
		l.mu.Lock()
		n := 0
		for _, m := range l.seen {
			if m == method {
				n++
			}
		}
		l.mu.Unlock()
		counts = append(counts, n)
	}
	return counts
}

func (w *world) wantSaw(method string, want ...int) {
	w.Helper()
	synctest.Wait()
	if got := w.saw(method); !slices.Equal(got, want) {
		w.Errorf("the links got %s %v times, want %v", method, got, want)
	}
}

// onFirstLink takes frames of a method that the first link gets.
func (w *world) onFirstLink(method string, do func(l *link, f wire.Frame)) {
	w.on = func(l *link, f wire.Frame) bool {
		w.mu.Lock()
		first := w.links[0] == l
		w.mu.Unlock()
		if !first || f.Method != method {
			return false
		}
		do(l, f)
		return true
	}
}

func wantFault(t *testing.T, answer string, reason fault.Reason, sent fault.Sent) {
	t.Helper()
	if !strings.Contains(answer, `"reason":"`+string(reason)+`"`) || !strings.Contains(answer, `"sent":"`+string(sent)+`"`) {
		t.Errorf("got %s, want the error %s, sent: %s", answer, reason, sent)
	}
}

const call1 = `{"jsonrpc":"2.0","id":7,"result":{}}`

// Case 4, R5: a call of a session that the server has forgotten is sent once more, on a
// new connection, also while the old link still settles; the client sees the answer.
func TestACallOfAForgottenSessionGoesOnElsewhere(t *testing.T) {
	for _, method := range []string{wire.ToolsCall, wire.ResourcesSubscribe, wire.LoggingSetLevel, "x/unknown"} {
		t.Run(method, func(t *testing.T) {
			inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
				w.onFirstLink(method, (*link).forget)
				c := w.client("a", "")
				if got := c.do(7, method, `{"name":"echo","uri":"u","level":"info"}`); got != call1 {
					t.Errorf("the client got %s", got)
				}
				w.wantSaw(wire.MethodInitialize, 1, 1)
				w.wantSaw(method, 1, 1)
			})
		})
	}
}

// Case 4: however many share the connection, and whatever else they send meanwhile, one
// new one takes its place, and every call is made once.
func TestAForgottenSessionIsOneNewConnectionForAll(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		var held atomic.Int32
		w.onFirstLink(wire.ToolsCall, func(l *link, f wire.Frame) {
			if held.Add(1) <= 10 {
				go func() {
					time.Sleep(time.Millisecond)
					l.forget(f)
				}()
				return
			}
			t.Error("a call was sent on a link that is about to end")
		})
		done := make(chan string)
		for i := range 20 {
			c := w.client("a", "")
			go func() {
				if i >= 10 {
					time.Sleep(settling / 2) // while the link settles
				}
				done <- c.do(7, wire.ToolsCall, `{"name":"echo"}`)
			}()
		}
		for range 20 {
			if got := <-done; got != call1 {
				t.Errorf("a client got %s", got)
			}
		}
		w.wantSaw(wire.MethodInitialize, 1, 1)
		w.wantSaw(wire.ToolsCall, 10, 20)
	})
}

// R5: a call that one server after the other does not take is told of; it is sent
// twice, not three times.
func TestASecondFailureIsTold(t *testing.T) {
	for name, refuse := range map[string]func(*link, wire.Frame){
		"on a new connection": (*link).forget,
		"on the same one":     func(l *link, f wire.Frame) { l.refuse(f, errors.New("connection refused"), false) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
				w.on = func(l *link, f wire.Frame) bool {
					if f.Method == wire.ToolsCall {
						refuse(l, f)
					}
					return f.Method == wire.ToolsCall
				}
				c := w.client("a", "")
				wantFault(t, c.do(7, wire.ToolsCall, `{"name":"echo"}`), fault.Interrupted, fault.SentNo)
				time.Sleep(time.Second)
				synctest.Wait()
				total := 0
				for _, n := range w.saw(wire.ToolsCall) {
					total += n
				}
				if total != 2 {
					t.Errorf("the call was sent %d times", total)
				}
			})
		})
	}
}

// R5, case 35: a call that may have been executed is not sent again, nor one for which
// the server wants a login, which it would want again (case 69).
func TestWhatMayHaveBeenExecutedIsNotSentAgain(t *testing.T) {
	for _, x := range []struct {
		err    error
		sent   bool
		reason fault.Reason
		says   fault.Sent
	}{
		{&upstream.StatusError{Method: "POST", URL: "http://x", Status: 502}, true, fault.Interrupted, fault.SentMaybe},
		{upstream.ErrInterrupted, true, fault.Interrupted, fault.SentMaybe},
		{&upstream.AuthError{Status: &upstream.StatusError{Status: 401}}, false, fault.NeedsLogin, fault.SentNo},
		{&upstream.AuthError{Status: &upstream.StatusError{Status: 403}}, true, fault.NeedsLogin, fault.SentMaybe},
	} {
		inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
			w.onFirstLink(wire.ToolsCall, func(l *link, f wire.Frame) { l.refuse(f, x.err, x.sent) })
			got := w.client("a", "").do(7, wire.ToolsCall, `{"name":"echo"}`)
			wantFault(t, got, x.reason, x.says)
			if !strings.Contains(got, `\"a\"`) || !strings.Contains(got, `"server":"a"`) {
				t.Errorf("%s does not name the server", got)
			}
			w.wantSaw(wire.ToolsCall, 1)
		})
	}
}

// M2: a call that its client cancels before it is sent once more is not, and no answer
// follows.
func TestACallThatIsCancelledInBetweenIsNotSentAgain(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		w.onFirstLink(wire.ToolsCall, (*link).forget)
		c, x := w.client("a", ""), newTray()
		c.Session().Do(c, frame(7, wire.ToolsCall, `{"name":"echo"}`), x)
		time.Sleep(settling / 2)
		cancel(c, 7)
		if got := <-x.done; !got.Empty() {
			t.Errorf("the client got %s", got.AppendTo(nil))
		}
		time.Sleep(time.Second)
		if len(x.done) != 0 {
			t.Error("an answer followed")
		}
		for _, n := range w.saw(wire.ToolsCall)[1:] {
			if n != 0 {
				t.Error("the call was sent again")
			}
		}
	})
}

func cancel(c *Client, id int) {
	f, err := wire.Parse(wire.NewNotification(wire.Cancelled, fmt.Appendf(nil, `{"requestId":%d}`, id)))
	if err != nil {
		panic(err)
	}
	c.Session().Do(c, f, nil)
}

// M2: the client's cancellation follows the call to where it was sent again, also when
// the first attempt had failed before its sender could note it.
func TestACancellationFollowsTheSecondAttempt(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		first := true
		w.on = func(l *link, f wire.Frame) bool {
			if f.Method != wire.ToolsCall || !first {
				return false
			}
			first = false
			l.refuse(f, errors.New("connection refused"), false)
			time.Sleep(time.Millisecond) // the second attempt is on its way before the first returns
			return true
		}
		c, x := w.client("a", ""), newTray()
		c.Session().Do(c, frame(7, wire.ToolsCall, `{"name":"echo","ms":5000}`), x)
		time.Sleep(time.Second)
		cancel(c, 7)
		if got := <-x.done; !got.Empty() {
			t.Errorf("the client got %s", got.AppendTo(nil))
		}
		w.wantSaw(wire.Cancelled, 1)
		time.Sleep(10 * time.Second)
		if len(x.done) != 0 {
			t.Error("an answer followed")
		}
	})
}

// M2, W2: a cancellation that comes while its request is being sent reaches the server,
// once, and in the client's words.
func TestACancellationInTheMomentOfSendingArrivesAsItWasSent(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		var c *Client
		arrived := ""
		w.on = func(_ *link, f wire.Frame) bool {
			switch f.Method {
			case wire.ToolsCall:
				c.Session().Do(c, frameOf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"x":[1.0],"requestId":7,"reason":"\u0075"}}`), nil)
			case wire.Cancelled:
				arrived = string(f.Raw)
			}
			return false
		}
		c = w.client("a", "")
		x := newTray()
		c.Session().Do(c, frame(7, wire.ToolsCall, `{"name":"echo","ms":50}`), x)
		time.Sleep(time.Second)
		if got := <-x.done; !got.Empty() || len(x.done) != 0 {
			t.Errorf("the client got %s, and %d more", got.AppendTo(nil), len(x.done))
		}
		want := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"x":[1.0],"requestId":` + w.link("a").lastID + `,"reason":"\u0075"}}`
		if arrived != want {
			t.Errorf("the server got %s, want %s", arrived, want)
		}
		w.wantSaw(wire.Cancelled, 1)
	})
}

// N4: a session that ends before its call is sent once more takes it along.
func TestASessionThatEndsInBetweenTakesItsCallAlong(t *testing.T) {
	for name, end := range map[string]func(w *world, c *Client){
		"delete": func(_ *world, c *Client) { c.Delete() },
		"drain": func(w *world, _ *Client) {
			w.m.Drain()
			ctx, stop := context.WithCancel(context.Background())
			stop()
			w.m.Shutdown(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
				w.onFirstLink(wire.ToolsCall, (*link).forget)
				c, x := w.client("a", ""), newTray()
				c.Session().Do(c, frame(7, wire.ToolsCall, `{"name":"echo"}`), x)
				time.Sleep(settling / 2)
				end(w, c)
				if got := string((<-x.done).AppendTo(nil)); !strings.Contains(got, `"error"`) {
					t.Errorf("the client got %s", got)
				}
				time.Sleep(time.Second)
				if len(x.done) != 0 {
					t.Error("a second answer followed")
				}
				for _, n := range w.saw(wire.ToolsCall)[1:] {
					if n != 0 {
						t.Error("the call was sent again")
					}
				}
			})
		})
	}
}

// H4: the second attempt has callTimeout for itself, and what is left of the first one's
// ends nothing.
func TestTheSecondAttemptHasItsOwnTimeout(t *testing.T) {
	s := server("a")
	s.CallTimeout = time.Second
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		w.onFirstLink(wire.ToolsCall, func(l *link, f wire.Frame) {
			time.AfterFunc(800*time.Millisecond, func() { l.forget(f) })
		})
		c := w.client("a", "")
		begun := time.Now()
		if got := c.do(7, wire.ToolsCall, `{"name":"echo","ms":900}`); got != call1 {
			t.Errorf("the client got %s", got)
		}
		if took := time.Since(begun); took != 1700*time.Millisecond+settling {
			t.Errorf("it took %s", took)
		}
		begun = time.Now()
		wantFault(t, c.do(8, wire.ToolsCall, `{"name":"echo","ms":9000}`), fault.CallTimeout, fault.SentMaybe)
		if took := time.Since(begun); took != time.Second {
			t.Errorf("the timeout came after %s", took)
		}
	})
}

// M4: two who wait for one subscription both get it from the new connection.
func TestASubscriptionGoesOnElsewhereForAllWhoWait(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		w.onFirstLink(wire.ResourcesSubscribe, func(l *link, f wire.Frame) {
			time.AfterFunc(time.Millisecond, func() { l.forget(f) })
		})
		a, b := w.client("a", ""), w.client("a", "")
		done := make(chan string)
		for _, c := range []*Client{a, b} {
			go func() { done <- c.do(7, wire.ResourcesSubscribe, `{"uri":"u"}`) }()
		}
		for range 2 {
			if got := <-done; got != call1 {
				t.Errorf("a client got %s", got)
			}
		}
		w.wantSaw(wire.ResourcesSubscribe, 1, 1)
	})
}

// Case 4: a list that has to be asked for is asked for once more, too.
func TestAListOfAForgottenSessionIsReadElsewhere(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		lists := 0
		w.onFirstLink(wire.ToolsList, func(l *link, f wire.Frame) {
			if lists++; lists == 1 { // at the start: the list is missing then, and asked for again
				go l.say(wire.ErrorReply(f.ID(), wire.ErrorObject(-1, "not now")))
				return
			}
			l.forget(f)
		})
		if got := w.client("a", "").do(7, wire.ToolsList, `{}`); !strings.Contains(got, `{"name":"echo"}`) {
			t.Errorf("the client got %s", got)
		}
		w.wantSaw(wire.ToolsList, 2, 1)
	})
}
