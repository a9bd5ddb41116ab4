package dialect

import (
	"slices"
	"strings"
	"unicode/utf8"

	"roundhouse/internal/wire"
)

// A piece is an event, or anything else of a stream, on its way to the client.
type piece struct {
	frame *frame // nil if it is passed on as it is
	raw   []byte
	edits []wire.Edit // of the frame's data
	open  int         // how many characters of it may turn out to belong to an end-of-text string
	hold  bool        // whether it is held until the turn is stored

	sent    bool // whether it is on its way or held
	dropped bool // whether the client is to see nothing of it
}

// bytes returns what the client is to see of the piece.
func (p *piece) bytes() []byte {
	if p.dropped {
		return nil
	}
	if len(p.edits) == 0 {
		return p.raw
	}
	e := editor{raw: p.frame.data, edits: p.edits}
	return append(p.frame.with(e.apply()), p.raw[len(p.frame.raw):]...)
}

// textKey names one text of an answer: of a choice or block, and which of its.
type textKey struct {
	index int64
	name  string
}

// A scrubber cuts an end-of-text string out of texts that come in pieces. A piece
// whose text ends like the string's beginning waits for what follows, so that texts
// without the string keep their bytes.
type scrubber struct {
	stop  string
	texts map[textKey]*match
}

// match is the beginning of the string that a text ends with.
type match struct {
	chars []char
	text  string // what they spell
}

// char is one character of a text, and where it stands.
type char struct {
	in   *piece
	at   wire.Span
	size int // of what it spells
}

// text reads a string literal at a span of a piece's data.
func (s *scrubber) text(key textKey, in *piece, data []byte, at wire.Span) {
	m := s.texts[key]
	if m == nil {
		m = &match{}
		if s.texts == nil {
			s.texts = map[textKey]*match{}
		}
		s.texts[key] = m
	}
	if at.End-at.Start > len(`""`) {
		// Where one text of a choice goes on the others have ended, and do not hold up
		// the stream.
		for other, m := range s.texts {
			if other.index == key.index && other.name != key.name {
				m.drop(len(m.chars))
			}
		}
	}
	for i := at.Start + 1; i < at.End-1; {
		n := charLen(data[i : at.End-1])
		span := wire.Span{Start: i, End: i + n}
		i += n
		m.step(s.stop, decoded(span.Of(data)), char{in: in, at: span})
		if m.text == s.stop {
			for _, c := range m.chars {
				c.in.edits = append(c.in.edits, wire.Edit{At: c.at})
			}
			m.drop(len(m.chars))
		}
	}
}

// step takes one more character. Those that cannot belong to the string any more are
// let go.
func (m *match) step(stop, text string, c char) {
	for {
		if strings.HasPrefix(stop, m.text+text) {
			c.size = len(text)
			c.in.open++
			m.chars = append(m.chars, c)
			m.text += text
			return
		}
		if m.text == "" {
			return
		}
		for m.drop(1); !strings.HasPrefix(stop, m.text); {
			m.drop(1)
		}
	}
}

// end settles that the texts of a choice or block have ended.
func (s *scrubber) end(index int64) {
	for key, m := range s.texts {
		if key.index == index {
			m.drop(len(m.chars))
		}
	}
}

// closeAll settles that all have.
func (s *scrubber) closeAll() {
	for _, m := range s.texts {
		m.drop(len(m.chars))
	}
}

// drop lets go of the first n characters.
func (m *match) drop(n int) {
	for _, c := range m.chars[:n] {
		c.in.open--
		m.text = m.text[c.size:]
	}
	m.chars = slices.Delete(m.chars, 0, n)
}

// charLen returns how long the character is that the inside of a literal starts with.
func charLen(inner []byte) int {
	if inner[0] != '\\' {
		_, n := utf8.DecodeRune(inner)
		return n
	}
	if inner[1] != 'u' {
		return 2
	}
	if len(inner) >= 12 && inner[6] == '\\' && inner[7] == 'u' {
		if pair := decoded(inner[:12]); utf8.RuneCountInString(pair) == 1 {
			return 12
		}
	}
	return 6
}

// decoded returns the text of a part of a literal; half a surrogate pair is "\ufffd".
func decoded(inner []byte) string {
	if inner[0] != '\\' {
		return string(inner)
	}
	text, err := wire.Text(slices.Concat([]byte{'"'}, inner, []byte{'"'}))
	if err != nil {
		return "\ufffd"
	}
	return text
}
