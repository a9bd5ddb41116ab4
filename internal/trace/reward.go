package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ReadRewards reads a file of rewards: a line of JSON for each session, such as
// {"session_id":"s1","reward":0.5}. A reward is any JSON; of two for one session the
// later counts.
func ReadRewards(r io.Reader) (map[string]json.RawMessage, error) {
	rewards := map[string]json.RawMessage{}
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("read the rewards: %w", err)
		}
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\uFEFF")) // which some editors write
		}
		if len(bytes.TrimSpace(line)) > 0 {
			var v struct {
				Session string          `json:"session_id"`
				Reward  json.RawMessage `json:"reward"`
			}
			err := json.Unmarshal(line, &v)
			if _, other := errors.AsType[*json.UnmarshalTypeError](err); other || err == nil && (v.Session == "" || v.Reward == nil) {
				return nil, fmt.Errorf(`read the rewards: line %d must be an object with "session_id", a string, and "reward"`, n)
			}
			if err != nil {
				return nil, fmt.Errorf("read the rewards: line %d: %w", n, err)
			}
			rewards[v.Session] = v.Reward
		}
		if err == io.EOF {
			return rewards, nil
		}
	}
}
