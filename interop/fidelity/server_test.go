package fidelity

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
)

// transports are the ways in which servers are reached. A server at "http" answers with
// JSON where it can, one at "stream" always with an event stream.
var transports = []string{"stdio", "http", "stream", "sse", "ws", modern + "stdio", modern + "http", modern + "stream"}

// modern begins the names of the ways to servers of 2026-07-28. To them the client's
// exchanges go through the bridge between the eras, those that it does not change.
const modern = "modern-"

// bridgeWord makes the test's own binary a server on stdio whose other end is a TCP
// connection to the test: so a real process is between them, and the test is the server.
const bridgeWord = "fidelity-bridge"

// bridge copies stdin to the test and what the test says to stdout. The first line is
// the server's name.
func bridge(address, name string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, name); err != nil {
		return err
	}
	go func() { // ends with the process
		_, _ = io.Copy(os.Stdout, conn)
	}()
	_, err = io.Copy(conn, os.Stdin)
	return err
}

// servers are all servers of the test: one for each exchange and transport.
type servers struct {
	pipes  net.Listener
	http   *httptest.Server
	byName map[string]*server // by transport and number; constant once serve has begun
	wg     sync.WaitGroup
}

// A server plays the server's part of one exchange.
type server struct {
	x        *exchange
	modern   bool
	got      chan arrival
	standing chan string // frames for no call
	gone     chan struct{}
}

// An arrival is a frame that came. reply sends one on the stream of the request, where
// the transport has one for each, and is nil for what is no request.
type arrival struct {
	frame string
	reply func(frame string)
}

// serve starts the servers.
func serve(t *testing.T, byName map[string]*server) *servers {
	t.Helper()
	pipes, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &servers{pipes: pipes, byName: byName}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{transport}/{number}", s.post)
	mux.HandleFunc("GET /{transport}/{number}", s.get)
	s.http = httptest.NewServer(mux)
	s.wg.Go(s.accept)
	t.Cleanup(func() {
		for _, one := range byName {
			close(one.gone)
		}
		_ = pipes.Close()
		s.http.CloseClientConnections()
		s.http.Close()
		s.wg.Wait()
	})
	return s
}

// entry is a server's entry in the configuration.
func (s *servers) entry(transport, name string) map[string]any {
	if plain, ok := strings.CutPrefix(transport, modern); ok {
		e := s.entry(plain, name)
		e["era"] = "modern"
		return e
	}
	switch transport {
	case "stdio":
		return map[string]any{"command": os.Args[0], "args": []string{bridgeWord, s.pipes.Addr().String(), name}}
	case "ws":
		return map[string]any{"type": "ws", "url": "ws" + strings.TrimPrefix(s.http.URL, "http") + "/" + name}
	case "sse":
		return map[string]any{"type": "sse", "url": s.http.URL + "/" + name}
	}
	return map[string]any{"type": "http", "url": s.http.URL + "/" + name}
}

func (s *servers) accept() {
	for {
		conn, err := s.pipes.Accept()
		if err != nil {
			return // the test is over
		}
		s.wg.Go(func() {
			defer conn.Close()
			lines := bufio.NewReader(conn)
			name, err := lines.ReadString('\n')
			one := s.byName[strings.TrimSpace(name)]
			if err != nil || one == nil {
				return
			}
			out := newSink(conn, "\n")
			s.wg.Go(func() { one.stand(out.frame) })
			for {
				line, err := lines.ReadString('\n')
				if err != nil {
					return
				}
				one.take(strings.TrimSuffix(line, "\n"), out.frame)
			}
		})
	}
}

// A sink writes frames, one at a time.
type sink struct {
	mu  sync.Mutex
	w   io.Writer
	end string
}

func newSink(w io.Writer, end string) *sink { return &sink{w: w, end: end} }

func (s *sink) frame(frame string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.w, frame+s.end) // who does not read will miss it
	if f, ok := s.w.(http.Flusher); ok {
		f.Flush()
	}
}

// stand sends what belongs to no call until the test is over.
func (s *server) stand(send func(frame string)) {
	for {
		select {
		case frame := <-s.standing:
			send(frame)
		case <-s.gone:
			return
		}
	}
}

// envelope is what a server has to know of a frame to answer it.
type envelope struct {
	ID     json.RawMessage
	Method string
}

func envelopeOf(frame string) envelope {
	var e envelope
	_ = json.Unmarshal([]byte(frame), &e) // what is no frame has none
	return e
}

const defaultHello = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"logging":{},"completions":{}},"serverInfo":{"name":"s","version":"1"}}`

const modernHello = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"prompts":{},"resources":{},"completions":{}},"ttlMs":0,"cacheScope":"public"}`

// lists are the results of what roundhouse asks for by itself, by method.
var lists = map[string]string{
	"tools/list":               `{"tools":[]}`,
	"prompts/list":             `{"prompts":[]}`,
	"resources/list":           `{"resources":[]}`,
	"resources/templates/list": `{"resourceTemplates":[]}`,
}

// take answers what roundhouse asks for by itself, and hands the rest to the exchange.
func (s *server) take(frame string, reply func(frame string)) {
	e := envelopeOf(frame)
	result := lists[e.Method]
	if strings.Contains(frame, `"cursor"`) {
		result = ""
	}
	switch e.Method {
	case "notifications/initialized":
		return
	case "initialize":
		result = defaultHello
	case "server/discover":
		result = modernHello
	}
	if set, ok := s.x.setup[e.Method]; ok && e.Method != "" {
		result = set
	}
	if result != "" {
		reply(`{"jsonrpc":"2.0","id":` + string(e.ID) + `,"result":` + result + `}`)
		return
	}
	if e.ID == nil || e.Method == "" {
		reply = nil
	}
	select {
	case s.got <- arrival{frame, reply}:
	case <-s.gone:
	}
}

func (s *servers) of(r *http.Request) *server {
	return s.byName[r.PathValue("transport")+"/"+r.PathValue("number")]
}

func (s *servers) post(w http.ResponseWriter, r *http.Request) {
	one := s.of(r)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	frame := string(body)
	if e := envelopeOf(frame); r.PathValue("transport") == "sse" || e.ID == nil || e.Method == "" {
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush()
		one.take(frame, func(frame string) {
			select {
			case one.standing <- frame:
			case <-one.gone:
			}
		})
		return
	}
	frames := make(chan string, 1)
	s.wg.Go(func() {
		one.take(frame, func(frame string) {
			select {
			case frames <- frame:
			case <-r.Context().Done():
			case <-one.gone:
			}
		})
	})
	var out *sink
	for {
		select {
		case frame = <-frames:
		case <-r.Context().Done():
			return
		case <-one.gone:
			return
		}
		last := envelopeOf(frame).Method == ""
		if out == nil && last && strings.HasSuffix(r.PathValue("transport"), "http") {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, frame)
			return
		}
		if out == nil {
			out = openStream(w)
		}
		out.frame(event(frame))
		if last {
			return
		}
	}
}

func openStream(w http.ResponseWriter) *sink {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	return newSink(w, "\n\n")
}

// event puts a frame into as many lines as it has.
func event(frame string) string {
	return "event: message\ndata: " + strings.NewReplacer("\r\n", "\ndata: ", "\n", "\ndata: ").Replace(frame)
}

func (s *servers) get(w http.ResponseWriter, r *http.Request) {
	one := s.of(r)
	if r.PathValue("transport") == "ws" {
		s.socket(w, r, one)
		return
	}
	out := openStream(w)
	if r.PathValue("transport") == "sse" {
		out.frame("event: endpoint\ndata: " + r.URL.Path)
	}
	for {
		select {
		case frame := <-one.standing:
			out.frame(event(frame))
		case <-r.Context().Done():
			return
		case <-one.gone:
			return
		}
	}
}

func (s *servers) socket(w http.ResponseWriter, r *http.Request, one *server) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
	if err != nil {
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(-1)
	send := func(frame string) {
		_ = conn.Write(r.Context(), websocket.MessageText, []byte(frame)) // who does not read will miss it
	}
	s.wg.Go(func() { one.stand(send) })
	for {
		_, message, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		one.take(string(message), send)
	}
}
