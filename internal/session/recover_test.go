package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// lasting is a server that recovers as without configuration.
func lasting(name string) *config.Server {
	s := server(name)
	s.Recovery = config.Defaults().Pool.Recovery.Stdio
	return s
}

// kill ends the newest link of a server, and lets what follows happen.
func (w *world) kill(name string) {
	w.Helper()
	w.link(name).Abort(errors.New("signal: killed"))
	synctest.Wait()
}

// R3, M4: when a server comes back without a call, what clients had subscribed to and
// their log level come back with it, without their doing.
func TestSubscriptionsComeBackWithTheServer(t *testing.T) {
	for _, sharing := range []config.Sharing{config.Shared, config.Session} {
		t.Run(string(sharing), func(t *testing.T) {
			s := lasting("a")
			s.Sharing = sharing
			inWorld(t, usual, []*config.Server{s}, func(w *world) {
				c := w.client("a", "")
				c.do(2, wire.ResourcesSubscribe, `{"uri":"file:///x"}`)
				c.do(3, wire.LoggingSetLevel, `{"level":"debug"}`)
				time.Sleep(time.Minute)
				first := w.link("a")
				w.kill("a")
				second := w.link("a")
				if first == second {
					t.Fatal("the server did not come back")
				}
				second.mu.Lock()
				subs, lvls := second.subs["file:///x"], slices.Clone(second.lvls)
				second.mu.Unlock()
				if !subs || !slices.Equal(lvls, []string{`"debug"`}) {
					t.Errorf("the new server knows of the subscription: %t, of the levels %q", subs, lvls)
				}
				second.say(wire.NewNotification(wire.ResourceUpdated, []byte(`{"uri":"file:///x"}`)))
				synctest.Wait()
				x := c.stream.(*tray)
				x.mu.Lock()
				defer x.mu.Unlock()
				if len(x.pushed) != 1 || !strings.Contains(x.pushed[0], "file:///x") {
					t.Errorf("the client heard %q", x.pushed)
				}
			})
		})
	}
}

// recovering gives a client of a server that was lost and takes a minute to come back.
func (w *world) recovering() *Client {
	c := w.client("a", "")
	c.do(2, wire.ToolsCall, `{"name":"echo"}`)
	w.slow(time.Minute - time.Second)
	time.Sleep(time.Minute)
	w.kill("a")
	return c
}

// R3: a call waits until the server is there again.
func TestACallWaitsForTheServer(t *testing.T) {
	inWorld(t, usual, []*config.Server{lasting("a")}, func(w *world) {
		c := w.recovering()
		if got := c.do(7, wire.ToolsCall, `{"name":"echo"}`); got != call1 {
			t.Errorf("the client got %s", got)
		}
		w.wantSaw(wire.ToolsCall, 1, 1)
	})
}

// R3, H4: a call does not wait longer for the server than it may take.
func TestACallWaitsNotLongerThanItsTimeout(t *testing.T) {
	s := lasting("a")
	s.CallTimeout = 10 * time.Second
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		c := w.recovering()
		begun := time.Now()
		if got := c.do(7, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, `"call_timeout"`) || time.Since(begun) != s.CallTimeout {
			t.Errorf("after %s the client got %s", time.Since(begun), got)
		}
		time.Sleep(2 * time.Minute)
		w.wantSaw(wire.ToolsCall, 1, 0)
	})
}

// R3, M2: a call that its client cancels while it waits for the server never reaches it.
func TestACallThatIsCancelledWhileItWaitsIsNotMade(t *testing.T) {
	inWorld(t, usual, []*config.Server{lasting("a")}, func(w *world) {
		c, x := w.recovering(), newTray()
		ended := make(chan struct{})
		go func() {
			c.Session().Do(c, frame(7, wire.ToolsCall, `{"name":"echo"}`), x)
			close(ended)
		}()
		time.Sleep(time.Second)
		cancel(c, 7)
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("it waits on")
		}
		if got := <-x.done; !got.Empty() {
			t.Errorf("the client got %s", got.AppendTo(nil))
		}
		time.Sleep(2 * time.Minute)
		w.wantSaw(wire.ToolsCall, 1, 0)
	})
}

// R9: while a server recovers, the list of all tools still has its tools.
func TestAListHasTheToolsOfAServerThatRecovers(t *testing.T) {
	inWorld(t, usual, []*config.Server{lasting("a"), server("b")}, func(w *world) {
		c := w.client("", "")
		list := c.do(2, wire.ToolsList, `{}`)
		w.slow(time.Minute - time.Second)
		time.Sleep(time.Minute)
		w.kill("a")
		begun := time.Now()
		if got := c.do(2, wire.ToolsList, `{}`); got != list || time.Since(begun) != 0 {
			t.Errorf("after %s the list is %s, was %s", time.Since(begun), got, list)
		}
	})
}

// R5: a call that may have been executed is sent again, once, where the server's entry
// asks for that and the tool declares that it may be, and never else.
func TestOnlyWhatDeclaresItselfRepeatableIsSentAgain(t *testing.T) {
	for _, x := range []struct {
		retry       config.Retry
		annotations string
		again       bool
	}{
		{config.RetryIdempotent, `{"readOnlyHint":true}`, true},
		{config.RetryIdempotent, `{"idempotentHint":true,"readOnlyHint":false}`, true},
		{config.RetryIdempotent, `{"readOnlyHint":true,"destructiveHint":false}`, true},
		{config.RetryNever, `{"readOnlyHint":true}`, false},
		{config.RetryIdempotent, `{"readOnlyHint":false}`, false},
		{config.RetryIdempotent, `{"readOnlyHint":"true"}`, false},
		{config.RetryIdempotent, `{"destructiveHint":false}`, false},
		{config.RetryIdempotent, `{"readOnlyHint":true,"readOnlyHint":true}`, false},
		{config.RetryIdempotent, `{"readOnlyHint":true,"readonlyhint":false}`, false},
		{config.RetryIdempotent, `{"readOnlyHint":true},"Annotations":{}`, false},
		{config.RetryIdempotent, `null`, false},
	} {
		t.Run(fmt.Sprint(x.retry, x.annotations), func(t *testing.T) {
			s := lasting("a")
			s.Retry = x.retry
			inWorld(t, usual, []*config.Server{s}, func(w *world) {
				w.on = func(l *link, f wire.Frame) bool {
					switch f.Method {
					case wire.ToolsList:
						go l.say(wire.Result(f.ID(), []byte(`{"tools":[{"name":"echo","annotations":`+x.annotations+`}]}`)))
					case wire.ToolsCall:
						l.refuse(f, upstream.ErrInterrupted, true)
					default:
						return false
					}
					return true
				}
				c := w.client("a", "")
				wantFault(t, c.do(7, wire.ToolsCall, `{"name":"echo"}`), fault.Interrupted, fault.SentMaybe)
				w.wantSaw(wire.ToolsCall, map[bool]int{false: 1, true: 2}[x.again])
			})
		})
	}
}

// R5: other requests than calls of tools are not sent again, whatever the tools say,
// and neither is a call that took too long or whose answer was too large.
func TestOnlyCallsOfToolsAreSentAgain(t *testing.T) {
	s := lasting("a")
	s.Retry, s.CallTimeout = config.RetryIdempotent, time.Second
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		w.on = func(l *link, f wire.Frame) bool {
			switch f.Method {
			case wire.ToolsList:
				go l.say(wire.Result(f.ID(), []byte(`{"tools":[{"name":"echo","annotations":{"readOnlyHint":true}}]}`)))
			case wire.PromptsGet:
				l.refuse(f, upstream.ErrInterrupted, true)
			default:
				return false
			}
			return true
		}
		c := w.client("a", "")
		wantFault(t, c.do(7, wire.PromptsGet, `{"name":"echo"}`), fault.Interrupted, fault.SentMaybe)
		w.wantSaw(wire.PromptsGet, 1)
		wantFault(t, c.do(8, wire.ToolsCall, `{"name":"echo","ms":60000}`), fault.CallTimeout, fault.SentMaybe)
		w.wantSaw(wire.ToolsCall, 1)
		w.on = func(l *link, f wire.Frame) bool {
			if f.Method == wire.ToolsCall {
				l.tell(func(h upstream.Handler) { h.Oversize(f.ID(), wire.Response, 1<<30) })
			}
			return f.Method == wire.ToolsCall
		}
		wantFault(t, c.do(9, wire.ToolsCall, `{"name":"echo"}`), fault.TooLarge, fault.SentMaybe)
		w.wantSaw(wire.ToolsCall, 2)
	})
}

// R5: that a second attempt did not reach the server says nothing about the first one.
func TestTheErrorOfASecondAttemptSpeaksForTheFirst(t *testing.T) {
	s := lasting("a")
	s.Retry = config.RetryIdempotent
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		attempts := 0
		w.on = func(l *link, f wire.Frame) bool {
			switch f.Method {
			case wire.ToolsList:
				go l.say(wire.Result(f.ID(), []byte(`{"tools":[{"name":"echo","annotations":{"readOnlyHint":true}}]}`)))
			case wire.ToolsCall:
				attempts++
				l.refuse(f, upstream.ErrInterrupted, attempts == 1)
			default:
				return false
			}
			return true
		}
		c := w.client("a", "")
		wantFault(t, c.do(7, wire.ToolsCall, `{"name":"echo"}`), fault.Interrupted, fault.SentMaybe)
		w.wantSaw(wire.ToolsCall, 2)
	})
}

// N4, R5: a call that the end of its session cuts off may have been executed.
func TestTheEndOfASessionSaysThatItsCallsMayHaveBeenExecuted(t *testing.T) {
	for name, end := range map[string]func(w *world, c *Client){
		"force": func(w *world, c *Client) {
			if err := w.m.End(context.Background(), "local", false, c.Session().ID(), true); err != nil {
				t.Error(err)
			}
		},
		"client":   func(_ *world, c *Client) { c.Delete() },
		"shutdown": func(w *world, _ *Client) { w.m.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
				c := w.client("a", "")
				x := newTray()
				c.Session().Do(c, frame(2, wire.ToolsCall, `{"name":"echo","ms":60000}`), x)
				synctest.Wait()
				end(w, c)
				want := fault.UnknownSession
				if name == "shutdown" {
					want = fault.Draining
				}
				wantFault(t, string((<-x.done).AppendTo(nil)), want, fault.SentMaybe)
			})
		})
	}
}

// N4: who waits for a server that recovers when the session ends learns of that end.
func TestWhoWaitsForARecoveryLearnsOfTheSessionsEnd(t *testing.T) {
	inWorld(t, usual, []*config.Server{lasting("a")}, func(w *world) {
		w.client("a", "s")
		w.slow(50 * time.Second)
		w.kill("a")
		failed := make(chan error, 1)
		go func() {
			_, err := w.initialize("a", "s")
			failed <- err
		}()
		synctest.Wait()
		if err := w.m.End(w.Context(), "local", false, "s", true); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !fault.Is(err, fault.UnknownSession) {
			t.Errorf("the error is %v", err)
		}
	})
}
