package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/wire"
)

// Case 35, R5: a stream that is cut off without an id cannot be continued. Its call fails
// alone, may have been executed, and is not sent again.
func TestAStreamWithoutIDsIsNotContinued(t *testing.T) {
	for name, pieces := range map[string][]string{
		"before the first event": {": hello\n\n"},
		"between events":         {data(progress)},
		"inside an event":        {data(progress), "id: 1\ndata: " + result("1")[:20]},
		"inside the last line":   {data(progress), "id: 1\ndata: " + result("1")},
	} {
		for _, clean := range []bool{true, false} {
			inBubble(t, fmt.Sprintf("%s, clean %t", name, clean), func(t *testing.T) {
				f := newFake(t)
				f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) {
					stream(w, pieces...)
					if !clean {
						cutOff()
					}
				})
				r := f.start(t)
				r.shake()
				m := r.call("1", wire.ToolsCall)
				last := "failed 1, sent true: " + ErrInterrupted.Error()
				if clean && name == "inside the last line" {
					last = "frame of 1: " + result("1") // It is complete, as JSON can tell.
				}
				if name == "before the first event" {
					r.wants(last)
				} else {
					r.wants("frame of 1: "+progress, last)
				}
				if f.count(wire.ToolsCall) != 1 || f.count("GET") != 1 || !m.Sent() {
					t.Errorf("the server got %q", f.requests())
				}
				r.call("2", wire.ToolsList)
				r.wants("frame of 2: " + result("2"))
			})
		}
	}
}

// A stream that is cut off behind an id is continued there, as often as it takes, and its
// frames still name their call.
func TestAStreamWithIDsIsContinued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) {
			stream(w, "id: e1\ndata:\n\n", "id: e2\n"+data(progress), "id: e3\ndata: {\"js")
			cutOff()
		})
		f.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
			switch r.Header.Get("Last-Event-ID") {
			case "":
				w.WriteHeader(http.StatusMethodNotAllowed)
			case "e2":
				stream(w, "id: e3\n"+data(sampling))
			case "e3":
				w.WriteHeader(http.StatusServiceUnavailable)
				f.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
					stream(w, "id: e4\n"+data(result("1")))
				})
			}
		})
		r := f.start(t)
		r.shake()
		r.call("1", wire.ToolsCall)
		time.Sleep(time.Minute)
		r.wants("frame of 1: "+progress, "frame of 1: "+sampling, "frame of 1: "+result("1"))
		if f.count(wire.ToolsCall) != 1 || f.count("GET in s1 after e2") != 1 || f.count("GET in s1 after e3") != 2 {
			t.Errorf("the server got %q", f.requests())
		}
	})
}

// The server says how long to rest, and then has more patience than without.
func TestAServerMayAskToBePolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) {
			stream(w, "id: e1\nretry: 60000\ndata:\n\n")
		})
		polls := 0
		var last time.Time
		f.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
			if r.Header.Get("Last-Event-ID") == "" {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			if d := time.Since(last); polls > 0 && d < time.Minute || polls > 50 && d > 2*time.Minute {
				t.Errorf("it was polled after %s", d)
			}
			last = time.Now()
			if polls++; polls == 90 {
				stream(w, data(result("1")))
				return
			}
			stream(w, ": not yet\n\n")
		})
		r := f.start(t)
		r.shake()
		r.call("1", wire.ToolsCall)
		time.Sleep(3 * time.Hour)
		r.wants("frame of 1: " + result("1"))
	})
}

// A stream that cannot be continued ends in a bounded time.
func TestContinuingIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		get   func(w http.ResponseWriter, r *http.Request, _ string)
		polls int
		want  string
	}{
		"empty":     {func(w http.ResponseWriter, _ *http.Request, _ string) { stream(w, "") }, maxResumes, ErrInterrupted.Error() + ", and could not be continued in 5 attempts"},
		"broken":    {func(http.ResponseWriter, *http.Request, string) { cutOff() }, maxResumes, ErrInterrupted.Error() + ", and could not be continued in 5 attempts"},
		"503":       {func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(503) }, maxResumes, ErrInterrupted.Error() + ", and could not be continued in 5 attempts"},
		"404":       {func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(404) }, 1, ErrInterrupted.Error() + ", and could not be continued: GET http://server/mcp was answered with 404 Not Found"},
		"no stream": {func(w http.ResponseWriter, _ *http.Request, _ string) { answer(w, "text/html", "") }, 1, ErrInterrupted.Error() + ", and could not be continued: GET http://server/mcp: the answer is no event stream"},
	} {
		inBubble(t, name, func(t *testing.T) {
			f := newFake(t)
			f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) { stream(w, "id: e1\n\n") })
			r := f.start(t)
			r.shake()
			f.handle(http.MethodGet, c.get)
			r.call("1", wire.ToolsCall)
			time.Sleep(2 * time.Minute)
			r.wants("failed 1, sent true: " + c.want)
			// The transport may try a GET again that broke on a kept connection.
			if n := f.count("GET in s1 after e1"); n != c.polls && !(name == "broken" && n == c.polls+1) {
				t.Errorf("there were %d attempts", n)
			}
			r.call("2", wire.ToolsList)
			r.wants("frame of 2: " + result("2"))
		})
	}
}

// A stream that stays open behind its answer is not read for ever.
func TestAStreamEndsSoonBehindItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		left := make(chan time.Duration, 1)
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, r *http.Request, _ string) {
			begun := time.Now()
			stream(w, "id: e1\n"+data(result("1")))
			<-r.Context().Done()
			left <- time.Since(begun)
		})
		r := f.start(t)
		r.shake()
		r.call("1", wire.ToolsCall)
		if d := <-left; d != linger {
			t.Errorf("it was read for %s", d)
		}
		time.Sleep(time.Minute)
		r.wants("frame of 1: " + result("1"))
		if f.count("GET in s1 after") != 0 {
			t.Errorf("the server got %q", f.requests())
		}
	})
}

// The GET stream is opened again when it ends, behind the last event, and at a growing
// distance if it is of no use.
func TestTheGetStreamIsKeptOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var opened atomic.Int32
		f.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
			switch n := opened.Add(1); {
			case n < 4:
				stream(w, fmt.Sprintf("id: e%d\n", n)+data(pinged))
				time.Sleep(time.Minute)
				cutOff()
			case n < 8:
				w.WriteHeader(http.StatusBadGateway)
			}
			stream(w)
		})
		r := f.start(t)
		r.shakeWith("frame " + pinged)
		time.Sleep(3*time.Minute + 10*time.Second)
		r.wants("frame "+pinged, "frame "+pinged)
		got := strings.Join(f.requests(), ", ")
		if want := "GET in s1, GET in s1 after e1, GET in s1 after e2, GET in s1 after e3, GET in s1 after e3"; !strings.Contains(got, want) {
			t.Errorf("the server got %s", got)
		}
		before := opened.Load()
		time.Sleep(time.Hour)
		if n := opened.Load() - before; n < 90 || n > 130 {
			t.Errorf("in an hour it was opened %d times", n)
		}
	})
}

// An id that the server does not want any more is given up, not the stream.
func TestTheGetStreamBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var opened atomic.Int32
		f.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
			n := opened.Add(1)
			if r.Header.Get("Last-Event-ID") != "" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			stream(w, "id: e1\n"+data(pinged))
			if n > 1 {
				<-r.Context().Done()
			}
		})
		r := f.start(t)
		r.shakeWith("frame " + pinged)
		time.Sleep(10 * time.Second)
		r.wants("frame " + pinged)
		if opened.Load() != 3 {
			t.Errorf("the server got %q", f.requests())
		}
	})
}

// R1: a server that has gone is found out by the GET stream, also without a call.
func TestTheGetStreamFindsOutThatTheServerIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
			stream(w, ": \n\n")
			<-r.Context().Done()
		})
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, r *http.Request, _ string) {
			stream(w, "id: e1\n\n")
			<-r.Context().Done()
		})
		r := f.start(t)
		r.shake()
		r.call("1", wire.ToolsCall)
		synctest.Wait()
		begun := time.Now()
		f.net.cut()
		err := r.end()
		if d := time.Since(begun); !errors.Is(err, errRefused) || d > time.Second {
			t.Errorf("Run gives %v after %s", err, d)
		}
	})
}
