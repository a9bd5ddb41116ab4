package upstream

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/wire"
)

// startModern runs an HTTP link without a session to a server that gives one.
func (f *fake) startModern(t *testing.T) (*remoteLink, *HTTP) {
	t.Helper()
	c := f.config(t)
	c.Header = http.Header{"Mcp-Name": {"mine"}, "Mcp-Method": {"mine"}, "X-Team": {"a"}}
	h, err := NewHTTP(c)
	if err != nil {
		t.Fatal(err)
	}
	h.Modern(wire.Version20260728)
	return run(t, h), h
}

// callTool sends a tools/call.
func (r *remoteLink) callTool(id, name string) *Message {
	r.t.Helper()
	return r.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":` + string(wire.Quote(name)) + `}}`)
}

// refuseWith answers a call with a status and a JSON-RPC error.
func refuseWith(w http.ResponseWriter, status int, id, object string) {
	w.Header().Set("Content-Type", typeJSON)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, failed(id, object))
}

func failed(id, object string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"error":` + object + `}`
}

// H1: each request says in its headers what it is; there is no session, no stream of the
// server's own, and nothing to end.
func TestRequestsWithoutASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.Discover, func(w http.ResponseWriter, _ *http.Request, id string) {
			w.Header().Set("Mcp-Session-Id", "s9")
			answer(w, typeJSON, result(id))
		})
		r, _ := f.startModern(t)
		r.call("0", wire.Discover)
		r.wants("frame of 0: " + result("0"))
		for name, want := range map[string]string{
			"Accept": "application/json, text/event-stream", "Content-Type": typeJSON, "X-Team": "a",
			"Mcp-Protocol-Version": wire.Version20260728, "Mcp-Method": wire.Discover, "Mcp-Name": "", "Mcp-Session-Id": "",
		} {
			if got := f.header(name); got != want {
				t.Errorf("%s is %q", name, got)
			}
		}
		m := NewMessage([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`))
		m.Header = http.Header{"Mcp-Param-Region": {"eu"}}
		if err := r.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		r.wants("frame of 1: " + result("1"))
		for name, want := range map[string]string{"Mcp-Method": wire.ToolsCall, "Mcp-Name": "echo", "Mcp-Param-Region": "eu", "Mcp-Session-Id": ""} {
			if got := f.header(name); got != want {
				t.Errorf("%s is %q", name, got)
			}
		}
		r.send(`{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"file:///a b"}}`)
		r.wants("frame of 2: " + result("2"))
		if got := f.header("Mcp-Name"); got != "file:///a b" {
			t.Errorf("Mcp-Name is %q", got)
		}
		r.Abort(errTest)
		r.end()
		r.Close(t.Context())
		if got, want := f.requests(), []string{wire.Discover, wire.ToolsCall, wire.ResourcesRead}; !slices.Equal(got, want) {
			t.Errorf("the server got %q", got)
		}
	})
}

// H1: what a server refuses in JSON-RPC is the call's answer, whatever the status, and
// never a lost session; other statuses are told as such.
func TestRefusalsWithoutASession(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"unknown method":      {404, failed("1", `{"code":-32601,"message":"m"}`), "frame of 1: " + failed("1", `{"code":-32601,"message":"m"}`)},
		"headers":             {400, failed("1", `{"code":-32020,"message":"session"}`), "frame of 1: " + failed("1", `{"code":-32020,"message":"session"}`)},
		"version":             {400, failed("1", `{"code":-32022,"message":"m","data":{"supported":[]}}`), "frame of 1: " + failed("1", `{"code":-32022,"message":"m","data":{"supported":[]}}`)},
		"without an id":       {400, failed("null", `{"code":-32000,"message":"no session"}`), "frame of 1: " + failed("1", `{"code":-32000,"message":"no session"}`)},
		"no JSON-RPC":         {404, "no such session", "failed 1, sent true: POST http://server/mcp was answered with 404 Not Found: no such session"},
		"a proxy's JSON-RPC":  {503, failed("null", `{"code":-32000,"message":"m"}`), "failed 1, sent true: POST http://server/mcp was answered with 503 Service Unavailable: " + failed("null", `{"code":-32000,"message":"m"}`)},
		"an error inside":     {500, failed("1", `{"code":-32603,"message":"m"}`), "frame of 1: " + failed("1", `{"code":-32603,"message":"m"}`)},
		"a login":             {403, failed("1", `{"code":-32000,"message":"m"}`), "failed 1, sent true: POST http://server/mcp was answered with 403 Forbidden: " + failed("1", `{"code":-32000,"message":"m"}`) + "; the server needs a login, or other credentials in its headers"},
		"a login in JSON-RPC": {401, failed("null", `{"code":-32000,"message":"m"}`), "failed 1, sent false: POST http://server/mcp was answered with 401 Unauthorized: " + failed("null", `{"code":-32000,"message":"m"}`) + "; the server needs a login, or other credentials in its headers"},
	} {
		inBubble(t, name, func(t *testing.T) {
			f := newFake(t)
			f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) {
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			r, _ := f.startModern(t)
			r.callTool("1", "echo")
			synctest.Wait()
			if len(r.errs) == 1 {
				if status, ok := errors.AsType[*StatusError](r.errs[0]); !ok || status.RetryAfter != 7*time.Second {
					t.Errorf("got %#v", r.errs[0])
				}
			}
			r.wants(c.want)
			r.call("2", wire.ToolsList)
			r.wants("frame of 2: " + result("2"))
		})
	}
}

// M8: a server that is out of order, or overrun, has not said which versions it speaks.
func TestAServerThatIsOutOfOrderAnswersNoHandshake(t *testing.T) {
	for _, status := range []int{429, 500, 503} {
		for _, method := range []string{wire.Discover, wire.MethodInitialize} {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.handle(method, func(w http.ResponseWriter, _ *http.Request, id string) {
					refuseWith(w, status, id, `{"code":-32000,"message":"later"}`)
				})
				r, _ := f.startModern(t)
				r.call("1", method)
				if s, ok := errors.AsType[*StatusError](r.failure()); !ok || s.Status != status {
					t.Errorf("%s: got %v", method, s)
				}
			})
		}
	}
}

// H1, R5: a name that is not plain text goes encoded; a server that compares bytes gets
// it once more as it is, and from then on at once.
func TestTheSpellingOfNamesIsFoundOut(t *testing.T) {
	compares := func(decodes bool, executed *[]string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, r *http.Request, id string) {
			value := r.Header.Get("Mcp-Name")
			*executed = append(*executed, value)
			if value == "naïve" || decodes && wire.HeaderMeans(value, "naïve") {
				answer(w, typeJSON, result(id))
				return
			}
			refuseWith(w, 400, id, `{"code":-32020,"message":"m"}`)
		}
	}
	for _, decodes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			var got []string
			f.handle(wire.ToolsCall, compares(decodes, &got))
			r, _ := f.startModern(t)
			r.callTool("1", "naïve")
			r.wants("frame of 1: " + result("1"))
			r.callTool("2", "naïve")
			r.wants("frame of 2: " + result("2"))
			want := []string{"=?base64?bmHDr3Zl?=", "naïve", "naïve"}
			if decodes {
				want = []string{"=?base64?bmHDr3Zl?=", "=?base64?bmHDr3Zl?="}
			}
			if !slices.Equal(got, want) {
				t.Errorf("the server got the names %q", got)
			}
			// What is wrong for another reason is said twice at most; with a plain name,
			// with one that cannot go as it is, or when the spelling is known, once.
			for name, times := range map[string]int{"other": 1, "line\nline": 1, "naïf": 1} {
				got = nil
				r.callTool("3", name)
				r.wants("frame of 3: " + failed("3", `{"code":-32020,"message":"m"}`))
				if len(got) != times {
					t.Errorf("%q was sent as %q", name, got)
				}
			}
		})
	}
	inBubble(t, "neither", func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, id string) {
			refuseWith(w, 400, id, `{"code":-32020,"message":"m"}`)
		})
		r, _ := f.startModern(t)
		r.callTool("1", "naïve")
		r.wants("frame of 1: " + failed("1", `{"code":-32020,"message":"m"}`))
		if n := f.count(wire.ToolsCall); n != 2 {
			t.Errorf("the server got it %d times", n)
		}
	})
}

// M9: subscriptions/listen is a call whose stream stays open without limit. Its end
// without an answer is that call's failure; what comes on it names it.
func TestAListenStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		note := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}}`
		finish := make(chan bool)
		f.handle(wire.SubscriptionsListen, func(w http.ResponseWriter, r *http.Request, id string) {
			stream(w, "id: e1\nretry: 10\n"+data(note))
			for {
				select {
				case answered := <-finish:
					if answered {
						stream(w, data(result(id)))
					}
					return
				case <-time.After(15 * time.Second):
					stream(w, ": keep-alive\n\n")
				}
			}
		})
		r, _ := f.startModern(t)
		for id, answered := range map[string]bool{"1": true, "2": false} {
			r.call(id, wire.SubscriptionsListen)
			time.Sleep(100 * time.Hour)
			r.wants("frame of " + id + ": " + note)
			finish <- answered
			if answered {
				r.wants("frame of " + id + ": " + result(id))
			} else {
				r.wants("failed " + id + ", sent true: " + ErrInterrupted.Error())
			}
		}
		time.Sleep(time.Minute)
		if n := f.count("GET"); n != 0 {
			t.Errorf("a stream was continued %d times", n)
		}
	})
}

// M2, H1: to cancel a call is to close its POST; nothing is said of it, in either
// direction. What has not left yet is not sent.
func TestCancelClosesThePost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var left []string
		for name, answers := range map[string]bool{"silent": false, "streaming": true} {
			f.handle(name, func(w http.ResponseWriter, r *http.Request, _ string) {
				if answers {
					stream(w, data(progress))
				}
				<-r.Context().Done()
				left = append(left, name)
			})
		}
		r, h := f.startModern(t)
		for id, name := range []string{"silent", "streaming"} {
			m := r.call(string('0'+rune(id)), name)
			synctest.Wait()
			r.mu.Lock()
			r.events, r.frames = nil, nil
			r.mu.Unlock()
			r.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + string(m.ID) + `}}`)
			synctest.Wait()
			if len(left) != id {
				t.Errorf("a notification closed the POST")
			}
			r.Cancel(&Message{ID: m.ID}) // another call of that id
			synctest.Wait()
			if len(left) != id {
				t.Errorf("the POST of another call was closed")
			}
			r.Cancel(m)
			synctest.Wait()
			if len(left) != id+1 || left[id] != name {
				t.Errorf("the server saw the end of %q", left)
			}
			r.Cancel(m) // it has ended
		}
		early := NewMessage([]byte(pinged))
		r.Cancel(early)
		if err := r.Send(t.Context(), early); err != nil || early.Sent() {
			t.Errorf("Send of a cancelled call gives %v, sent %t", err, early.Sent())
		}
		time.Sleep(time.Minute)
		r.wants()
		if got, want := f.requests(), []string{"silent", "streaming"}; !slices.Equal(got, want) {
			t.Errorf("the server got %q", got)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.calls) != 0 || h.open != 0 || h.asking != 0 {
			t.Errorf("left: %d calls, %d streams, %d questions", len(h.calls), h.open, h.asking)
		}
	})
}

// Of a call in a session Cancel does nothing: the notification says it.
func TestCancelDoesNothingInASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle("slow", func(w http.ResponseWriter, _ *http.Request, id string) {
			time.Sleep(time.Second)
			answer(w, typeJSON, result(id))
		})
		r := f.start(t)
		r.shake()
		m := r.call("1", "slow")
		synctest.Wait()
		r.Cancel(m)
		early := NewMessage([]byte(pinged))
		r.Cancel(early)
		if err := r.Send(t.Context(), early); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		r.wantsInAnyOrder("frame of 1: "+result("1"), "frame of 7: "+result("7"))
	})
}

// M8: after a probe in vain the link is one of the older versions.
func TestALinkCanGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.Discover, func(w http.ResponseWriter, r *http.Request, _ string) {
			if r.Header.Get("Mcp-Protocol-Version") == "" {
				t.Error("the probe names no version")
			}
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, failed("null", `{"code":-32000,"message":"Bad Request: Server not initialized"}`))
		})
		silent := make(chan struct{})
		f.handle("silent", func(_ http.ResponseWriter, r *http.Request, _ string) {
			<-r.Context().Done()
			close(silent)
		})
		r, h := f.startModern(t)
		r.call(`"p"`, wire.Discover)
		r.wants(`frame of "p": ` + failed(`"p"`, `{"code":-32000,"message":"Bad Request: Server not initialized"}`))
		m := r.call(`"q"`, "silent")
		synctest.Wait()
		h.Modern("")
		r.Cancel(m)
		<-silent
		r.shake()
		r.call("1", wire.ToolsCall)
		r.wants("frame of 1: " + result("1"))
		if f.header("Mcp-Session-Id") != "s1" || f.header("Mcp-Method") != "" || f.header("Mcp-Protocol-Version") != "2025-06-18" || f.count("GET in s1") != 1 {
			t.Errorf("the server got %q, at last with %v", f.requests(), f.head[len(f.head)-1])
		}
		r.Abort(errTest)
		r.end()
		r.Close(t.Context())
		if f.count("DELETE in s1") != 1 {
			t.Error("the session was not ended")
		}
	})
}

// M8, case 51: JSON-RPC behind a bad status is no sign of an old server; a probe of an old
// one does not keep its link from becoming an SSE link.
func TestAutoTellsErasApart(t *testing.T) {
	for _, id := range []string{"0", "null"} {
		for _, status := range []int{http.StatusBadRequest, http.StatusNotFound} {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.handle(wire.MethodInitialize, func(w http.ResponseWriter, _ *http.Request, _ string) {
					refuseWith(w, status, id, `{"code":-32020,"message":"the header Mcp-Method is missing"}`)
				})
				a, err := NewAuto(f.config(t))
				if err != nil {
					t.Fatal(err)
				}
				r := run(t, a)
				r.call("0", wire.MethodInitialize)
				r.wants("frame of 0: " + failed("0", `{"code":-32020,"message":"the header Mcp-Method is missing"}`))
				a.Modern(wire.Version20260728)
				m := r.call("1", wire.Discover)
				r.wants("frame of 1: " + result("1"))
				r.Cancel(m)
				if f.header("Mcp-Method") != wire.Discover || f.count("GET") != 0 {
					t.Errorf("the server got %q", f.requests())
				}
			})
		}
	}
	inBubble(t, "an old server", func(t *testing.T) {
		o := newOldServer(t)
		o.handle(wire.Discover, func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusMethodNotAllowed) })
		a, err := NewAuto(o.config(t))
		if err != nil {
			t.Fatal(err)
		}
		a.Modern(wire.Version20260728)
		r := run(t, a)
		r.call("0", wire.Discover)
		r.wants("failed 0, sent true: POST http://server/mcp was answered with 405 Method Not Allowed")
		a.Modern("")
		r.call("1", wire.MethodInitialize)
		r.wants("frame " + result("1"))
	})
}

// R1, R2: that the server cannot be reached ends the link, and the call was not sent;
// but not while a listen still is.
func TestWithoutASessionAServerThatIsGoneEndsTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.SubscriptionsListen, func(w http.ResponseWriter, r *http.Request, _ string) {
			stream(w, ": hello\n\n")
			<-r.Context().Done()
		})
		r, _ := f.startModern(t)
		r.call("1", wire.SubscriptionsListen)
		r.call("2", wire.ToolsList)
		r.wants("frame of 2: " + result("2"))
		f.net.cut()
		r.wants("failed 1, sent true: " + ErrInterrupted.Error())
		m := r.call("3", wire.ToolsList)
		if err := r.end(); !errors.Is(err, errRefused) || m.Sent() {
			t.Errorf("Run gives %v, sent %t", err, m.Sent())
		}
		r.wants("failed 3, sent false: POST http://server/mcp: connection refused")
	})
}
