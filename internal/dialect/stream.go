package dialect

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"roundhouse/internal/wire"
)

// Options say how an answer is to be read.
type Options struct {
	// Lenient lets through what cannot be read, in the upstream's own bytes; the outcome
	// is Unparsed all the same. It is for recordings that may fail (C3, observe). What
	// has to be stripped is not let through even then.
	Lenient bool
	// MaxEvent, MaxHeld and MaxAnswer limit, in bytes, one event, what is held back, and
	// what is put together. 0 is the default: 64 MiB, 64 MiB, 256 MiB.
	MaxEvent, MaxHeld, MaxAnswer int
}

const (
	defaultMaxEvent  = 64 << 20
	defaultMaxHeld   = 64 << 20
	defaultMaxAnswer = 256 << 20
)

// ErrUnparsed is the error of a stream that could not be read. Why is in the text of
// the error and in the Result.
var ErrUnparsed = errors.New("the stream could not be read")

// eventKind says what an event means for the stream.
type eventKind uint8

const (
	plainEvent    eventKind = iota
	terminalEvent           // the turn ends here; some more may follow
	finalEvent              // nothing follows
)

// An answer puts the events of a stream together to what the same call would have
// given without a stream.
type answer interface {
	add(event string, data *node) eventKind
	// answer returns what came of it, nil if nothing did. It is called once.
	answer() *node
	// said returns what was peculiar.
	said() *remarks
}

// remarks is what an answer's events say about themselves.
type remarks struct {
	flags  []string
	misfit bool // whether some did not fit together with the others
}

func (r *remarks) said() *remarks { return r }

func (r *remarks) fits(ok bool) { r.misfit = r.misfit || !ok }

func newAnswer(c *Call) answer {
	switch c.api {
	case Chat:
		return &chatAnswer{tools: c.tools}
	case Messages:
		return &message{}
	}
	return &response{}
}

// Stream reads one streamed answer. Bytes go in as they come and come out as the
// client is to get them: event by event, unchanged but for what is stripped and
// scrubbed. From the event on that ends the turn they are held (C4); comments still
// pass, to keep the connection alive. The result does not depend on how the bytes were
// cut (C13).
//
// It must not be used concurrently.
type Stream struct {
	call *Call
	opts Options

	in     splitter
	frames int // how many there were
	parser parser
	scrub  scrubber
	queue  []*piece // what waits because its texts may end with an end-of-text string
	answer answer
	size   int // of what was put together, in bytes

	out     []byte // what Feed returns
	held    []byte
	holding bool
	last    *piece // what came last; the rest of its line end follows it

	done     bool  // whether the API's last event was seen
	broken   error // why the stream could not be read
	excess   error // which limit was exceeded
	raw      bool  // whether everything passes, since reading it was given up
	failed   bool  // whether nothing passes any more
	fault    *node // the upstream's own error
	noticed  bool  // whether the official clients take it for one
	flags    []string
	sequence int64 // the next number of a Responses event
}

// Stream returns a reader of one streamed answer to the call.
func (c *Call) Stream(opts Options) *Stream {
	opts.MaxEvent = cmp.Or(opts.MaxEvent, defaultMaxEvent)
	opts.MaxHeld = cmp.Or(opts.MaxHeld, defaultMaxHeld)
	opts.MaxAnswer = cmp.Or(opts.MaxAnswer, defaultMaxAnswer)
	return &Stream{call: c, opts: opts, scrub: scrubber{stop: c.endOfText}, answer: newAnswer(c), last: &piece{sent: true}}
}

// Feed takes bytes of the answer and returns what the client is to get of it now,
// which is valid until the next call. It ends with an event or a comment, so that a
// comment may be sent after it; at most the LF of a CRLF is missing. After an error,
// which is ErrUnparsed, nothing more comes; End is still to be called.
func (s *Stream) Feed(p []byte) (out []byte, err error) {
	s.out = s.out[:0]
	if s.raw {
		return append(s.out, p...), nil
	}
	if !s.failed {
		s.in.add(p)
		s.read()
	}
	if s.failed {
		return s.out, fmt.Errorf("%w: %w", ErrUnparsed, s.broken)
	}
	return s.out, nil
}

// Holding reports whether the event that ends the turn was seen, so that bytes are
// held.
func (s *Stream) Holding() bool { return s.holding }

// Done reports whether the API's last event was seen. Nothing is to be waited for then.
func (s *Stream) Done() bool { return s.done }

// Failure returns the event that tells the client of a failure, in place of what is
// held. The connection is to be aborted after it.
func (s *Stream) Failure(f Failure) []byte { return f.event(s.call.api, s.sequence) }

func (s *Stream) read() {
	for !s.failed && !s.raw {
		part, raw := s.in.next()
		if part == nothing {
			raw = s.in.buf
		}
		if len(raw) > s.opts.MaxEvent {
			if part == nothing {
				raw = nil
			}
			s.giveUp(fmt.Errorf("an event is longer than %d bytes", s.opts.MaxEvent), raw)
			return
		}
		switch part {
		case nothing:
			return
		case eventPart:
			s.event(raw)
		case comment:
			s.pass(&piece{raw: raw}) // even while events are held
		case blankPart, secondHalf:
			s.follow(raw)
		}
	}
}

// event takes the lines of one event.
func (s *Stream) event(raw []byte) {
	f := parseFrame(raw, s.frames == 0)
	s.frames++
	data := bytes.TrimSpace(f.data)
	p := &piece{raw: raw, frame: f}
	if s.done {
		// What comes behind the end is dropped: clients do not expect it (A.9).
		if len(data) > 0 && !isSentinel(data) {
			s.flags = append(s.flags, FlagAfterEnd)
		}
		p.sent, p.dropped, s.last = true, true, p
		return
	}
	switch {
	case len(data) == 0 || string(data) == "null":
	case isSentinel(data):
		if s.call.api == Chat {
			s.done, s.holding = true, true
			// A client that has seen it looks no further, not even whether the connection
			// ends well, so behind an error that goes unnoticed it must not see it.
			p.dropped = s.fault != nil && !s.noticed && !s.opts.Lenient
		}
	default:
		root, err := s.parser.parse(data)
		if err != nil || root.kind() != '{' {
			s.malformed(errors.New("an event's data is no JSON object"))
		} else {
			s.object(p, root)
		}
	}
	if s.excess != nil {
		s.malformed(s.excess)
	}
	if s.failed {
		return
	}
	p.hold = s.holding
	s.pass(p)
	if len(s.held) > s.opts.MaxHeld {
		s.excess = fmt.Errorf("more than %d bytes follow the end of the turn", s.opts.MaxHeld)
	}
	if s.excess != nil {
		s.giveUp(s.excess, nil)
	}
}

// isSentinel reports whether data is what ends a chat completion.
func isSentinel(data []byte) bool { return string(data) == "[DONE]" }

// object takes an event whose data is an object.
func (s *Stream) object(p *piece, root *node) {
	if s.call.api == Responses {
		if n, ok := root.get("sequence_number").integer(); ok {
			s.sequence = n + 1
		}
	}
	if isError(root) {
		s.holding = true
		s.blame(root, noticed(s.call.api, p.frame.event, root))
		s.done = s.done || s.call.api != Chat
		return
	}
	if s.size += len(p.frame.data); s.size > s.opts.MaxAnswer {
		s.excess = fmt.Errorf("the answer is longer than %d bytes", s.opts.MaxAnswer)
		return
	}
	if err := s.call.clean(p, &s.scrub, root); err != nil {
		s.malformed(err)
	}
	switch s.answer.add(p.frame.event, root) {
	case terminalEvent:
		s.holding = true
	case finalEvent:
		s.holding, s.done = true, true
		if r := root.get("response"); s.call.api == Responses && isError(r) {
			s.blame(r, true) // response.failed is how the API tells of it
		}
	}
}

// blame notes the upstream's own error. noticed tells that clients take it for one.
func (s *Stream) blame(fault *node, noticed bool) {
	if s.fault == nil {
		s.fault = fault
	}
	s.noticed = s.noticed || noticed
}

// noticed reports whether the official clients take an event for an error.
func noticed(api API, event string, root *node) bool {
	if api == Messages {
		return event == "error"
	}
	return !isNullNode(root.get("error"))
}

// malformed notes an event that cannot be read. It may pass if it need not be
// stripped.
func (s *Stream) malformed(err error) {
	if s.broken == nil {
		s.broken = err
	}
	if !s.opts.Lenient || s.call.strips() {
		s.failed = true
	}
}

// giveUp ends the reading: everything passes from here on, or nothing. raw is what was
// read and not yet passed on.
func (s *Stream) giveUp(err error, raw []byte) {
	if s.malformed(err); s.failed {
		return
	}
	s.scrub.closeAll()
	s.release()
	for _, part := range [][]byte{s.held, raw, s.in.rest()} {
		s.out = append(s.out, part...)
	}
	s.raw, s.holding, s.held, s.answer = true, false, nil, newAnswer(s.call)
}

// pass sends a piece on its way, behind those that wait.
func (s *Stream) pass(p *piece) {
	s.queue, s.last = append(s.queue, p), p
	s.release()
}

// release sends what need not wait any more.
func (s *Stream) release() {
	n := 0
	for n < len(s.queue) && s.queue[n].open == 0 {
		s.emit(s.queue[n])
		n++
	}
	s.queue = slices.Delete(s.queue, 0, n)
}

func (s *Stream) emit(p *piece) {
	p.sent = true
	if p.hold {
		s.held = append(s.held, p.bytes()...)
	} else {
		s.out = append(s.out, p.bytes()...)
	}
}

// follow sends bytes after what came last, wherever that went.
func (s *Stream) follow(raw []byte) {
	switch last := s.last; {
	case !last.sent:
		last.raw = append(last.raw, raw...)
	case last.dropped:
	case last.hold:
		s.held = append(s.held, raw...)
	default:
		s.out = append(s.out, raw...)
	}
}

// End ends the stream. cause is why nothing more comes, nil if it ended by itself. The
// bytes of a last event that lacks its blank line count if they make sense.
func (s *Stream) End(cause error) Result {
	s.out = s.out[:0]
	rest := s.in.rest()
	if !s.raw && !s.failed && len(rest) > 0 {
		f := parseFrame(rest, s.frames == 0)
		if data := bytes.TrimSpace(f.data); isSentinel(data) || len(data) > 0 && data[0] == '{' && wire.Valid(data) == nil {
			s.event(rest)
			rest = nil
		}
	}
	s.scrub.closeAll()
	s.release()
	r := s.verdict(cause)
	r.flag(s.flags...)
	r.Release = r.Outcome.Good() || s.fault != nil && s.broken == nil
	r.Abort = !r.Outcome.Good() && !(s.done && s.noticed)
	if s.opts.Lenient && !s.failed {
		r.Release = true
		r.Abort = cause != nil && !s.done
	}
	if r.Release {
		r.Tail = slices.Concat(s.out, s.held)
		if s.opts.Lenient && !s.call.strips() && !s.raw && !s.done {
			r.Tail = append(r.Tail, rest...)
		}
	}
	return *r
}

// verdict says what the stream was worth.
func (s *Stream) verdict(cause error) *Result {
	root := s.answer.answer()
	var r *Result
	if root == nil {
		r = &Result{Outcome: UpstreamCut, Reason: "the stream is empty", Usage: Usage{-1, -1}}
	} else {
		r = judge(s.call.api, root)
		if err := s.call.finish(r, root, root.append(nil)); err != nil && s.broken == nil {
			s.broken = err
		}
	}
	remarks := s.answer.said()
	r.flag(remarks.flags...)
	if remarks.misfit && s.broken == nil {
		s.broken = errors.New("the pieces of the answer do not fit together")
	}
	switch {
	case s.broken != nil:
		r.Outcome, r.Reason = Unparsed, s.broken.Error()
	case s.fault != nil:
		r.Outcome, r.Reason = UpstreamError, errorText(s.fault)
	case r.Outcome.Good() && !s.done, r.Outcome == UpstreamCut && cause != nil:
		r.Outcome, r.Reason = UpstreamCut, "the stream ended before its end"
		if cause != nil {
			r.Reason += ": " + cause.Error()
		}
	}
	return r
}
