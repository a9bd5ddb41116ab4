package trace

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"unicode/utf8"

	"roundhouse/internal/wire"
)

// canonical brings JSON into one spelling: sorted members, no white space, no nulls
// and cache marks, whole numbers without fraction or exponent. What is not JSON stays.
func canonical(raw []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return raw
	}
	if _, err := d.Token(); err != io.EOF {
		return raw
	}
	return encode(plain(v))
}

// plain is the value without what carries no meaning.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if member == nil || name == "cache_control" {
				delete(v, name)
			} else {
				v[name] = plain(member)
			}
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case json.Number:
		if f, err := v.Float64(); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return json.Number(strconv.FormatInt(int64(f), 10))
		}
	}
	return v
}

// encode writes JSON as it is meant, without escapes for web pages. It is UTF-8, whatever
// came: encoding/json lets other bytes through in the strings of raw values, and readers of
// rows would stumble over them.
func encode(v any) []byte {
	out, err := wire.Encode(v)
	if err != nil {
		panic(err) // every type here can be encoded
	}
	if !utf8.Valid(out) {
		out = bytes.ToValidUTF8(out, []byte("\uFFFD"))
	}
	return out
}
