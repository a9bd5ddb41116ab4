package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// frame is a JSON-RPC message taken apart at its top level. The parts are the
// message's own bytes and are nil where the member is absent.
type frame struct {
	id, result, err []byte
}

var errNotObject = errors.New("message is not a JSON object")

// parseFrame finds the members that an answer consists of. It looks at the
// structure alone and skips over values without decoding them: the generator
// shares the machine with what it measures, so it must be cheap, and the payload
// is compared byte by byte anyway. A truncated message is an error; one that is
// malformed deeper inside may pass.
func parseFrame(b []byte) (frame, error) {
	var f frame
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return f, errNotObject
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return f, nil
	}
	for {
		start := i
		if i = skipString(b, i); i < 0 {
			return f, errNotObject
		}
		key := b[start:i]
		if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
			return f, errNotObject
		}
		start = skipSpace(b, i+1)
		if i = skipValue(b, start); i < 0 {
			return f, errNotObject
		}
		switch string(key) {
		case `"id"`:
			f.id = b[start:i]
		case `"result"`:
			f.result = b[start:i]
		case `"error"`:
			f.err = b[start:i]
		}
		i = skipSpace(b, i)
		switch {
		case i < len(b) && b[i] == ',':
			i = skipSpace(b, i+1)
		case i < len(b) && b[i] == '}':
			return f, nil
		default:
			return f, errNotObject
		}
	}
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}

// skipString returns the index after the string that starts at i, or -1 if none
// does or it does not end.
func skipString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	i++
	for {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		end := i + n
		slashes := 0
		for end-slashes > i && b[end-slashes-1] == '\\' {
			slashes++
		}
		i = end + 1
		if slashes%2 == 0 {
			return i
		}
	}
}

// skipValue returns the index after the value that starts at i, or -1 if it does
// not end. It does not look inside numbers and names.
func skipValue(b []byte, i int) int {
	start, depth := i, 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
		case '{', '[':
			depth++
			i++
		case '}', ']':
			if depth == 0 {
				return scalarEnd(start, i)
			}
			depth--
			i++
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return scalarEnd(start, i)
			}
			i++
			continue
		default:
			i++
			continue
		}
		if depth == 0 {
			return i
		}
	}
	return -1
}

// scalarEnd is the end of a number or name from start to end, or -1 if it is empty.
func scalarEnd(start, end int) int {
	if end == start {
		return -1
	}
	return end
}

// request is a session's current tools/call. Its memory is reused from call to call.
type request struct {
	meta   string // goes into the params, with a comma at its end; empty with a handshake
	id     int64
	idText []byte // the id as it is spelled in body
	body   []byte // the whole message, without a newline
	text   []byte // the payload as a JSON string, a part of body
}

// next makes r the session's next call of the echo tool.
func (r *request) next(payload []byte) {
	r.id++
	r.idText = strconv.AppendInt(r.idText[:0], r.id, 10)
	r.body = append(r.body[:0], `{"jsonrpc":"2.0","id":`...)
	r.body = append(r.body, r.idText...)
	r.body = append(r.body, `,"method":"tools/call","params":{`...)
	r.body = append(r.body, r.meta...)
	r.body = append(r.body, `"name":"echo","arguments":{"text":`...)
	start := len(r.body)
	r.body = append(r.body, '"')
	r.body = append(r.body, payload...)
	r.body = append(r.body, '"')
	r.text = r.body[start:len(r.body):len(r.body)]
	r.body = append(r.body, `}}}`...)
}

// check says whether message answers r. It returns false without an error for a
// message that is no answer at all (a notification or a request), and an error for
// an answer with another id, an error answer, and a result without r's payload.
func (r *request) check(message []byte) (bool, error) {
	f, err := parseFrame(message)
	if err != nil {
		return false, fmt.Errorf("read the answer to call %d: %w: %s", r.id, err, head(message))
	}
	if f.result == nil && f.err == nil {
		return false, nil
	}
	switch {
	case !bytes.Equal(f.id, r.idText):
		return false, fmt.Errorf("answer to call %d has id %s", r.id, head(f.id))
	case f.err != nil:
		return false, fmt.Errorf("call %d failed: %s", r.id, head(f.err))
	case !bytes.Contains(f.result, r.text):
		return false, fmt.Errorf("call %d did not return its payload: %s", r.id, head(f.result))
	}
	return true, nil
}

// head shortens b for an error message.
func head(b []byte) []byte {
	const most = 200
	if len(b) > most {
		return append(b[:most:most], "…"...)
	}
	return b
}

// readBuffer is how much a session reads at once, in bytes.
const readBuffer = 32 << 10

// readLine appends the next line of r to buf, without its end ("\n" or "\r\n").
func readLine(r *bufio.Reader, buf []byte) ([]byte, error) {
	for {
		part, err := r.ReadSlice('\n')
		buf = append(buf, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return buf, err
		}
		buf = buf[:len(buf)-1]
		if n := len(buf); n > 0 && buf[n-1] == '\r' {
			buf = buf[:n-1]
		}
		return buf, nil
	}
}
