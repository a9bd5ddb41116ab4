package upstream

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"roundhouse/internal/wire"
)

// A recorder is a Handler that writes down what it is told.
type recorder struct {
	pause func() // called first, if not nil

	mu     sync.Mutex
	frames []wire.Frame
	errs   []error
	events []string
}

func (r *recorder) note(format string, args ...any) {
	if r.pause != nil {
		r.pause()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
}

func (r *recorder) Frame(f wire.Frame, call []byte) {
	if call != nil {
		r.note("frame of %s: %s", call, f.Raw)
	} else {
		r.note("frame %s", f.Raw)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames = append(r.frames, f)
}

func (r *recorder) Failed(call []byte, err error, sent bool) {
	r.note("failed %s, sent %t: %v", call, sent, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *recorder) Oversize(id []byte, kind wire.Kind, size int64) {
	r.note("oversize %s %s %d", id, kind, size)
}

func (r *recorder) Noise(line []byte) { r.note("noise %s", line) }

func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// feed gives output to a line reader in pieces of a size, as reads would.
func feed(r *lineReader, output string, size int) {
	for len(output) > 0 {
		n := copy(r.space(), output[:min(size, len(output))])
		r.add(n)
		output = output[n:]
	}
	r.end()
}

var pieceSizes = []int{1, 2, 7, 100, 64 << 10, 1 << 30}

const (
	one   = `{"jsonrpc":"2.0","id":1,"result":{}}`
	two   = `{"result":{"c":"北🙂"},"id":2,"jsonrpc":"2.0"}`
	said  = `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`
	asked = `{"jsonrpc":"2.0","id":3,"method":"ping"}`
)

// P6: what is no JSON-RPC is skipped and counted, wherever reads cut it.
func TestNoiseIsToldAndFramesAreFound(t *testing.T) {
	refused := func(id, why string) string {
		return `frame {"jsonrpc":"2.0","id":` + id + `,"error":{"code":-32603,"message":"the server's response is not valid JSON-RPC: ` + why + `"}}`
	}
	for _, c := range []struct {
		name, output string
		want         []string
	}{
		{"frames", one + "\n" + two + "\n", []string{"frame " + one, "frame " + two}},
		{"banner", "Server v1.0 started\n" + one + "\n", []string{"noise Server v1.0 started", "frame " + one}},
		{"log objects", `{"level":"info","msg":"x"}` + "\n" + `{"id":1,"result":{}}` + "\n" + one + "\n",
			[]string{`noise {"level":"info","msg":"x"}`, `noise {"id":1,"result":{}}`, "frame " + one}},
		{"blank lines", "\n\r\n \t\n" + one + "\n\n", []string{"noise ", "noise ", "noise ", "frame " + one, "noise "}},
		{"CRLF and white space", "  " + one + " \r\n\t" + two + "\r\n", []string{"frame " + one, "frame " + two}},
		{"colours", "\x1b[31mred\x1b[0m\x07 text\x00\n" + one + "\n", []string{"noise red text", "frame " + one}},
		{"colour directly before a response", "\x1b[0m" + one + "\n", []string{"noise ", "frame " + one}},
		{"array", `["a",{"b":1}]` + "\n[1,2\n[]\n" + one + "\n", []string{`noise ["a",{"b":1}]`, "noise [1,2", "noise []", "frame " + one}},
		{"batch", "[" + one + " , " + said + ",7]\n", []string{"frame " + one, "frame " + said, "noise 7"}},
		{"banner directly before a response", "Loading..." + one + "\n" + two + "\n", []string{"noise Loading...", "frame " + one, "frame " + two}},
		{"logged request", "received " + asked + "\n", []string{"noise received " + asked}},
		{"logged response", "sent " + one + " in 3 ms\n" + one + "\n", []string{"noise sent " + one + " in 3 ms", "frame " + one}},
		{"no line end at the end", two + "\n" + one, []string{"frame " + two, "frame " + one}},
		{"cut off at the end", two + "\n" + one[:len(one)-3], []string{"frame " + two, "noise " + one[:len(one)-3]}},
		{"byte order mark", "\xef\xbb\xbf" + one + "\n", []string{"frame " + one}},
		{"byte order mark later", one + "\n\xef\xbb\xbf" + asked + "\n", []string{"frame " + one, "noise \ufeff" + asked}},
		{"between request and response", asked + "\nnoise\n" + said + "\n", []string{"frame " + asked, "noise noise", "frame " + said}},
		{"no UTF-8", "caf\xe9\n", []string{"noise caf\ufffd"}},
		{"response in no UTF-8", `{"jsonrpc":"2.0","id":1,"result":"caf` + "\xe9\"}\n" + two + "\n",
			[]string{`noise {"jsonrpc":"2.0","id":1,"result":"caf` + "\ufffd\"}", refused("1", "parse JSON: a string is not UTF-8"), "frame " + two}},
		{"result and error", `{"jsonrpc":"2.0","id":"a","result":1,"error":null}` + "\n",
			[]string{`noise {"jsonrpc":"2.0","id":"a","result":1,"error":null}`, refused(`"a"`, "parse frame: it has both a result and an error")}},
		{"broken response, id last", `{"result":{"a":NaN},"jsonrpc":"2.0","id":"a"}` + "\n",
			[]string{`noise {"result":{"a":NaN},"jsonrpc":"2.0","id":"a"}`, refused(`"a"`, "parse JSON: a value must start here (at byte 15)")}},
		{"broken request", `{"jsonrpc":"2.0","id":1,"method":"x","params":1}` + "\n", []string{`noise {"jsonrpc":"2.0","id":1,"method":"x","params":1}`}},
		{"nothing", "", nil},
	} {
		for _, size := range pieceSizes {
			var h recorder
			feed(&lineReader{handler: &h, max: 1 << 20}, c.output, size)
			if !slices.Equal(h.events, c.want) {
				t.Errorf("%s, in pieces of %d:\n got %q\nwant %q", c.name, size, h.events, c.want)
			}
		}
	}
}

func TestNoiseIsShownShort(t *testing.T) {
	got := clean([]byte(strings.Repeat("é", 300)))
	if want := strings.Repeat("é", 256); string(got) != want {
		t.Errorf("got %d bytes", len(got))
	}
	for in, want := range map[string]string{
		"a\tb\x1b[1;32mc\x1b[Kd\x1b": "a bcd", "\x1b[": "[", "\x1b[3\n1m": "[31m", "\u009b31m\u202ex": "31m\u202ex", "": "",
	} {
		if got := string(clean([]byte(in))); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// P7: a line may be as long as the limit. One byte more fails that call and keeps the
// framing, whether the id stands first or last.
func TestLineOverTheLimitFailsItsCallAlone(t *testing.T) {
	const limit = 200 << 10
	long := func(size int, end string) string {
		const head = `{"jsonrpc":"2.0","result":"`
		return head + strings.Repeat("x", size-len(head)-len(end)) + end
	}
	exact, over := long(limit, `","id":7}`), long(limit+1, `","id":8}`)
	first := `{"id":9,"jsonrpc":"2.0","result":"` + strings.Repeat("y", 3*limit) + `"}`
	log := strings.Repeat("z", 2*limit)
	cut := `{"id":10,"jsonrpc":"2.0","error":"` + strings.Repeat("y", limit)
	banner := "Loading..." + over
	output := strings.Join([]string{exact, over, one, exact + "\r", over + "\r", first, two, log, banner, one, cut}, "\n")
	want := []string{
		"frame " + exact, fmt.Sprintf("oversize 8 response %d", limit+1), "frame " + one,
		"frame " + exact, fmt.Sprintf("oversize 8 response %d", limit+1), fmt.Sprintf("oversize 9 response %d", len(first)), "frame " + two,
		fmt.Sprintf("oversize  invalid %d", len(log)), fmt.Sprintf("oversize 8 response %d", len(banner)), "frame " + one,
		fmt.Sprintf("oversize 10 response %d", len(cut)),
	}
	for _, size := range []int{1000, 4096, 64 << 10, 1 << 30} {
		var h recorder
		r := lineReader{handler: &h, max: limit}
		feed(&r, output, size)
		for i := range max(len(want), len(h.events)) {
			if i >= len(want) || i >= len(h.events) || h.events[i] != want[i] {
				t.Fatalf("in pieces of %d: %d events, wrong from %d on: %.80q", size, len(h.events), i, h.events[i:])
			}
		}
		if len(r.buf) > limit+2 {
			t.Errorf("in pieces of %d: a buffer of %d bytes is kept", size, len(r.buf))
		}
	}
}

// P7: while a line over the limit is skipped, its bytes are not held.
func TestLineOverTheLimitIsNotHeld(t *testing.T) {
	r := lineReader{handler: &recorder{}, max: 4 * readBytes}
	for range 100 {
		space := r.space()
		for i := range space {
			space[i] = 'x'
		}
		r.add(len(space))
	}
	if r.over == nil || len(r.buf) > readBytes {
		t.Errorf("a buffer of %d bytes is held", len(r.buf))
	}
}

// P7: 64 MiB by default, and not one byte of it is lost.
func TestLineOfTheDefaultLimit(t *testing.T) {
	const head, end = `{"jsonrpc":"2.0","id":1,"result":"`, `"}`
	line := head + strings.Repeat("x", wire.MaxFrame-len(head)-len(end)) + end
	out := strings.NewReader(line + "\n" + two + "\n" + line[:len(line)-1] + " }\n" + one + "\n")
	var h recorder
	if err := NewStdio(StdioConfig{In: newFakeInput(nil), Out: out}).Run(&h); err != io.EOF {
		t.Errorf("Run gives %v", err)
	}
	if len(h.events) != 4 || h.events[0] != "frame "+line || h.events[1] != "frame "+two ||
		h.events[2] != fmt.Sprintf("oversize 1 response %d", wire.MaxFrame+1) || h.events[3] != "frame "+one {
		t.Errorf("%d events: %.60q", len(h.events), h.events)
	}
}

// A frame's Raw is its receiver's alone: later output does not change it, and
// appending to it does not change others.
func TestFramesShareNoMemory(t *testing.T) {
	var lines []string
	for i := range 40 {
		size := []int{10, 1000, readBytes - 60, readBytes, readBytes + 1, 5 * readBytes}[i%6]
		lines = append(lines, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":"%s"}`, i, strings.Repeat("x", size)))
	}
	big := strings.Repeat("y", 2*readBytes)
	parts := []string{`{"jsonrpc":"2.0","id":"a","result":"` + big + `"}`, `{"jsonrpc":"2.0","id":"b","result":"` + big + `"}`}
	output := strings.Join(lines, "\n") + "\n[" + strings.Join(parts, ",") + "]\n"
	for _, size := range pieceSizes[2:] {
		var h recorder
		feed(&lineReader{handler: &h, max: 1 << 20}, output, size)
		for _, f := range h.frames {
			_ = append(f.Raw, "overwritten"...)
		}
		for i, want := range append(slices.Clone(lines), parts...) {
			if i >= len(h.frames) || !bytes.Equal(h.frames[i].Raw, []byte(want)) || string(h.frames[i].ID()) == "" {
				t.Fatalf("in pieces of %d: frame %d is wrong", size, i)
			}
		}
	}
}

// P6, P7: no output ends the reading, grows the memory or depends on how it was cut.
func FuzzLines(f *testing.F) {
	for _, s := range []string{one + "\n" + two, "x" + one + "\n", "\xef\xbb\xbf\n\r\n" + asked, "[" + one + "," + said + "]\n", `{"jsonrpc":"2.0","id":1,"result":}` + "\n"} {
		f.Add([]byte(s), uint16(40), uint16(3))
	}
	f.Fuzz(func(t *testing.T, output []byte, limit, size uint16) {
		var pieces, whole recorder
		most := int(limit) + 3 // the first bytes of a byte order mark count until it is seen to be one
		r := lineReader{handler: &pieces, max: most}
		feed(&r, string(output), int(size)+1)
		feed(&lineReader{handler: &whole, max: most}, string(output), len(output)+1)
		if !slices.Equal(pieces.events, whole.events) {
			t.Fatalf("in pieces %q, whole %q", pieces.events, whole.events)
		}
		if len(r.buf) > max(readBytes, most+2) {
			t.Fatalf("a buffer of %d bytes is kept", len(r.buf))
		}
		for _, frame := range pieces.frames {
			if len(frame.Raw) > most && !bytes.Contains(frame.Raw, []byte("not valid JSON-RPC")) {
				t.Fatalf("a frame of %d bytes passed", len(frame.Raw))
			}
		}
	})
}
