package upstream

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/wire"
)

const (
	progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}`
	sampling = `{"jsonrpc":"2.0","id":"x","method":"sampling/createMessage","params":{}}`
	pinged   = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
)

// Everything after initialize carries the session and the version, and nothing overtakes
// notifications/initialized; the session is ended by Close.
func TestTheHandshakeComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.Initialized, func(w http.ResponseWriter, _ *http.Request, _ string) {
			time.Sleep(time.Second)
			w.WriteHeader(http.StatusAccepted)
		})
		r := f.start(t, func(c *HTTPConfig) {
			c.Header = http.Header{"authorization": {"Bearer secret"}, "Mcp-Session-Id": {"mine"}, "Accept": {"*/*"}, "X-Team": {"a", "b"}, "Idempotency-Key": {"x"}}
		})
		r.call("0", wire.MethodInitialize)
		synctest.Wait()
		r.notify(wire.Initialized)
		r.call("1", wire.ToolsList)
		synctest.Wait()
		if got, want := f.requests(), []string{"initialize", "notifications/initialized in s1"}; !slices.Equal(got, want) {
			t.Errorf("before the server took initialized: %q", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for name, want := range map[string]string{
			"Mcp-Session-Id": "s1", "Mcp-Protocol-Version": "2025-06-18", "Authorization": "Bearer secret", "X-Team": "a", "Idempotency-Key": "",
		} {
			if got := f.header(name); got != want {
				t.Errorf("%s is %q", name, got)
			}
		}
		got := f.requests()
		if len(got) != 4 || !slices.Contains(got, "tools/list in s1") || !slices.Contains(got, "GET in s1") {
			t.Errorf("in all: %q", got)
		}
		for i, h := range f.head {
			accept, kind := "application/json, text/event-stream", "application/json"
			if strings.HasPrefix(f.log[i], "GET") {
				accept, kind = "text/event-stream", ""
			}
			if h.Get("Accept") != accept || h.Get("Content-Type") != kind {
				t.Errorf("%s: %v", f.log[i], h)
			}
		}
		r.Abort(errTest)
		if err := r.end(); err != errTest {
			t.Errorf("Run gives %v", err)
		}
		r.Close(t.Context())
		r.Close(t.Context())
		if got := f.count("DELETE in s1"); got != 1 {
			t.Errorf("the session was ended %d times", got)
		}
		if err := r.Send(t.Context(), NewMessage([]byte(pinged))); err != ErrClosed || r.Post(NewMessage([]byte(pinged))) {
			t.Errorf("Send after the end gives %v", err)
		}
	})
}

// Who asks is told whether the server has taken notifications/initialized.
func TestThatInitializedWasRefusedIsToldToWhoAsks(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		want   int // the status, or 0 for no error
	}{
		{"taken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }, 0},
		{"refused", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Unsupported protocol version", http.StatusBadRequest)
		}, 400},
		{"silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.handle(wire.Initialized, func(w http.ResponseWriter, r *http.Request, _ string) {
					time.Sleep(time.Second)
					c.answer(w, r)
				})
				r := f.start(t)
				r.call("0", wire.MethodInitialize)
				synctest.Wait()
				r.notify(wire.Initialized)
				begun := time.Now()
				err := r.link.(*HTTP).Taken(t.Context())
				status, ok := errors.AsType[*StatusError](err)
				if ok != (c.want != 0) || ok && status.Status != c.want || !ok && err != nil || time.Since(begun) > initializedWait {
					t.Errorf("after %v: %v", time.Since(begun), err)
				}
			})
		})
	}
}

// A server that never takes notifications/initialized holds up the rest for a moment only.
func TestTheWaitForInitializedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.Initialized, func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() })
		r := f.start(t)
		r.call("0", wire.MethodInitialize)
		synctest.Wait()
		r.notify(wire.Initialized)
		r.call("1", wire.ToolsList)
		time.Sleep(initializedWait)
		synctest.Wait()
		if f.count(wire.ToolsList) != 1 {
			t.Errorf("got %q", f.requests())
		}
	})
}

// Cases 21, 22, C-20 to C-23: everything that is legal is an answer, and what is none
// fails that call alone.
func TestAnswers(t *testing.T) {
	ok := "frame of 1: " + result("1")
	zipped := func(kind, body string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, r *http.Request, _ string) {
			if r.Header.Get("Accept-Encoding") != "gzip" {
				t.Errorf("Accept-Encoding is %q", r.Header.Get("Accept-Encoding"))
			}
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", kind)
			z := gzip.NewWriter(w)
			io.WriteString(z, body)
			z.Close()
		}
	}
	plain := func(kind, body string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, _ *http.Request, _ string) { answer(w, kind, body) }
	}
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request, string)
		want   []string
	}{
		{"JSON", plain("application/json", result("1")), []string{ok}},
		{"JSON with a charset", plain("Application/JSON; charset=utf-8", "\xef\xbb\xbf \r\n"+result("1")+"\n"), []string{ok}},
		{"JSON on several lines", plain("application/json", "{\"jsonrpc\":\"2.0\",\r\n\"id\":1,\n\n\"result\":{\n}}"), []string{ok}},
		{"array", plain("application/json", "["+progress+",\n"+result("1")+"]"), []string{"frame of 1: " + progress, ok}},
		{"gzip", zipped("application/json", result("1")), []string{ok}},
		{"stream in gzip", zipped("text/event-stream", data(result("1"))), []string{ok}},
		{"id as a float", plain("application/json", result("1.0")), []string{"frame of 1: " + result("1.0")}},
		{"error without an id", plain("text/event-stream", data(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}`)),
			[]string{`frame of 1: {"jsonrpc":"2.0","id":1,"error":{"code":-32700,"message":"what?"}}`}},
		{"stream", plain("text/event-stream;charset=UTF-8", data(progress, sampling, result("1"))),
			[]string{"frame of 1: " + progress, "frame of 1: " + sampling, ok}},
		{"stream with all sorts of events", plain("text/event-stream", ": hello\n\nid: 1\ndata:\n\nevent: ping\ndata: x\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":{}}\n\n"), []string{ok}},
		{"stream without a last blank line", plain("text/event-stream", "data: "+result("1")), []string{ok}},
		{"stream with an array", plain("text/event-stream", data("["+progress+","+result("1")+"]")), []string{"frame of 1: " + progress, ok}},
		{"stream with noise", plain("text/event-stream", data("hello", `{"level":"info"}`, result("1"))), []string{"noise hello", `noise {"level":"info"}`, ok}},
		{"after the answer", plain("text/event-stream", data(result("1"), progress)), []string{ok, "frame of 1: " + progress}},
		{"stream with a broken answer", plain("text/event-stream", data(`{"jsonrpc":"2.0","id":1,"result":{]}`)),
			[]string{`noise {"jsonrpc":"2.0","id":1,"result":{]}`, `frame of 1: {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"the server's response is not valid JSON-RPC: parse JSON: a member's name must start here (at byte 34)"}}`}},
		{"another content type", plain("text/html; x=y", "<html>"), []string{`failed 1, sent true: the server answered 200 with the content type "text/html", which is neither JSON nor an event stream`}},
		{"nothing", func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusAccepted) },
			[]string{"failed 1, sent true: the server answered 202 without content"}},
		{"no response", plain("application/json", progress), []string{"frame of 1: " + progress, "failed 1, sent true: the server's answer has no response to the call in it"}},
		{"another's response", plain("application/json", result("2")), []string{"frame of 1: " + result("2"), "failed 1, sent true: the server's answer has no response to the call in it"}},
		{"no JSON", plain("application/json", "oops"), []string{"noise oops", "failed 1, sent true: the server's answer has no response to the call in it"}},
		{"an encoding nobody asked for", func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Encoding", "br")
			answer(w, "application/json", result("1"))
		}, []string{`failed 1, sent true: the server answered in the content encoding "br", which it was not asked for`}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			f := newFake(t)
			f.handle(wire.ToolsCall, c.answer)
			r := f.start(t)
			r.shake()
			r.call("1", wire.ToolsCall)
			r.wants(c.want...)
			r.call("2", wire.ToolsList)
			r.wants("frame of 2: " + result("2"))
		})
	}
}

// Case 22: a stream that comes byte by byte.
func TestAStreamMayComeByteByByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		text := `{"jsonrpc":"2.0","id":1,"result":{"c":"北🙂"}}`
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) {
			stream(w, strings.Split("\xef\xbb\xbfid:1\r\ndata:"+text+"\r\n\r\n", "")...)
		})
		r := f.start(t)
		r.shake()
		r.call("1", wire.ToolsCall)
		r.wants("frame of 1: " + text)
	})
}

// M6: a server's request names the call on whose stream it came, and no call if it came
// on the GET stream; answers to it are posted.
func TestRequestsOfTheServerNameTheirCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		answered := make(chan struct{}, 1)
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, id string) {
			stream(w, data(sampling))
			<-answered
			stream(w, data(result(id)))
		})
		f.handle("response", func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.WriteHeader(http.StatusAccepted)
			answered <- struct{}{}
		})
		f.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
			stream(w, data(pinged))
			<-r.Context().Done()
		})
		r := f.start(t)
		r.shakeWith("frame " + pinged)
		for _, id := range []string{"1", "2"} {
			r.call(id, wire.ToolsCall)
			r.wants("frame of " + id + ": " + sampling)
		}
		r.Post(NewMessage([]byte(`{"jsonrpc":"2.0","id":"x","result":{}}`)))
		r.Post(NewMessage([]byte(`{"jsonrpc":"2.0","id":"x","result":{}}`)))
		r.wantsInAnyOrder("frame of 1: "+result("1"), "frame of 2: "+result("2"))
	})
}

// shakeWith is shake for servers that have more to say.
func (r *remoteLink) shakeWith(events ...string) {
	r.t.Helper()
	r.call("0", wire.MethodInitialize)
	synctest.Wait()
	r.mu.Lock()
	r.events = nil
	r.mu.Unlock()
	r.notify(wire.Initialized)
	r.wants(events...)
}

// Cases 67, 69: secrets are sent to the server, and never shown.
func TestSecretsAreNeverShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.session = "s3cr3t-session"
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, r *http.Request, _ string) {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, r.URL, r.Header, r.Host)
		})
		r := f.start(t, func(c *HTTPConfig) {
			c.URL = "http://user:s3cr3t-pass@server/mcp?key=s3cr3t-query&k2=s3cr3t%20two"
			c.Header = http.Header{"X-Api-Key": {"s3cr3t-header"}, "Cookie": {"Bearer s3cr3t-token"}, "Host": {"other.host"}}
		})
		r.shake()
		r.call("1", wire.ToolsCall)
		err := r.failure()
		if strings.Contains(err.Error(), "s3cr3t") || !strings.Contains(err.Error(), "***") || !strings.HasPrefix(err.Error(), "POST http://server/mcp was") || !strings.Contains(err.Error(), "other.host") {
			t.Errorf("got %v", err)
		}
		if user, pass, _ := (&http.Request{Header: f.head[0]}).BasicAuth(); user != "user" || pass != "s3cr3t-pass" {
			t.Errorf("the server got %v", f.head[0])
		}
		f.net.cut()
		m := r.call("2", wire.ToolsCall)
		if err := r.failure(); strings.Contains(err.Error(), "s3cr3t") || !errors.Is(err, errRefused) || m.Sent() {
			t.Errorf("got %v, sent %t", err, m.Sent())
		}
		if err := r.end(); strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("got %v", err)
		}
	})
	for _, url := range []string{"http://s3cr3t\x7f/", "ftp://user:s3cr3t@host/", "http://u:s3cr3t@:99999999/", "http://host:s3cr3t/", "s3cr3t", ""} {
		if _, err := NewHTTP(HTTPConfig{URL: url}); err == nil || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%q: got %v", url, err)
		}
	}
}

// Case 24: silence is no failure, however long it lasts.
func TestSilenceIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle("slow headers", func(w http.ResponseWriter, _ *http.Request, id string) {
			time.Sleep(time.Hour)
			answer(w, "application/json", result(id))
		})
		f.handle("slow stream", func(w http.ResponseWriter, _ *http.Request, id string) {
			stream(w, data(progress))
			time.Sleep(time.Hour)
			stream(w, data(result(id)))
		})
		f.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
			stream(w, ": hello\n\n")
			time.Sleep(time.Hour)
			stream(w, data(pinged))
			<-r.Context().Done()
		})
		r := f.start(t)
		r.shake()
		r.call("1", "slow stream")
		r.wants("frame of 1: " + progress)
		time.Sleep(time.Minute)
		r.call("2", "slow headers")
		synctest.Wait()
		time.Sleep(2 * time.Hour)
		r.wantsInAnyOrder("frame of 1: "+result("1"), "frame of 2: "+result("2"), "frame "+pinged)
	})
}

// P7: what is too long fails its call alone.
func TestWhatIsTooLongFailsItsCallAlone(t *testing.T) {
	long := `{"jsonrpc":"2.0","result":{"x":"` + strings.Repeat("x", 2000) + `"},"id":1}`
	longNote := `{"jsonrpc":"2.0","method":"notifications/message","params":"` + strings.Repeat("x", 2000) + `"}`
	for _, c := range []struct {
		name, kind, body string
		want             []string
	}{
		{"JSON", "application/json", long, []string{fmt.Sprintf("oversize 1 response %d", len(long))}},
		{"event", "text/event-stream", data(progress, long, progress), []string{"frame of 1: " + progress, fmt.Sprintf("oversize 1 response %d", len(long)), "frame of 1: " + progress}},
		{"notification", "text/event-stream", data(longNote, result("1")), []string{fmt.Sprintf("oversize  notification %d", len(longNote)), "frame of 1: " + result("1")}},
		{"event that is no frame", "text/event-stream", data(strings.Repeat("x", 2000)), []string{"oversize 1 response 2000"}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			f := newFake(t)
			f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) { answer(w, c.kind, c.body) })
			r := f.start(t, func(c *HTTPConfig) { c.MaxFrame = 1000 })
			r.shake()
			r.call("1", wire.ToolsCall)
			r.wants(c.want...)
			r.call("2", wire.ToolsList)
			r.wants("frame of 2: " + result("2"))
		})
	}
}

// Case 68: redirects are followed inside the origin, with method and body, and nowhere
// else.
func TestRedirectsStayInsideTheOrigin(t *testing.T) {
	for _, c := range []struct {
		status   int
		location string
		want     string
	}{
		{307, "/elsewhere", "frame of 1: " + result("1")},
		{308, "http://SERVER:80/elsewhere?x=y", "frame of 1: " + result("1")},
		{301, "elsewhere", "frame of 1: " + result("1")},
		{302, "/elsewhere", "frame of 1: " + result("1")},
		{303, "/elsewhere", "failed 1, sent true: POST http://server/mcp: the server redirects to http://server/elsewhere with 303, which is no answer to a message"},
		{307, "https://server/elsewhere?secret", "failed 1, sent false: POST http://server/mcp: the server redirects to another origin, https://server/elsewhere, which is not followed; if you trust it, make it the server's url"},
		{307, "http://server.evil/x", "failed 1, sent false: POST http://server/mcp: the server redirects to another origin, http://server.evil/x, which is not followed; if you trust it, make it the server's url"},
		{307, "file:///etc/passwd", "failed 1, sent false: POST http://server/mcp: the server redirects to another origin, file:///etc/passwd, which is not followed; if you trust it, make it the server's url"},
		{307, "", "failed 1, sent false: POST http://server/mcp: the server answered 307 without a valid Location"},
		{307, "/mcp", "failed 1, sent false: POST http://server/mcp: the server redirects without end"},
	} {
		inBubble(t, fmt.Sprint(c.status, c.location), func(t *testing.T) {
			f := newFake(t)
			f.handle(wire.ToolsCall, func(w http.ResponseWriter, r *http.Request, id string) {
				if r.URL.Path == "/elsewhere" {
					answer(w, "application/json", result(id))
					return
				}
				w.Header().Set("Location", c.location)
				w.WriteHeader(c.status)
			})
			r := f.start(t)
			r.shake()
			r.call("1", wire.ToolsCall)
			r.wants(c.want)
		})
	}
}

// M2: notifications/cancelled goes after its call, which then is not waited for.
func TestCancelledEndsItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		left := make(chan struct{})
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, r *http.Request, _ string) {
			stream(w, data(progress))
			<-r.Context().Done()
			close(left)
		})
		r := f.start(t)
		r.shake()
		r.call("1", wire.ToolsCall)
		r.wants("frame of 1: " + progress)
		r.Post(NewMessage([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)))
		<-left
		r.wants()
		if n := f.count("notifications/cancelled in s1"); n != 1 {
			t.Errorf("the server got %q", f.requests())
		}
		r.Post(NewMessage([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`)))
		synctest.Wait()
		if n := f.count("notifications/cancelled in s1"); n != 2 {
			t.Errorf("the server got %q", f.requests())
		}
	})
}

// M2: the server must know the call before it can cancel it.
func TestCancelledDoesNotOvertakeItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.ToolsCall, func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() })
		begun := time.Now()
		cancelled := make(chan time.Duration, 1)
		f.handle(wire.Cancelled, func(w http.ResponseWriter, _ *http.Request, _ string) {
			cancelled <- time.Since(begun)
			w.WriteHeader(http.StatusAccepted)
		})
		r := f.start(t)
		r.shake()
		r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":"` + strings.Repeat("x", slowBytes) + `"}}`)
		synctest.Wait()
		r.Post(NewMessage([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)))
		if d := <-cancelled; d < time.Second {
			t.Errorf("it came after %s, while the server had not read the call", d)
		}
		r.wants()
	})
}

// M2: a call that has not left yet is withdrawn without a word.
func TestACallThatWaitsIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.Initialized, func(w http.ResponseWriter, _ *http.Request, _ string) { time.Sleep(time.Second) })
		r := f.start(t)
		r.call("0", wire.MethodInitialize)
		synctest.Wait()
		r.notify(wire.Initialized)
		m := r.call("1", wire.ToolsCall)
		r.Post(NewMessage([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)))
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.count(wire.ToolsCall) != 0 || f.count(wire.Cancelled) != 0 || m.Sent() {
			t.Errorf("the server got %q", f.requests())
		}
	})
}

// Notifications are bounded, calls are not, and Post never waits.
func TestAServerThatTakesNoNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle("notifications/x", func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() })
		r := f.start(t)
		r.shake()
		for range notificationSlots {
			r.notify("notifications/x")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Send(ctx, NewMessage([]byte(`{"jsonrpc":"2.0","method":"notifications/x"}`))); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Send gives %v", err)
		}
		for i := range maxWaiting + 1 {
			if ok := r.Post(NewMessage([]byte(`{"jsonrpc":"2.0","method":"notifications/x"}`))); ok != (i < maxWaiting) {
				t.Fatalf("message %d: Post gives %t", i, ok)
			}
		}
		synctest.Wait()
		if n := f.count("notifications/x"); n != notificationSlots {
			t.Errorf("%d notifications are on their way", n)
		}
		r.call("1", wire.ToolsCall)
		r.wants("frame of 1: " + result("1"))
		time.Sleep(ackWait)
		r.notify("notifications/y")
		r.call("2", wire.ToolsCall)
		r.wants("frame of 2: " + result("2"))
		synctest.Wait()
		if n := len(r.link.(*HTTP).slots); n != 0 {
			t.Errorf("%d slots are taken, and nothing is on its way", n)
		}
	})
}

func TestAbortAndCloseArePrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		hang := func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() }
		f.handle(wire.ToolsCall, hang)
		f.handle("notifications/x", hang)
		f.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
			stream(w, ": \n\n")
			<-r.Context().Done()
		})
		f.handle(http.MethodDelete, hang)
		r := f.start(t)
		r.shake()
		m := r.call("1", wire.ToolsCall)
		r.notify("notifications/x")
		synctest.Wait()
		begun := time.Now()
		r.Abort(errTest)
		r.Abort(ErrClosed)
		if err := r.end(); err != errTest || time.Since(begun) != 0 || !m.Sent() {
			t.Errorf("Run gives %v after %s", err, time.Since(begun))
		}
		r.Close(t.Context())
		if d := time.Since(begun); d != closeWait {
			t.Errorf("Close took %s", d)
		}
		r.wants()
	})
	// C-81: a session whose handshake was given up is ended, too.
	inBubble(t, "without Run", func(t *testing.T) {
		f := newFake(t)
		h, err := NewHTTP(f.config(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Send(t.Context(), NewMessage([]byte(`{"jsonrpc":"2.0","id":0,"method":"initialize"}`))); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		h.Close(t.Context())
		if f.count("DELETE in s1") != 1 {
			t.Errorf("the server got %q", f.requests())
		}
	})
}

func TestMessagesDescribeThemselves(t *testing.T) {
	for frame, want := range map[string]*Message{
		`{"jsonrpc":"2.0","id":1.0,"method":"tools/call","params":{"name":"a\u0062"}}`:             {ID: []byte("1.0"), Method: wire.ToolsCall, Name: "ab"},
		`{"jsonrpc":"2.0","id":"p","method":"prompts/get","params":{"name":"n","uri":"u"}}`:        {ID: []byte(`"p"`), Method: wire.PromptsGet, Name: "n"},
		`{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"name":"n","uri":"file:/x"}}`: {ID: []byte("2"), Method: wire.ResourcesRead, Name: "file:/x"},
		`{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{"name":"n"}}`:                     {ID: []byte("3"), Method: wire.ToolsList},
		`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":1}}`:                       {ID: []byte("4"), Method: wire.ToolsCall},
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`:                                   {Method: wire.Initialized},
		`{"jsonrpc":"2.0","id":5,"result":{}}`:                                                     {},
		`hello`:                                                                                    {},
	} {
		m := NewMessage([]byte(frame))
		if string(m.Bytes) != frame || string(m.ID) != string(want.ID) || (m.ID == nil) != (want.ID == nil) || m.Method != want.Method || m.Name != want.Name {
			t.Errorf("%s: got %q %q %q", frame, m.ID, m.Method, m.Name)
		}
	}
}
