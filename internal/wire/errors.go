package wire

import "strconv"

// ErrorObject builds a JSON-RPC error object without data.
func ErrorObject(code int, message string) []byte {
	b := strconv.AppendInt([]byte(`{"code":`), int64(code), 10)
	b = append(append(b, `,"message":`...), Quote(message)...)
	return append(b, '}')
}
