package front_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"roundhouse/internal/fault"
	"roundhouse/internal/front"
)

func bodyRequest(body io.Reader, length int64) *http.Request {
	r := httptest.NewRequest("POST", "/", body)
	r.ContentLength = length
	return r
}

// H6: a body of every size around the limit and around the eager allocation, with
// its length known and unknown.
func TestReadBody(t *testing.T) {
	const mib = 1 << 20
	for _, size := range []int64{0, 1, 511, 512, 4096, mib - 1, mib, mib + 1, 3*mib + 17} {
		data := bytes.Repeat([]byte("0123456789abcdef"), int(size/16+1))[:size]
		for _, limit := range []int64{size, size + 1, size - 1} {
			if limit < 0 {
				continue
			}
			for _, length := range []int64{size, -1} {
				body, err := front.ReadBody(httptest.NewRecorder(), bodyRequest(iotest.HalfReader(bytes.NewReader(data)), length), limit)
				if size <= limit {
					if err != nil || !bytes.Equal(body, data) {
						t.Errorf("%d bytes, length %d, limit %d: got %d bytes, %v", size, length, limit, len(body), err)
					}
					if length >= 0 && cap(body) != len(body) {
						t.Errorf("%d bytes of known length are held in %d", size, cap(body))
					}
					continue
				}
				if body != nil || !fault.Is(err, fault.TooLarge) {
					t.Fatalf("%d bytes, length %d, limit %d: got %d bytes, %v", size, length, limit, len(body), err)
				}
				var got struct {
					Error struct{ Limit, Size int64 }
				}
				if err := json.Unmarshal(fault.Of(err).HTTP(), &got); err != nil {
					t.Fatal(err)
				}
				if got.Error.Limit != limit || (length >= 0) != (got.Error.Size == size) {
					t.Errorf("%d bytes, length %d, limit %d: the fault says %+v", size, length, limit, got)
				}
			}
		}
	}
}

func TestReadBodyReportsBodiesThatEndEarly(t *testing.T) {
	for _, length := range []int64{5, 2 << 20} {
		_, err := front.ReadBody(httptest.NewRecorder(), bodyRequest(strings.NewReader("abc"), length), 4<<20)
		if !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), "after 3 of") {
			t.Errorf("length %d: %v", length, err)
		}
	}
	broken := errors.New("connection reset")
	for _, length := range []int64{5, -1} {
		_, err := front.ReadBody(httptest.NewRecorder(), bodyRequest(iotest.ErrReader(broken), length), 10)
		if !fault.Is(err, fault.BadRequest) || !errors.Is(err, broken) {
			t.Errorf("length %d: %v", length, err)
		}
	}
}

// A client that announces a large body and sends none costs no memory.
func TestAnnouncedBodiesCostNoMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := front.ReadBody(httptest.NewRecorder(), bodyRequest(strings.NewReader("{"), 1<<30), 1<<30)
	runtime.ReadMemStats(&after)
	if !fault.Is(err, fault.BadRequest) {
		t.Fatal(err)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
}

// H3, H6: over a real connection the sender of too much still reads the answer, and
// the connection is not used again.
func TestTooLargeBodiesAreAnsweredPolitely(t *testing.T) {
	f, err := front.New(front.Config{MaxBody: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	f.Handle("/mcp", func(w http.ResponseWriter, r *http.Request, _ front.Caller) {
		body, err := front.ReadBody(w, r, 1<<20)
		if err != nil {
			front.WriteError(w, err)
			return
		}
		front.WriteJSON(w, 200, len(body))
	})
	f.Handle("/small", func(w http.ResponseWriter, r *http.Request, _ front.Caller) {
		_, err := front.ReadBody(w, r, 10)
		front.WriteError(w, err)
	})
	f.Handle("/copy", func(w http.ResponseWriter, r *http.Request, _ front.Caller) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			front.WriteError(w, err)
			return
		}
		front.WriteJSON(w, 200, n)
	})
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	for _, c := range []struct {
		name, path string
		size       int
		chunked    bool
		want       int
	}{
		{"within, length known", "/mcp", 1 << 20, false, 200},
		{"within, length unknown", "/mcp", 1 << 20, true, 200},
		{"over the route's limit, length known", "/mcp", 1<<20 + 1, false, 413},
		{"over the route's limit, length unknown", "/mcp", 1<<20 + 1, true, 413},
		{"little over a small limit, length known", "/small", 11, false, 413},
		{"little over a small limit, length unknown", "/small", 11, true, 413},
		{"far over, length known", "/mcp", 16 << 20, false, 413},
		{"far over, length unknown", "/mcp", 16 << 20, true, 413},
		{"within the door's limit, handler reads by itself", "/copy", 4 << 20, true, 200},
		{"over the door's limit, length known", "/copy", 4<<20 + 1, false, 413},
		{"over the door's limit, length unknown", "/copy", 4<<20 + 1, true, 413},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // net/http waits before it closes a connection
			var body io.Reader = bytes.NewReader(make([]byte, c.size))
			if c.chunked {
				body = io.MultiReader(body)
			}
			res, err := http.Post(srv.URL+c.path, "application/json", body)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != c.want || res.Close != (c.want == 413) {
				t.Errorf("%d, closes %t", res.StatusCode, res.Close)
			}
			if c.want == 413 {
				if e := readError(t, res); e.Error.Reason != fault.TooLarge {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}
