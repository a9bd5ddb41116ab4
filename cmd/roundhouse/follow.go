package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"roundhouse/internal/sse"
)

// maxEvent is the longest event of a followed stream that is read, in bytes.
const maxEvent = 1 << 20

// unlessStopped is the outcome of a command that goes on until it is told to stop by the
// end of ctx, which is no error.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// follow calls each with the data of every event that the daemon streams at path, until
// ctx or the daemon ends, or each fails. what names the stream in errors.
func (a *api) follow(ctx context.Context, path, what string, each func(data []byte) error) error {
	res, err := a.do(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return apiError(res)
	}
	for events := sse.NewReader(res.Body, maxEvent); ; {
		e, err := events.Next()
		if errors.Is(err, io.EOF) {
			return errors.New("the daemon has ended; run the command again when it is back")
		}
		if err != nil {
			return fmt.Errorf("follow %s: %w", what, err)
		}
		if err := each(e.Data); err != nil {
			return err
		}
	}
}
