package relay_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/relay"
)

// daemon answers the request of a line with text, over a pipe, and returns the
// request.
func daemon(t *testing.T, text string) (net.Conn, <-chan *http.Request) {
	ours, theirs := net.Pipe()
	requests := make(chan *http.Request, 1)
	go func() {
		r, err := http.ReadRequest(bufio.NewReader(theirs))
		if err == nil {
			_, err = io.WriteString(theirs, text)
		}
		if err != nil {
			r = nil
		}
		requests <- r
	}()
	t.Cleanup(func() { _ = ours.Close(); _ = theirs.Close() })
	return ours, requests
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: roundhouse-relay\r\n"

func TestOpen(t *testing.T) {
	conn, requests := daemon(t, switching+"X-Session-Id: s\r\n\r\n{}\n")
	r, header, err := relay.Open(conn, "localhost", relay.Path("a b/c"), http.Header{relay.ResumeHeader: {"old"}})
	if err != nil {
		t.Fatal(err)
	}
	if header.Get(relay.SessionHeader) != "s" {
		t.Errorf("the answer's headers are %v", header)
	}
	if line, err := relay.NewLines(r, 10).Next(); err != nil || string(line) != "{}" {
		t.Errorf("the first frame is %q, %v", line, err)
	}
	got := <-requests
	if got == nil || got.Method != http.MethodGet || got.RequestURI != "/relay/a%20b%2Fc" || got.Host != "localhost" ||
		got.Header.Get("Upgrade") != relay.Protocol || got.Header.Get(relay.ResumeHeader) != "old" {
		t.Errorf("the daemon got %+v", got)
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct{ answer, want string }{
		{"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 42\r\n\r\n{\"error\":{\"message\":\"busy\",\"reason\":\"d\"}}\n", "busy"},
		{"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone", "404 Not Found"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "200 OK"},
		{"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", "no roundhouse daemon"},
	} {
		conn, _ := daemon(t, c.answer)
		_, _, err := relay.Open(conn, "localhost", relay.Path(""), nil)
		if _, ok := errors.AsType[*relay.Refusal](err); !ok || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.answer, err)
		}
	}
}

// A daemon that accepts and says nothing does not hold a shim up for ever.
func TestASilentDaemonIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, _ := daemon(t, "")
		begun := time.Now()
		if _, _, err := relay.Open(conn, "localhost", "/relay", nil); err == nil {
			t.Error("a line without an answer is open")
		}
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
