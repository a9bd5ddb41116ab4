package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing/synctest"

	"roundhouse/internal/wire"
)

// A peer is an MCP client on the other side of HTTP.
type peer struct {
	w       *world
	path    string
	id      string // of the MCP session
	token   string // of authentication
	version string
	header  http.Header // sent with every request

	mu   sync.Mutex
	next int
}

// clientCaps are the capabilities that peers declare, unless a test says otherwise.
const clientCaps = `{"sampling":{},"elicitation":{},"roots":{}}`

func hello(version, caps string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"test","version":"1"}}}`, version, caps)
}

// dialed returns a client that has not said hello.
func (w *world) dialed(path string) *peer {
	return &peer{w: w, path: path, version: wire.Version20251125, header: http.Header{}}
}

// connect returns an initialized client.
func (w *world) connect(path string) *peer {
	w.Helper()
	p := w.dialed(path)
	p.hello()
	return p
}

func (p *peer) hello() reply {
	p.w.Helper()
	r := p.post(hello(p.version, clientCaps))
	p.id = r.header.Get(sessionHeader)
	if r.status != http.StatusOK || p.id == "" {
		p.w.Fatalf("initialize at %s: %d %s", p.path, r.status, r.frames)
	}
	return r
}

// request makes an HTTP request of the client's.
func (p *peer) request(method, body string) *http.Request {
	p.w.Helper()
	r, err := http.NewRequest(method, "http://localhost"+p.path, strings.NewReader(body))
	if err != nil {
		p.w.Fatal(err)
	}
	switch method {
	case http.MethodPost:
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
	case http.MethodGet:
		r.Header.Set("Accept", "text/event-stream")
	}
	if p.id != "" {
		r.Header.Set(sessionHeader, p.id)
		r.Header.Set(versionHeader, p.version)
	}
	if p.token != "" {
		r.Header.Set("Authorization", "Bearer "+p.token)
	}
	maps.Copy(r.Header, p.header)
	return r
}

// A reply is a whole HTTP response.
type reply struct {
	status int
	header http.Header
	body   string
	sse    bool
	frames []string // of the body, whether JSON or events, without empty events
	events []sseEvent
}

// sseEvent is one event, or comment, as it came.
type sseEvent struct{ id, data, comment string }

func (p *peer) do(r *http.Request) reply {
	p.w.Helper()
	resp, err := p.w.browser.Do(r)
	if err != nil {
		p.w.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	return p.read(resp)
}

// read takes a response to its end.
func (p *peer) read(resp *http.Response) reply {
	p.w.Helper()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.w.Fatalf("read the answer: %v", err)
	}
	out := reply{status: resp.StatusCode, header: resp.Header, body: string(body), sse: resp.Header.Get("Content-Type") == "text/event-stream"}
	if !out.sse {
		if len(body) > 0 {
			out.frames = []string{string(body)}
		}
		return out
	}
	in := bufio.NewReader(bytes.NewReader(body))
	for {
		e, err := readEvent(in)
		if err != nil {
			return out
		}
		out.events = append(out.events, e)
		if e.data != "" {
			out.frames = append(out.frames, e.data)
		}
	}
}

// readEvent reads one event or comment.
func readEvent(in *bufio.Reader) (e sseEvent, err error) {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return e, err
		}
		switch name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); name {
		case "id":
			e.id = value
		case "data":
			e.data = value
		case "":
			if line != "\n" {
				e.comment = value
				continue
			}
			return e, nil
		}
	}
}

func (p *peer) post(body string) reply {
	p.w.Helper()
	return p.do(p.request(http.MethodPost, body))
}

// send makes a request of the protocol and returns what came.
func (p *peer) send(method, params string) reply {
	p.w.Helper()
	return p.post(p.frame(method, params))
}

// frame is a request with a new id.
func (p *peer) frame(method, params string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return string(wire.NewRequest(fmt.Append(nil, p.next), method, []byte(params)))
}

// notify sends a notification.
func (p *peer) notify(method, params string) {
	p.w.Helper()
	if r := p.post(string(wire.NewNotification(method, []byte(params)))); r.status != http.StatusAccepted {
		p.w.Fatalf("%s: %d %s", method, r.status, r.body)
	}
}

// tool calls a tool with arguments and returns its result.
func (p *peer) tool(name, arguments string) map[string]any {
	p.w.Helper()
	return p.result(wire.ToolsCall, fmt.Sprintf(`{"name":%s,"arguments":%s}`, wire.Quote(name), arguments))
}

// result makes a request that must be answered with a result.
func (p *peer) result(method, params string) map[string]any {
	p.w.Helper()
	m := p.send(method, params).last(p.w)
	if m.Result == nil {
		p.w.Fatalf("%s %s was answered with the error %s", method, params, m.Error)
	}
	return m.Result
}

// refused makes a request that must be answered with an error.
func (p *peer) refused(method, params string) rpcError {
	p.w.Helper()
	m := p.send(method, params).last(p.w)
	return m.fault(p.w)
}

// A message is a frame as a client reads it.
type message struct {
	ID     json.RawMessage
	Method string
	Params map[string]any
	Result map[string]any
	Error  json.RawMessage
}

type rpcError struct {
	Code    int
	Message string
	Data    map[string]any
}

func (m message) fault(w *world) (e rpcError) {
	w.Helper()
	if m.Error == nil {
		w.Fatalf("no error but %v", m.Result)
	}
	if err := json.Unmarshal(m.Error, &e); err != nil {
		w.Fatal(err)
	}
	return e
}

func decode(w *world, raw string) (m message) {
	w.Helper()
	if err := json.Unmarshal([]byte(raw), &m); err != nil {
		w.Fatalf("%v: %q", err, raw)
	}
	return m
}

// last returns the last frame of a reply.
func (r reply) last(w *world) message {
	w.Helper()
	if len(r.frames) == 0 {
		w.Fatalf("the answer holds no frame: %d %q", r.status, r.body)
	}
	return decode(w, r.frames[len(r.frames)-1])
}

// A pending is a POST, or a GET, whose response is read in the background.
type pending struct {
	w      *world
	done   chan struct{} // closed at the end of the response
	cancel context.CancelFunc

	mu     sync.Mutex
	resp   *http.Response
	events []sseEvent
	json   string
}

// begin sends a request and reads the response as it comes.
func (p *peer) begin(r *http.Request) *pending {
	ctx, cancel := context.WithCancel(context.Background())
	x := &pending{w: p.w, done: make(chan struct{}), cancel: cancel}
	go func() { // ends with the response
		defer close(x.done)
		resp, err := p.w.browser.Do(r.WithContext(ctx))
		if err != nil {
			return // the test ended it
		}
		x.mu.Lock()
		x.resp = resp
		x.mu.Unlock()
		defer resp.Body.Close()
		if resp.Header.Get("Content-Type") != "text/event-stream" {
			b, _ := io.ReadAll(resp.Body)
			x.mu.Lock()
			x.json = string(b)
			x.mu.Unlock()
			return
		}
		in := bufio.NewReader(resp.Body)
		for {
			e, err := readEvent(in)
			if err != nil {
				return
			}
			x.mu.Lock()
			x.events = append(x.events, e)
			x.mu.Unlock()
		}
	}()
	return x
}

func (p *peer) beginTool(name, arguments string) *pending {
	return p.begin(p.request(http.MethodPost, p.frame(wire.ToolsCall, fmt.Sprintf(`{"name":%s,"arguments":%s,"_meta":{"progressToken":"tok"}}`, wire.Quote(name), arguments))))
}

// listen opens a GET stream, after an event unless that is "".
func (p *peer) listen(after string) *pending {
	r := p.request(http.MethodGet, "")
	if after != "" {
		r.Header.Set("Last-Event-ID", after)
	}
	x := p.begin(r)
	synctest.Wait()
	return x
}

// hangUp ends the response from the client's side.
func (x *pending) hangUp() {
	x.cancel()
	<-x.done
	synctest.Wait()
}

// status is that of the response, or 0 before it has begun.
func (x *pending) status() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.resp == nil {
		return 0
	}
	return x.resp.StatusCode
}

func (x *pending) ended() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// frames returns the frames that have come so far.
func (x *pending) frames() (list []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.json != "" {
		return []string{x.json}
	}
	for _, e := range x.events {
		if e.data != "" {
			list = append(list, e.data)
		}
	}
	return list
}

// ids returns the event ids that have come so far, of empty events too.
func (x *pending) ids() (list []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.events {
		if e.id != "" {
			list = append(list, e.id)
		}
	}
	return list
}

func (x *pending) comments() (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.events {
		if e.comment != "" {
			n++
		}
	}
	return n
}

// methods returns the methods of the frames that have come, and "answer" for responses.
func (x *pending) methods() (list []string) {
	for _, raw := range x.frames() {
		m := decode(x.w, raw)
		if m.Method == "" {
			m.Method = "answer"
		}
		list = append(list, m.Method)
	}
	return list
}
