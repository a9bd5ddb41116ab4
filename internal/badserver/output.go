package badserver

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

const banner = "badserver v1.0 started"

// output is the server's stdout. One goroutine writes, so that lines stay whole
// however many calls answer at once.
type output struct {
	// Constant after newOutput.
	opts *options

	writes chan write
}

// write is one thing for the writing goroutine to do. Its sender waits for done.
type write struct {
	data  []byte
	close bool // close stdout after the data
	exit  bool // end the process with code after the data
	code  int
	done  chan struct{}
}

// newOutput starts the goroutine that owns w. It lives as long as the process.
func newOutput(w io.Writer, opts *options) *output {
	o := &output{opts: opts, writes: make(chan write)}
	go func() {
		for job := range o.writes {
			// Nobody is left to be told that stdout is gone.
			_, _ = w.Write(job.data)
			if job.exit {
				os.Exit(job.code)
			}
			if c, ok := w.(io.Closer); ok && job.close {
				_ = c.Close()
				w = io.Discard
			}
			close(job.done)
		}
	}()
	return o
}

func (o *output) do(job write) {
	job.done = make(chan struct{})
	o.writes <- job
	<-job.done
}

// raw writes bytes as they are.
func (o *output) raw(data []byte) { o.do(write{data: data}) }

// close closes stdout; what is written later is lost.
func (o *output) close() { o.do(write{close: true}) }

// exit ends the process between two lines, after writing last, if there is one.
func (o *output) exit(code int, last []byte) {
	if last != nil && !o.opts.noFinalNewline {
		last = o.lines(last)
	}
	o.do(write{data: last, exit: true, code: code})
}

// lines joins lines, each with its line end.
func (o *output) lines(lines ...[]byte) []byte {
	end := "\n"
	if o.opts.cr {
		end = "\r\n"
	}
	var data []byte
	for _, line := range lines {
		data = append(data, line...)
		data = append(data, end...)
	}
	return data
}

// begin writes what comes before everything else.
func (o *output) begin() {
	var data []byte
	if o.opts.bom {
		data = append(data, "\ufeff"...)
	}
	o.raw(append(data, o.lines(o.noise(json.RawMessage("0"))...)...))
}

// noise is the chosen lines that are not JSON-RPC. A log object carries id, to
// tempt a reader that takes everything with an id for a response.
func (o *output) noise(id json.RawMessage) [][]byte {
	var lines [][]byte
	if o.opts.banner {
		lines = append(lines, []byte(banner))
	}
	if o.opts.jsonLog {
		lines = append(lines,
			[]byte(`{"level":"info","msg":"badserver is busy"}`),
			fmt.Appendf(nil, `{"level":"info","id":%s,"msg":"badserver saw a request"}`, id),
			[]byte(`["badserver",1,null]`))
	}
	if o.opts.blank {
		lines = append(lines, nil)
	}
	if o.opts.ansi {
		lines = append(lines, []byte("\x1b[32m✔\x1b[0m badserver \x1b[1mready\x1b[0m"))
	}
	return lines
}

// notify sends a notification; params is JSON.
func (o *output) notify(method, params string) {
	o.raw(o.lines(notification(method, params)))
}

func notification(method, params string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)
}

// bye is the last line of a server whose output lacks the final line end.
func bye() []byte {
	return notification("notifications/message", `{"level":"info","data":"bye"}`)
}

// answer sends the response to a request of the given method. Member is "result"
// or "error" and value its JSON, which is sent verbatim.
func (o *output) answer(id json.RawMessage, method, member string, value []byte) {
	var lines [][]byte
	if o.opts.noiseBetween {
		noise := o.noise(id)
		if noise == nil {
			noise = [][]byte{[]byte(banner)}
		}
		lines = append(lines, noise...)
	}
	call := method == "tools/call"
	if call && o.opts.unknownID {
		lines = append(lines, response(json.RawMessage(`"nobody-asked"`), "result", []byte(`{}`), false))
	}
	if call && o.opts.errorNullID {
		lines = append(lines, response(json.RawMessage("null"), "error", []byte(`{"code":-32600,"message":"something was wrong"}`), false))
	}
	if call && o.opts.floatID {
		id = respell(id)
	}
	line := response(id, member, value, o.opts.resultBeforeID)
	if o.opts.batch && method != "initialize" {
		line = append(append([]byte("["), line...), ']')
	}
	if o.opts.bannerNoNewline && method == "initialize" {
		line = append([]byte(banner), line...)
	}
	lines = append(lines, line)
	if call && o.opts.dupID {
		lines = append(lines, line)
	}
	o.raw(o.lines(lines...))
}

func response(id json.RawMessage, member string, value []byte, valueFirst bool) []byte {
	line := make([]byte, 0, len(value)+len(id)+64)
	line = append(line, `{"jsonrpc":"2.0"`...)
	if valueFirst {
		line = fmt.Appendf(line, `,%q:`, member)
		line = append(line, value...)
		line = fmt.Appendf(line, `,"id":%s}`, id)
		return line
	}
	line = fmt.Appendf(line, `,"id":%s,%q:`, id, member)
	line = append(line, value...)
	return append(line, '}')
}

// respell writes an id that is equal as a JSON value and different as bytes.
func respell(id json.RawMessage) json.RawMessage {
	var text string
	if json.Unmarshal(id, &text) != nil {
		return append(id[:len(id):len(id)], ".0"...)
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range text {
		if c < 0x10000 {
			fmt.Fprintf(&b, `\u%04x`, c)
		} else {
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return json.RawMessage(b.String())
}

// quote returns s as a JSON string, without the escapes of HTML.
func quote(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err) // A string always encodes.
	}
	return strings.TrimSuffix(b.String(), "\n")
}
