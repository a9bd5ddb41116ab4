package dialect_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"roundhouse/internal/dialect"
)

var update = flag.Bool("update", false, "write what comes out into the fixtures")

// A fixture is a stream and what is to become of it. Its first lines say what it is
// about and which properties it is for.
type fixture struct {
	name, about string
	setup       struct {
		API       string          `json:"api"`
		Engine    dialect.Engine  `json:"engine"`
		EndOfText string          `json:"endOfText"`
		Experts   bool            `json:"experts"`
		Tokens    bool            `json:"tokens"`
		Lenient   bool            `json:"lenient"`
		Request   json.RawMessage `json:"request"`
	}
	stream string
	want   string
	path   string
}

var apis = map[string]dialect.API{"chat": dialect.Chat, "messages": dialect.Messages, "responses": dialect.Responses}

func fixtures(t testing.TB) (all []*fixture) {
	t.Helper()
	paths, err := filepath.Glob("testdata/streams/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f := &fixture{name: strings.TrimSuffix(filepath.Base(path), ".txtar"), path: path}
		var setup string
		f.about, setup, _ = strings.Cut(string(text), "-- call --\n")
		setup, f.stream, _ = strings.Cut(setup, "-- stream --\n")
		f.stream, f.want, _ = strings.Cut(f.stream, "-- want --\n")
		if err := json.Unmarshal([]byte(setup), &f.setup); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, f)
	}
	return all
}

// call returns the call of the fixture's request.
func (f *fixture) call(t testing.TB) *dialect.Call {
	t.Helper()
	body := f.setup.Request
	if body == nil {
		body = json.RawMessage(`{"stream":true}`)
	}
	r, err := dialect.ParseRequest(apis[f.setup.API], body)
	if err != nil {
		t.Fatal(err)
	}
	return r.Forward(dialect.Profile{Engine: f.setup.Engine, EndOfText: f.setup.EndOfText, Experts: f.setup.Experts}, f.setup.Tokens)
}

func (f *fixture) options() dialect.Options { return dialect.Options{Lenient: f.setup.Lenient} }

// outcome is all that came of a stream, in a form to compare and to write down.
type outcome struct {
	Outcome  dialect.Outcome
	Reason   string           `json:",omitempty"`
	Finish   string           `json:",omitempty"`
	Flags    []string         `json:",omitempty"`
	Usage    dialect.Usage    `json:",omitzero"`
	Tokens   []dialect.Tokens `json:",omitempty"`
	Release  bool
	Abort    bool
	Response json.RawMessage `json:",omitempty"`
	Out      []string        // what was let through at once
	Tail     []string        `json:",omitempty"`
	Done     bool
	Failed   bool `json:",omitempty"`
}

// run feeds a stream in pieces of a size, 0 for all at once.
func run(call *dialect.Call, opts dialect.Options, stream string, size int) outcome {
	s := call.Stream(opts)
	var out bytes.Buffer
	var err error
	for rest := []byte(stream); len(rest) > 0; {
		n := len(rest)
		if size > 0 {
			n = min(size, n)
		}
		// The stream must not hold on to what it is fed.
		piece := bytes.Clone(rest[:n])
		var p []byte
		p, err = s.Feed(piece)
		out.Write(p)
		clear(piece)
		rest = rest[n:]
	}
	return ended(s, out.String(), err)
}

func ended(s *dialect.Stream, out string, err error) outcome {
	done := s.Done()
	r := s.End(nil)
	return outcome{
		Outcome: r.Outcome, Reason: r.Reason, Finish: r.Finish, Flags: r.Flags, Usage: r.Usage, Tokens: r.Tokens,
		Release: r.Release, Abort: r.Abort, Response: r.Response, Out: lines(out), Tail: lines(string(r.Tail)),
		Done: done, Failed: errors.Is(err, dialect.ErrUnparsed),
	}
}

func lines(s string) []string { return strings.SplitAfter(s, "\n") }

// A.10, A.11, A.16, A.19, C4, C10, C13: every fixture comes to what it says, in whatever
// pieces it comes.
func TestStreamsComeToTheSameInAnyPieces(t *testing.T) {
	for _, f := range fixtures(t) {
		t.Run(f.name, func(t *testing.T) {
			call := f.call(t)
			got := run(call, f.options(), f.stream, 0)
			var text bytes.Buffer
			e := json.NewEncoder(&text)
			e.SetEscapeHTML(false)
			e.SetIndent("", "  ")
			if err := e.Encode(got); err != nil {
				t.Fatalf("%v: %s", err, got.Response)
			}
			switch {
			case *update:
				setup := strings.SplitAfter(read(t, f.path), "-- want --\n")[0]
				setup = strings.TrimSuffix(setup, "-- want --\n")
				if err := os.WriteFile(f.path, []byte(setup+"-- want --\n"+text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			case text.String() != f.want:
				t.Errorf("got\n%s\nwant\n%s", text.String(), f.want)
			}
			for _, size := range []int{1, 7} {
				if in := run(call, f.options(), f.stream, size); !reflect.DeepEqual(in, got) {
					t.Errorf("in pieces of %d bytes: got\n%+v\nwant\n%+v", size, in, got)
				}
			}
		})
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A.9, A.11, cases 15 and 22: framing does not matter. What is legal comes to the same,
// and is passed on in its own bytes.
func TestFramingsComeToTheSame(t *testing.T) {
	framings := map[string]func(string) string{
		"CRLF":            func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
		"CR":              func(s string) string { return strings.ReplaceAll(s, "\n", "\r") },
		"mark":            func(s string) string { return "\xef\xbb\xbf" + s },
		"no space":        func(s string) string { return strings.ReplaceAll("\n"+s, "\ndata: ", "\ndata:")[1:] },
		"ids":             func(s string) string { return strings.ReplaceAll("\n"+s, "\ndata: ", "\nid: 7\ndata: ")[1:] },
		"no last blank":   func(s string) string { return strings.TrimSuffix(s, "\n") },
		"no last newline": func(s string) string { return strings.TrimRight(s, "\n") },
	}
	for _, f := range fixtures(t) {
		want := run(f.call(t), f.options(), f.stream, 0)
		for name, reframe := range framings {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				stream := reframe(f.stream)
				var got outcome
				for i, size := range []int{0, 1, 7} {
					o := run(f.call(t), f.options(), stream, size)
					if i > 0 && !reflect.DeepEqual(o, got) {
						t.Errorf("in pieces of %d bytes: got\n%+v\nwant\n%+v", size, o, got)
					}
					got = o
				}
				if f.setup.Engine == "" && got.Release && !strings.HasPrefix(stream, strings.Join(got.Out, "")) && !strings.Contains(f.about, "also while bytes are held") {
					t.Errorf("passed on %q", got.Out)
				}
				got.Out, got.Tail = want.Out, want.Tail
				if strings.HasPrefix(name, "no last") {
					got.Done = want.Done
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("got\n%+v\nwant\n%+v", got, want)
				}
			})
		}
	}
}

// C4: nothing is held before the event that ends the turn, and everything from it on.
func TestBytesFlowUntilTheTurnEnds(t *testing.T) {
	for _, c := range []struct {
		api          string
		flows, holds []string
	}{
		{"chat", []string{
			"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n", ": comment\n", "\n", "event: x\n\n", "\n"}, []string{
			"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
			"data: {\"choices\":[],\"usage\":{}}\n\n", "data: [DONE]\n\n"}},
		{"chat", nil, []string{"data: [DONE]\n\n"}},
		{"chat", nil, []string{"data: {\"error\":{\"message\":\"x\"}}\n\n", "data: [DONE]\n\n"}},
		{"messages", []string{
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n",
			"event: ping\ndata: {\"type\":\"ping\"}\n\n",
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{}}\n\n"}, []string{
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{}}\n\n",
			"event: ping\ndata: {\"type\":\"ping\"}\n\n",
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"}},
		{"messages", nil, []string{"event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n"}},
		{"responses", []string{
			"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{}}\n\n"}, []string{
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{}}\n\n"}},
	} {
		call := dialect.Opaque(apis[c.api], nil)
		s := call.Stream(dialect.Options{Lenient: true})
		for _, event := range c.flows {
			if out, err := s.Feed([]byte(event)); string(out) != event || err != nil || s.Holding() {
				t.Errorf("%s: of %q came %q, error %v", c.api, event, out, err)
			}
		}
		for _, event := range c.holds {
			if out, err := s.Feed([]byte(event)); len(out) > 0 || err != nil || !s.Holding() {
				t.Errorf("%s: of %q came %q, error %v", c.api, event, out, err)
			}
			if out, _ := s.Feed([]byte(": keepalive\n")); string(out) != ": keepalive\n" {
				t.Errorf("%s: a comment did not pass: %q", c.api, out)
			}
		}
		if !s.Done() {
			t.Errorf("%s: it is not done after %q", c.api, c.holds)
		}
		if r := s.End(nil); string(r.Tail) != strings.Join(c.holds, "") {
			t.Errorf("%s: the tail is %q", c.api, r.Tail)
		}
	}
}

// C4, A.16 row 39: an event waits only while its text may go on to be the end-of-text
// string.
func TestOnlyWhatMayBeScrubbedWaits(t *testing.T) {
	r, err := dialect.ParseRequest(dialect.Chat, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ waits, goesOn string }{
		{`{"content":"a<"}`, `{"content":"b"}`},
		{`{"reasoning":"a</s"}`, `{"content":"b"}`},
		{`{"content":"</"}`, `{"tool_calls":[{"index":0}]}`},
	} {
		s := r.Forward(dialect.Profile{EndOfText: "</s>"}, false).Stream(dialect.Options{})
		chunk := func(delta string) string {
			return "data: {\"choices\":[{\"index\":0,\"delta\":" + delta + "}]}\n\n"
		}
		for _, delta := range []string{c.waits, `{}`, `{"content":""}`, `{"tool_calls":[]}`} {
			if out, err := s.Feed([]byte(chunk(delta))); len(out) > 0 || err != nil {
				t.Errorf("%s did not wait: %q, error %v", delta, out, err)
			}
		}
		if out, _ := s.Feed([]byte(chunk(c.goesOn))); !bytes.HasPrefix(out, []byte(chunk(c.waits))) || !bytes.HasSuffix(out, []byte(chunk(c.goesOn))) {
			t.Errorf("%s did not let %s go: %q", c.goesOn, c.waits, out)
		}
	}
}

// A.14, C11: a limit ends a strict stream, and lets a lenient one through.
func TestLimitsEndTheReading(t *testing.T) {
	long := strings.Repeat("a", 100)
	chunk := func(text string) string {
		return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", text)
	}
	finish := "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\n"
	for name, c := range map[string]struct {
		opts   dialect.Options
		stream string
	}{
		"an event":            {dialect.Options{MaxEvent: 90}, chunk("a") + chunk(long) + finish + "data: [DONE]\n\n"},
		"an event that grows": {dialect.Options{MaxEvent: 90}, chunk("a") + "data: " + long},
		"what is held":        {dialect.Options{MaxHeld: 90}, chunk("a") + finish + chunk("b") + "data: [DONE]\n\n"},
		"the answer":          {dialect.Options{MaxAnswer: 150}, chunk("a") + chunk(long) + chunk("b") + "data: [DONE]\n\n"},
	} {
		for _, size := range []int{0, 1, 7} {
			call := dialect.Opaque(dialect.Chat, nil)
			strict := run(call, c.opts, c.stream, size)
			if strict.Outcome != dialect.Unparsed || strict.Release || !strict.Failed || strings.Join(strict.Out, "") != chunk("a") {
				t.Errorf("%s, strict: %+v", name, strict)
			}
			c.opts.Lenient = true
			lenient := run(call, c.opts, c.stream, size)
			if all := strings.Join(lenient.Out, "") + strings.Join(lenient.Tail, ""); lenient.Outcome != dialect.Unparsed || !lenient.Release || all != c.stream {
				t.Errorf("%s, lenient: %+v", name, lenient)
			}
			c.opts.Lenient = false
		}
	}
}

// A.16 rows 33 and 35: what ended the stream is told, unless it had ended before.
func TestACutIsTold(t *testing.T) {
	start := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"
	end := "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	reset := errors.New("connection reset")
	call := dialect.Opaque(dialect.Chat, nil)

	s := call.Stream(dialect.Options{})
	s.Feed([]byte(start))
	if r := s.End(reset); r.Outcome != dialect.UpstreamCut || r.Release || !r.Abort || !strings.Contains(r.Reason, "connection reset") || !bytes.Contains(r.Response, []byte(`"content":"a"`)) {
		t.Errorf("cut: %+v", r)
	}
	// Who looks on does not end what goes well.
	for cause, abort := range map[error]bool{nil: false, reset: true} {
		s = call.Stream(dialect.Options{Lenient: true})
		s.Feed([]byte(start))
		if r := s.End(cause); r.Outcome != dialect.UpstreamCut || !r.Release || r.Abort != abort {
			t.Errorf("cut, lenient: %+v", r)
		}
	}
	s = call.Stream(dialect.Options{})
	s.Feed([]byte(start + end))
	if r := s.End(reset); r.Outcome != dialect.Complete || !r.Release || r.Abort {
		t.Errorf("cut behind its end: %+v", r)
	}
}

// A.11: lines of data are joined by LF, not glued together.
func TestLinesOfDataAreJoinedByLF(t *testing.T) {
	stream := "data: {\"choices\":[{\"index\":1\ndata: 2,\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	if got := run(dialect.Opaque(dialect.Chat, nil), dialect.Options{}, stream, 0); got.Outcome != dialect.Unparsed {
		t.Errorf("%+v", got)
	}
}

// C13: an event that lacks its blank line is not lost when all may pass.
func TestAnEventWithoutItsBlankLinePasses(t *testing.T) {
	stream := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n"
	for _, rest := range []string{"", "data: {\"cho", ": comm", "event: x\n"} {
		got := run(dialect.Opaque(dialect.Chat, nil), dialect.Options{Lenient: true}, stream+rest, 0)
		if all := strings.Join(got.Out, "") + strings.Join(got.Tail, ""); all != stream+rest {
			t.Errorf("let through %q", all)
		}
	}
}

// A.11: broken UTF-8 is not taken for text, wherever it stands.
func TestBrokenUTF8IsNotRead(t *testing.T) {
	for _, text := range []string{"\xff", "\xe5\x8c", "\xed\xa0\x80"} {
		stream := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" + text + "\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
		for _, size := range []int{0, 1, 7} {
			if got := run(dialect.Opaque(dialect.Chat, nil), dialect.Options{}, stream, size); got.Outcome != dialect.Unparsed || !got.Failed || strings.Join(got.Out, "") != "" {
				t.Errorf("%q: %+v", text, got)
			}
		}
	}
}

// C-13 to C-19: an event may be longer than any buffer.
func TestLongEventsAreRead(t *testing.T) {
	long := strings.Repeat("北", 1<<20)
	stream := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" + long + "\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	got := run(dialect.Opaque(dialect.Chat, nil), dialect.Options{}, stream, 4<<10)
	if got.Outcome != dialect.Complete || strings.Join(got.Out, "")+strings.Join(got.Tail, "") != stream || !bytes.Contains(got.Response, []byte(long)) {
		t.Errorf("%s after %d bytes", got.Outcome, len(strings.Join(got.Out, "")))
	}
}

// A.11: the names of an event are its own, however alike those of the event before are
// spelled.
func TestNamesAreReadAsTheyAreSpelled(t *testing.T) {
	event := func(name string) string {
		return "data: {\"choices\":[{\"index\":0,\"delta\":{}," + name + ":1}]}\n\n"
	}
	stream := event(`"x\\u0062"`) + event(`"x\u0062"`) + event(`"xc"`) + event(`"xb"`)
	got := run(dialect.Opaque(dialect.Chat, nil), dialect.Options{}, stream, 0)
	if want := `"x\\u0062":1,"xb":1,"xc":1}`; !strings.Contains(string(got.Response), want) {
		t.Errorf("got %s, want %s in it", got.Response, want)
	}
}

// chunks is a stream of many small events.
func chunks(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\"m\",\"prompt_token_ids\":null,\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":{\"content\":[{\"token\":\" word\",\"logprob\":-0.25,\"bytes\":[32,119],\"top_logprobs\":[]}]},\"finish_reason\":null,\"token_ids\":[%d]}]}\n\n", i)
	}
	b.WriteString("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	return b.Bytes()
}

func BenchmarkStream(b *testing.B) {
	r, err := dialect.ParseRequest(dialect.Chat, []byte(`{"stream":true}`))
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]dialect.Profile{"plain": {}, "vllm": {Engine: dialect.VLLM}, "vllm scrubbed": {Engine: dialect.VLLM, EndOfText: "<|im_end|>"}} {
		b.Run(name, func(b *testing.B) {
			call := r.Forward(c, true)
			stream := chunks(1000)
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			for b.Loop() {
				s := call.Stream(dialect.Options{})
				for rest := stream; len(rest) > 0; {
					n := min(400, len(rest))
					s.Feed(rest[:n])
					rest = rest[n:]
				}
				if r := s.End(nil); r.Outcome != dialect.Complete {
					b.Fatal(r.Reason)
				}
			}
		})
	}
}
