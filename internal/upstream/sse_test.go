package upstream

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/wire"
)

// oldServer makes f a server of HTTP with SSE: what is posted is answered on the stream.
type oldServer struct {
	*fake
	endpoint string
	events   chan string // raw, for the stream
}

func newOldServer(t *testing.T) *oldServer {
	o := &oldServer{fake: newFake(t), endpoint: "/messages?session=s3cr3t", events: make(chan string, 10)}
	o.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
		stream(w, "event: endpoint\r\ndata: "+o.endpoint+"\r\n\r\n")
		for {
			select {
			case e, ok := <-o.events:
				if !ok {
					return
				}
				stream(w, e)
			case <-r.Context().Done():
				return
			}
		}
	})
	for _, method := range []string{wire.MethodInitialize, wire.ToolsCall, wire.ToolsList} {
		o.handle(method, func(w http.ResponseWriter, r *http.Request, id string) {
			if r.URL.Path == "/mcp" {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			if r.URL.RequestURI() != "/messages?session=s3cr3t" {
				t.Errorf("a message was posted to %s", r.URL)
			}
			w.WriteHeader(http.StatusAccepted)
			io.WriteString(w, "Accepted")
			o.events <- "event: message\r\n" + data(result(id))
		})
	}
	return o
}

func (o *oldServer) start(t *testing.T) *remoteLink {
	c := o.config(t)
	c.MaxFrame = 1000
	s, err := NewSSE(c)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, s)
}

func TestOldServersAnswerOnTheOneStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOldServer(t)
		r := o.start(t)
		r.call("0", wire.MethodInitialize)
		r.wants("frame " + result("0"))
		r.notify(wire.Initialized)
		r.call("1", wire.ToolsCall)
		r.wants("frame " + result("1"))
		o.events <- ": hello\n\nevent: other\ndata: x\n\n" + data(pinged, "noise")
		r.wants("frame "+pinged, "noise noise")
		long := `{"jsonrpc":"2.0","result":"` + strings.Repeat("x", 1000) + `","id":2}`
		o.events <- data(long)
		r.wants(fmt.Sprintf("oversize 2 response %d", len(long)))

		o.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, "no session s3cr3t")
		})
		r.call("3", wire.ToolsCall)
		r.wants("failed 3, sent true: POST http://server/messages was answered with 404 Not Found: no session ***")
		o.handle(wire.ToolsCall, func(http.ResponseWriter, *http.Request, string) { cutOff() })
		r.call("4", wire.ToolsCall)
		r.wants("failed 4, sent true: POST http://server/messages: EOF")
		r.call("5", wire.ToolsList)
		r.wants("frame " + result("5"))
		if o.header("Mcp-Protocol-Version") != "" || o.header("Content-Type") != "application/json" {
			t.Errorf("the server got %v", o.head[len(o.head)-1])
		}

		close(o.events)
		if err := r.end(); !errors.Is(err, io.EOF) {
			t.Errorf("Run gives %v", err)
		}
	})
}

// Case 68: messages, with our credentials, go to the server's own origin only.
func TestOldServersMayNotSendUsElsewhere(t *testing.T) {
	for endpoint, want := range map[string]string{
		"https://server/messages":    "https://server/messages, which is refused",
		"//evil/messages?x":          "http://evil/messages, which is refused",
		"http://server:8080/m":       "http://server:8080/m, which is refused",
		"file:///etc/passwd":         "which is refused",
		"http://[::1":                "is no URI",
		"http://server:80/messages":  "",
		"messages":                   "",
		"?x=y":                       "",
		" http://x:y@SERVER/a/../b ": "",
	} {
		inBubble(t, endpoint, func(t *testing.T) {
			o := newOldServer(t)
			o.endpoint = endpoint
			o.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusAccepted) })
			r := o.start(t)
			m := r.try("1", wire.ToolsCall)
			synctest.Wait()
			if want == "" {
				if o.count(wire.ToolsCall) != 1 {
					t.Error("the message was not posted")
				}
				return
			}
			if err := r.end(); err == nil || !strings.Contains(err.Error(), want) || m.Sent() || o.count(wire.ToolsCall) != 0 {
				t.Errorf("Run gives %v", err)
			}
		})
	}
}

func TestAnOldServerThatRefusesTheStreamEndsTheLink(t *testing.T) {
	for name, c := range map[string]struct {
		get  func(w http.ResponseWriter, r *http.Request, _ string)
		want string
	}{
		"401":       {func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(401) }, "open the server's event stream: GET http://server/mcp was answered with 401 Unauthorized; the server needs a login, or other credentials in its headers"},
		"no stream": {func(w http.ResponseWriter, _ *http.Request, _ string) { answer(w, "text/html", "x") }, "open the server's event stream: GET http://server/mcp: the answer is no event stream"},
		"cut off":   {func(w http.ResponseWriter, _ *http.Request, _ string) { stream(w, ": x\n\n"); cutOff() }, "read the server's event stream: unexpected EOF"},
	} {
		inBubble(t, name, func(t *testing.T) {
			o := newOldServer(t)
			o.handle(http.MethodGet, c.get)
			r := o.start(t)
			m := r.try("0", wire.MethodInitialize)
			if err := r.end(); err == nil || err.Error() != c.want || m.Sent() {
				t.Errorf("Run gives %v", err)
			}
			r.wants()
		})
	}
	inBubble(t, "unreachable", func(t *testing.T) {
		o := newOldServer(t)
		o.net.cut()
		if err := o.start(t).end(); !errors.Is(err, errRefused) {
			t.Errorf("Run gives %v", err)
		}
	})
	inBubble(t, "aborted before the endpoint is known", func(t *testing.T) {
		o := newOldServer(t)
		o.handle(http.MethodGet, func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() })
		r := o.start(t)
		r.call("0", wire.MethodInitialize)
		synctest.Wait()
		begun := time.Now()
		r.Abort(errTest)
		if err := r.end(); err != errTest || time.Since(begun) != 0 {
			t.Errorf("Run gives %v", err)
		}
	})
}

// Case 51: HTTP comes first, and SSE if the server answers as old servers do.
func TestAutoFallsBackToSSE(t *testing.T) {
	start := func(t *testing.T, f *fake) *remoteLink {
		a, err := NewAuto(f.config(t))
		if err != nil {
			t.Fatal(err)
		}
		return run(t, a)
	}
	for _, status := range []int{400, 404, 405} {
		inBubble(t, fmt.Sprint(status), func(t *testing.T) {
			o := newOldServer(t)
			h := o.on[wire.MethodInitialize]
			o.handle(wire.MethodInitialize, func(w http.ResponseWriter, r *http.Request, id string) {
				if r.URL.Path == "/mcp" {
					w.WriteHeader(status)
					return
				}
				h(w, r, id)
			})
			r := start(t, o.fake)
			r.call("0", wire.MethodInitialize)
			r.wants("frame " + result("0"))
			r.notify(wire.Initialized)
			r.call("1", wire.ToolsCall)
			r.wants("frame " + result("1"))
			if got := o.requests(); len(got) != 5 || got[1] != "GET" {
				t.Errorf("the server got %q", got)
			}
		})
	}
	inBubble(t, "neither", func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.MethodInitialize, func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusNotFound) })
		r := start(t, f)
		r.call("0", wire.MethodInitialize)
		if err := r.end(); err == nil || !strings.Contains(err.Error(), "405") {
			t.Errorf("Run gives %v", err)
		}
		r.wants()
	})
	for _, status := range []int{401, 403, 500, 503} {
		inBubble(t, fmt.Sprint(status), func(t *testing.T) {
			f := newFake(t)
			f.handle(wire.MethodInitialize, func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(status) })
			r := start(t, f)
			r.call("0", wire.MethodInitialize)
			if err := r.failure(); !strings.Contains(err.Error(), fmt.Sprint(status)) || f.count("GET") != 0 {
				t.Errorf("got %v; the server got %q", err, f.requests())
			}
		})
	}
	inBubble(t, "no need", func(t *testing.T) {
		f := newFake(t)
		r := start(t, f)
		r.shake()
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusBadRequest) })
		r.call("1", wire.ToolsCall)
		r.wants("failed 1, sent true: POST http://server/mcp was answered with 400 Bad Request")
	})
}
