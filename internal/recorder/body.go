package recorder

import (
	"io"

	"roundhouse/internal/model"
)

// reservation is what a request counts for among all that is held in memory.
type reservation struct {
	models   *model.Models
	releases []func()
	err      error // why there is no more room
}

func (v *reservation) add(n int64) error {
	if n == 0 || v.err != nil {
		return v.err
	}
	release, err := v.models.Reserve(n)
	if err != nil {
		v.err = err
		return err
	}
	v.releases = append(v.releases, release)
	return nil
}

func (v *reservation) release() {
	for _, release := range v.releases {
		release()
	}
	v.releases = nil
}

// countedStep is how much of a body is reserved at once whose length is not known.
const countedStep = 256 << 10

// counted counts a body while it is read.
type counted struct {
	io.ReadCloser
	held *reservation
	room int // of what is reserved
}

// Read reads no more than there is room for.
func (c *counted) Read(p []byte) (int, error) {
	if c.room == 0 && len(p) > 0 {
		if err := c.held.add(countedStep); err != nil {
			return 0, err
		}
		c.room = countedStep
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.room)])
	c.room -= n
	return n, err
}
