package session

import (
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
)

// pool.md §9: a session's begin, sleep and end are events of its principal.
func TestTheLifeOfASessionIsToldInEvents(t *testing.T) {
	inWorld(t, config.Sessions{Max: 10, IdleTimeout: time.Minute, ExpireAfter: time.Hour}, []*config.Server{server("a")}, func(w *world) {
		w.m.cfg.Events = event.NewFeed()
		c := w.client("a", "run-1")
		time.Sleep(2 * time.Minute)
		c.do(1, "tools/list", "{}")
		time.Sleep(2 * time.Hour)
		var kinds []event.Kind
		all, _, _ := w.m.cfg.Events.After(0)
		for _, e := range all {
			kinds = append(kinds, e.Kind)
			if e.Session != "run-1" || e.Principal != "local" {
				t.Errorf("%+v", e)
			}
		}
		if want := []event.Kind{event.SessionBegun, event.SessionDormant, event.SessionResumed, event.SessionDormant, event.SessionEnded}; !slices.Equal(kinds, want) {
			t.Errorf("published was %v, want %v", kinds, want)
		}
		if last := all[len(all)-1]; !strings.Contains(last.Reason, "expired") {
			t.Errorf("the end is %+v", last)
		}
	})
}
