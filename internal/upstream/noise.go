package upstream

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// maxNoise is how much of a line of noise is shown, in bytes.
const maxNoise = 512

// clean returns the beginning of a line for people to see: colours and control
// characters are left out, and bytes that are no UTF-8 become U+FFFD.
func clean(line []byte) []byte {
	shown := make([]byte, 0, min(len(line), maxNoise))
	for len(line) > 0 {
		if n := escapeSequence(line); n > 0 {
			line = line[n:]
			continue
		}
		r, n := utf8.DecodeRune(line)
		line = line[n:]
		if r == '\t' {
			r = ' '
		}
		if unicode.IsControl(r) {
			continue
		}
		if len(shown)+utf8.RuneLen(r) > maxNoise {
			break
		}
		shown = utf8.AppendRune(shown, r)
	}
	return bytes.TrimSpace(shown)
}

// escapeSequence returns the length of the terminal control sequence (ESC [ … letter)
// that line begins with, or 0.
func escapeSequence(line []byte) int {
	if !bytes.HasPrefix(line, []byte("\x1b[")) {
		return 0
	}
	for i := 2; i < len(line); i++ {
		if c := line[i]; c >= '@' && c <= '~' {
			return i + 1
		} else if c < ' ' || c > '~' {
			return 0
		}
	}
	return 0
}
