package store

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Body is the bytes of a request or an answer as they came, compressed. The zero
// Body is empty. A Body does not change; copies share its bytes.
type Body struct {
	size   int64
	digest [sha256.Size]byte
	packed []byte // zstd; nil if size is 0
}

// maxBody is what a Body may expand to, so that a damaged row does not take the
// memory. It is beyond any body that a face accepts (C11: 256 MiB).
const maxBody = 1 << 30

// encoding is fast before small; the window is what an encoder keeps in memory.
var encoding = []zstd.EOption{zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1 << 20), zstd.WithLowerEncoderMem(true)}

// encoder and decoder are used by many at once, each call with its own state; they
// are made when the first Body is.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, encoding...)
		if err != nil {
			panic(err) // of the options alone
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxBody), zstd.WithDecoderConcurrency(0))
		if err != nil {
			panic(err) // of the options alone
		}
		return d
	})
)

// Pack compresses b, which is not kept.
func Pack(b []byte) Body {
	if len(b) == 0 {
		return Body{}
	}
	return Body{size: int64(len(b)), digest: sha256.Sum256(b), packed: encoder().EncodeAll(b, nil)}
}

// PackFrom compresses what r gives until its end, such as a body that was spooled to
// disk: only the compressed bytes are held in memory.
func PackFrom(r io.Reader) (Body, error) {
	var packed bytes.Buffer
	e, err := zstd.NewWriter(&packed, append(slices.Clone(encoding), zstd.WithEncoderConcurrency(1))...)
	if err != nil {
		panic(err) // of the options alone
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(e, sum), r)
	if err == nil {
		err = e.Close()
	}
	if err != nil {
		return Body{}, fmt.Errorf("compress a body: %w", err)
	}
	if n == 0 {
		return Body{}, nil
	}
	return Body{size: n, digest: [sha256.Size]byte(sum.Sum(nil)), packed: packed.Bytes()}, nil
}

// Size returns the number of bytes, not compressed.
func (b Body) Size() int64 { return b.size }

// Digest returns the SHA-256 of the bytes; an empty Body's is zero.
func (b Body) Digest() [sha256.Size]byte { return b.digest }

// Bytes returns the bytes in a new slice, nil if there are none.
func (b Body) Bytes() ([]byte, error) {
	if b.size == 0 {
		return nil, nil
	}
	out, err := decoder().DecodeAll(b.packed, make([]byte, 0, min(b.size, maxBody)))
	if err == nil && int64(len(out)) != b.size {
		err = fmt.Errorf("%d bytes came out, not %d", len(out), b.size)
	}
	if err != nil {
		return nil, fmt.Errorf("expand a stored body: %w", err)
	}
	return out, nil
}

// Verify reports an error if the bytes are not those that were stored.
func (b Body) Verify() error {
	out, err := b.Bytes()
	if err == nil && b.size > 0 && sha256.Sum256(out) != b.digest {
		err = fmt.Errorf("a stored body of %d bytes is damaged", b.size)
	}
	return err
}

// columns are a Body's three columns for a write.
func (b Body) columns() []any {
	if b.size == 0 {
		return []any{0, nil, nil}
	}
	return []any{b.size, b.digest[:], b.packed}
}

// bodyRow reads a Body's three columns.
type bodyRow struct {
	size           int64
	digest, packed []byte
}

func (r *bodyRow) body() Body {
	b := Body{size: r.size, packed: r.packed}
	copy(b.digest[:], r.digest)
	return b
}
