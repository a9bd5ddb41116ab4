package control

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/sse"
)

const (
	defaultLogLines = 100
	maxLogLines     = 10000

	// lookEvery is how late a line may come to those who follow it.
	lookEvery = 200 * time.Millisecond
)

// Log is what one connection wrote last.
type Log struct {
	ID         string   `json:"id"`
	EntryIndex int      `json:"entryIndex"`
	Lines      []string `json:"lines"` // the oldest first
}

// logs gives the last lines that the connections of a server wrote, or with follow an
// event stream that begins with these, of one pool.Line in each event.
func (c *Control) logs(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	s, err := c.find(r)
	if err == nil && !caller.Admin {
		err = errAdmin
	}
	follow := false
	if err == nil {
		follow, err = flag(r, "follow")
	}
	lines, least := defaultLogLines, 1
	if follow {
		least = 0
	}
	if q := r.URL.Query().Get("lines"); q != "" && err == nil {
		if lines, err = strconv.Atoi(q); err != nil || lines < least || lines > maxLogLines {
			err = fault.New(fault.BadRequest, "lines must be a number from %d to %d", least, maxLogLines)
		}
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	if follow {
		c.follow(w, r, s.Name, lines)
		return
	}
	index := map[string]int{}
	for _, i := range c.cfg.Pool.Snapshot() {
		index[i.ID] = i.EntryIndex
	}
	out := c.cfg.Pool.Output(s.Name, lines)
	list := []Log{}
	for id, lines := range out {
		list = append(list, Log{id, index[id], append([]string{}, lines...)})
	}
	slices.SortFunc(list, func(a, b Log) int { return cmp.Or(cmp.Compare(a.EntryIndex, b.EntryIndex), cmp.Compare(a.ID, b.ID)) })
	front.WriteJSON(w, http.StatusOK, map[string]any{"server": s.Name, "connections": list})
}

// follow streams a server's output until the caller leaves or CloseStreams is called.
func (c *Control) follow(w http.ResponseWriter, r *http.Request, name string, lines int) {
	out := sse.NewWriter(w, c.cfg.WriteDeadline)
	if out.Flush() != nil {
		return // the caller is gone
	}
	spoke := time.Now()
	output := c.cfg.Pool.Follow(name, lines)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		news := output.Next()
		for _, l := range news {
			b, err := json.Marshal(l)
			if err != nil {
				panic(err) // two strings
			}
			out.Event("", b)
		}
		silent := time.Since(spoke) >= c.cfg.KeepAlive
		if len(news) == 0 && silent {
			out.Comment("keep-alive")
		}
		if len(news) > 0 || silent {
			if out.Flush() != nil {
				return // the caller is gone
			}
			spoke = time.Now()
		}
		select {
		case <-look.C:
		case <-r.Context().Done():
			return
		case <-c.closing.Done():
			return
		}
	}
}
