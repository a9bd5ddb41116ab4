package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"
)

// A column of token ids is a zigzag varint for each, compressed. NULL is nil, which is
// not the same as no tokens.
func packIDs(ids []int32) []byte {
	if ids == nil {
		return nil
	}
	raw := make([]byte, 0, 3*len(ids))
	for _, id := range ids {
		raw = binary.AppendVarint(raw, int64(id))
	}
	return encoder().EncodeAll(raw, []byte{})
}

func unpackIDs(column []byte) ([]int32, error) {
	if column == nil {
		return nil, nil
	}
	raw, err := decoder().DecodeAll(column, nil)
	if err != nil {
		return nil, fmt.Errorf("expand stored token ids: %w", err)
	}
	ids := make([]int32, 0, len(raw)/2)
	for len(raw) > 0 {
		id, n := binary.Varint(raw)
		if n <= 0 || id != int64(int32(id)) {
			return nil, errors.New("stored token ids are damaged")
		}
		ids = append(ids, int32(id))
		raw = raw[n:]
	}
	return ids, nil
}

// A column of logprobs is the width of a number in bytes, then the numbers, lowest
// byte first, compressed. They are as exact as they came: four bytes each if that
// loses nothing, as with an engine that computes in float32, else eight.
func packLogprobs(values []float64) []byte {
	if values == nil {
		return nil
	}
	narrow := true
	for _, v := range values {
		narrow = narrow && (float64(float32(v)) == v || math.IsNaN(v))
	}
	raw := make([]byte, 0, 1+8*len(values))
	if narrow {
		raw = append(raw, 4)
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(v)))
		}
	} else {
		raw = append(raw, 8)
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(v))
		}
	}
	return encoder().EncodeAll(raw, []byte{})
}

func unpackLogprobs(column []byte) ([]float64, error) {
	if column == nil {
		return nil, nil
	}
	raw, err := decoder().DecodeAll(column, nil)
	if err != nil {
		return nil, fmt.Errorf("expand stored logprobs: %w", err)
	}
	if len(raw) == 0 || raw[0] != 4 && raw[0] != 8 || (len(raw)-1)%int(raw[0]) != 0 {
		return nil, errors.New("stored logprobs are damaged")
	}
	width := int(raw[0])
	raw = raw[1:]
	values := make([]float64, 0, len(raw)/width)
	for ; len(raw) > 0; raw = raw[width:] {
		if width == 4 {
			values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))))
		} else {
			values = append(values, math.Float64frombits(binary.LittleEndian.Uint64(raw)))
		}
	}
	return values, nil
}

// credentials are the headers that are never stored (C14).
var credentials = []string{
	"Authorization", "Proxy-Authorization", "Authentication-Info", "Cookie", "Set-Cookie",
	"X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Auth-Token", "X-Roundhouse-Token",
}

// packHeader writes a header as JSON, less credentials.
func packHeader(h http.Header) any {
	if len(h) == 0 {
		return nil
	}
	kept := h.Clone()
	for _, name := range credentials {
		kept.Del(name)
	}
	return packJSON(kept)
}

func packJSON(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, and slices and maps of them
	}
	return string(b)
}

func unpackJSON(column string, into any) error {
	if column == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(column), into); err != nil {
		return fmt.Errorf("read a stored column: %w", err)
	}
	return nil
}

// isJSON reports whether v, if there is one, can be put into other JSON.
func isJSON(v json.RawMessage) bool { return len(v) == 0 || json.Valid(v) }

// rawJSON is a column of JSON as it came.
func rawJSON(v json.RawMessage) any {
	if len(v) == 0 {
		return nil
	}
	return string(v)
}

// A time is a column of nanoseconds since 1970 in UTC; the zero time is 0.
func packTime(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func unpackTime(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
