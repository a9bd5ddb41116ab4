package main

import (
	"testing"
	"time"

	"roundhouse/internal/event"
)

// Pool specification, section 9: an event is one line for people, whatever a server put
// into it.
func TestAnEventIsOneLine(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	for want, e := range map[string]event.Event{
		"03:04:05  connection opened  files [2]":               {Kind: event.ConnectionOpened, Server: "files", EntryIndex: new(2)},
		"03:04:05  connection restarted  files [0]  in 1.5s":   {Kind: event.ConnectionRestarted, Server: "files", EntryIndex: new(0), DurationMs: new(int64(1500))},
		"03:04:05  connection failed  files [0]  it said  a b": {Kind: event.ConnectionFailed, Server: "files", EntryIndex: new(0), Reason: "it said \na\tb"},
		"03:04:05  session begun  s1 (alice)":                  {Kind: event.SessionBegun, Session: "s1", Principal: "alice"},
		"03:04:05  config reloaded  added: a, b  removed: c":   {Kind: event.ConfigReloaded, Added: []string{"a", "b"}, Removed: []string{"c"}},
		"03:04:05  catalogue changed  files [0]  lists: tools": {Kind: event.CatalogueChanged, Server: "files", EntryIndex: new(0), Lists: []string{"tools"}},
		"03:04:05  budget refused  refused: a  all 1 are held": {Kind: event.BudgetRefused, Refused: []string{"a"}, Reason: "all 1 are held"},
		"03:04:05  events lost  2 events missed":               {Kind: event.EventsLost, Lost: 2},
	} {
		e.Time = at
		if got := describeEvent(e); got != want {
			t.Errorf("%+v is %q, want %q", e, got, want)
		}
	}
}
