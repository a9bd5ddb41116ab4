package store

import (
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// C11: a body that comes from a reader is the one that comes at once, and an empty one
// is the zero Body.
func TestABodyIsWhatWentIn(t *testing.T) {
	for _, text := range []string{"", "a", strings.Repeat("many words ", 100_000)} {
		whole := Pack([]byte(text))
		read, err := PackFrom(iotest.HalfReader(strings.NewReader(text)))
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range []Body{whole, read} {
			out, err := b.Bytes()
			if err != nil || string(out) != text || b.Size() != int64(len(text)) || b.Digest() != whole.Digest() || b.Verify() != nil {
				t.Errorf("%d bytes became %d, %v", len(text), len(out), err)
			}
		}
	}
	wantEqual(t, Pack(nil), Body{})
	_, err := PackFrom(iotest.ErrReader(errFault))
	wantErr(t, err, errFault)
}

// J4: a body that is damaged says so.
func TestADamagedBodySaysSo(t *testing.T) {
	b := Pack([]byte("some words"))
	other := Pack([]byte("some worms"))
	swapped := b
	swapped.packed = other.packed
	short := b
	short.size--
	cut := b
	cut.packed = cut.packed[:len(cut.packed)-3]
	for _, damaged := range []Body{swapped, short, cut} {
		if damaged.Verify() == nil {
			t.Errorf("%+v is thought whole", damaged)
		}
	}
}

// J1: tokens and logprobs come back exactly, and damaged columns are errors.
func FuzzColumns(f *testing.F) {
	f.Add([]byte{}, int32(0), 0.0)
	f.Add([]byte{4, 1, 2}, int32(-1), -0.1)
	f.Add(packIDs([]int32{1, 200_000}), int32(math.MaxInt32), math.Inf(-1))
	f.Add(packLogprobs([]float64{-0.25}), int32(math.MinInt32), float64(float32(-0.1)))
	f.Fuzz(func(t *testing.T, column []byte, id int32, logprob float64) {
		_, _ = unpackIDs(column)
		_, _ = unpackLogprobs(column)
		ids, err := unpackIDs(packIDs([]int32{id, 0, id}))
		if err != nil || !slices.Equal(ids, []int32{id, 0, id}) {
			t.Errorf("the id %d became %v, %v", id, ids, err)
		}
		values, err := unpackLogprobs(packLogprobs([]float64{logprob, -0.5}))
		if err != nil || len(values) != 2 || values[1] != -0.5 || values[0] != logprob && !(math.IsNaN(logprob) && math.IsNaN(values[0])) {
			t.Errorf("the logprob %v became %v, %v", logprob, values, err)
		}
		none, err := unpackIDs(packIDs([]int32{}))
		if err != nil || none == nil || len(none) != 0 {
			t.Errorf("no tokens became %#v, %v", none, err)
		}
		if packIDs(nil) != nil || packLogprobs(nil) != nil {
			t.Error("what was not given became something")
		}
	})
}
