package wire

import (
	"bytes"
	"iter"
	"slices"
)

// Edit replaces a range of a text. An empty range inserts.
type Edit struct {
	At   Span
	With []byte
}

// Splice appends raw, with the edits applied, to dst and returns it. The edits must
// be in ascending order, inside raw and must not overlap; anything else is a
// programming error and panics. It allocates only if dst has too little room, and
// dst must not share memory with raw.
func Splice(dst, raw []byte, edits ...Edit) []byte {
	var room [9][]byte
	parts := append(room[:0], dst)
	size, done := 0, 0
	for _, e := range edits {
		if e.At.Start < done || e.At.End < e.At.Start || e.At.End > len(raw) {
			panic("wire: edits overlap or are out of order")
		}
		parts = append(parts, raw[done:e.At.Start], e.With)
		size += e.At.Start - done + len(e.With)
		done = e.At.End
	}
	parts = append(parts, raw[done:])
	size += len(raw) - done
	if cap(dst)-len(dst) < size {
		return bytes.Join(parts, nil) // it knows how to make room without zeroing it
	}
	for _, p := range parts[1:] {
		dst = append(dst, p...)
	}
	return dst
}

// Member is one member of a JSON object. The spans are relative to the object's
// text.
type Member struct {
	Key     string // decoded; half a surrogate pair becomes U+FFFD
	KeySpan Span   // of the name with its quotes
	Value   Span
}

// Members steps through the members of the object that obj is, in order; names that
// stand twice come twice. White space may stand around the object. The grammar is
// checked as far as was read, UTF-8 is not (see Valid). It ends after the first error.
func Members(obj []byte) iter.Seq2[Member, error] {
	return func(yield func(Member, error) bool) {
		w := walker{t: obj, at: source(obj).space(0), depth: 1}
		for w.member() {
			if !yield(Member{Key: name(obj[w.key.Start+1 : w.key.End-1]), KeySpan: w.key, Value: w.value}, nil) {
				return
			}
		}
		if err := w.end(); err != nil {
			yield(Member{}, err)
		}
	}
}

// Elements steps through the elements of the array that arr is, as Members does.
func Elements(arr []byte) iter.Seq2[Span, error] {
	return func(yield func(Span, error) bool) {
		w := walker{t: arr, at: source(arr).space(0), depth: 1}
		for w.element() {
			if !yield(w.value, nil) {
				return
			}
		}
		if err := w.end(); err != nil {
			yield(Span{}, err)
		}
	}
}

// Keep returns the object that obj is with only those members that keep lets through,
// each spelled as it was. An error is a *ParseFailure.
func Keep(obj []byte, keep func(key string) bool) ([]byte, error) {
	out := make([]byte, 0, len(obj))
	out = append(out, '{')
	for m, err := range Members(obj) {
		if err != nil {
			return nil, err
		}
		if !keep(m.Key) {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, obj[m.KeySpan.Start:m.Value.End]...)
	}
	return append(out, '}'), nil
}

// CutMember returns the range of obj to delete so that m is gone and the rest is
// still valid JSON: the member, and one comma beside it. It is for one member; of two
// neighbours the ranges may overlap.
func CutMember(obj []byte, m Member) Span { return cut(obj, m) }

func cut(raw []byte, m Member) Span {
	t := source(raw)
	if i := t.space(m.Value.End); i < len(raw) && raw[i] == ',' {
		return Span{m.KeySpan.Start, t.space(i + 1)}
	}
	start := m.KeySpan.Start
	for start > 0 && isSpace(raw[start-1]) {
		start--
	}
	if start > 0 && raw[start-1] == ',' {
		return Span{start - 1, m.Value.End}
	}
	return Span{m.KeySpan.Start, m.Value.End}
}

// Valid returns nil if raw is one strictly valid JSON value in UTF-8, nested at most
// 512 deep, with or without white space around it. An error is a *ParseFailure.
func Valid(raw []byte) error {
	t := source(raw)
	end, err := t.value(t.space(0), 0)
	if err != nil {
		return err
	}
	if end = t.space(end); end != len(t) {
		return broken(end, "something follows the value")
	}
	return t.checkUTF8()
}

// IsBatch reports whether raw is a top-level JSON array, if it is JSON.
func IsBatch(raw []byte) bool {
	raw = trim(raw)
	return len(raw) > 0 && raw[0] == '['
}

// SplitBatch takes a top-level JSON array apart; the frames share memory with raw.
// If raw is anything else, batch is false and raw is the only frame. The frames are
// to be parsed by Parse, each for itself. An empty or broken array is a
// *ParseFailure.
func SplitBatch(raw []byte) (frames [][]byte, batch bool, err error) {
	raw = trim(raw)
	if !IsBatch(raw) {
		return [][]byte{raw}, false, nil
	}
	for span, err := range Elements(raw) {
		if err != nil {
			return nil, true, err
		}
		frames = append(frames, span.Of(raw))
	}
	if len(frames) == 0 {
		return nil, true, &ParseFailure{Code: InvalidRequest, Message: "split batch: it is empty"}
	}
	return frames, true, nil
}

// Flatten drops CR and LF from a text in place, so that it fits on one line of a
// pipe (W3), and returns what is left; without any it returns raw itself. In valid
// JSON they stand between tokens only, so flatten what was found valid, and parse a
// frame again whose length changed: its spans have moved.
func Flatten(raw []byte) []byte {
	first := bytes.IndexByte(raw, '\n')
	if cr := bytes.IndexByte(raw, '\r'); cr >= 0 && (first < 0 || cr < first) {
		first = cr
	}
	if first < 0 {
		return raw
	}
	flat := raw[:first]
	for _, c := range raw[first:] {
		if c != '\r' && c != '\n' {
			flat = append(flat, c)
		}
	}
	return flat
}

// The parts of the frames that roundhouse writes itself.
var (
	openID     = []byte(`{"jsonrpc":"2.0","id":`)
	openMethod = []byte(`{"jsonrpc":"2.0","method":`)
	thenMethod = []byte(`,"method":`)
	thenParams = []byte(`,"params":`)
	thenResult = []byte(`,"result":`)
	thenError  = []byte(`,"error":`)
	closing    = []byte(`}`)
	null       = []byte(`null`)
)

// Result returns the response with a result; both arguments are raw JSON.
func Result(id, result []byte) []byte {
	return slices.Concat(openID, id, thenResult, result, closing)
}

// ErrorReply returns the response with an error object; both arguments are raw JSON.
// A nil id becomes null, for a request whose id could not be read.
func ErrorReply(id, errObject []byte) []byte {
	if id == nil {
		id = null
	}
	return slices.Concat(openID, id, thenError, errObject, closing)
}

// NewRequest returns a request; id and params are raw JSON. Nil params are left out.
func NewRequest(id []byte, method string, params []byte) []byte {
	if params == nil {
		return slices.Concat(openID, id, thenMethod, Quote(method), closing)
	}
	return slices.Concat(openID, id, thenMethod, Quote(method), thenParams, params, closing)
}

// NewNotification returns a notification; params is raw JSON. Nil params are left out.
func NewNotification(method string, params []byte) []byte {
	if params == nil {
		return slices.Concat(openMethod, Quote(method), closing)
	}
	return slices.Concat(openMethod, Quote(method), thenParams, params, closing)
}
