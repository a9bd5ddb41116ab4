package control_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"roundhouse/internal/control"
	"roundhouse/internal/event"
	"roundhouse/internal/sse"
)

// told is one event as it came over the stream.
type told struct {
	mark string
	event.Event
}

// listen opens a stream of events, after the event of a mark if that is not "".
func (w *world) listen(token, mark string) (events <-chan told, end context.CancelFunc) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", w.url+"/api/v1/events", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if mark != "" {
		req.Header.Set("Last-Event-ID", mark)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if ct := res.Header.Get("Content-Type"); res.StatusCode != 200 || ct != "text/event-stream" {
		w.t.Fatalf("GET /api/v1/events: %d, %s", res.StatusCode, ct)
	}
	c := make(chan told, 5000)
	go func() {
		defer close(c)
		defer res.Body.Close()
		for stream := sse.NewReader(res.Body, 1<<20); ; {
			e, err := stream.Next()
			if err != nil {
				return
			}
			x := told{mark: stream.LastID()}
			if err := json.Unmarshal(e.Data, &x.Event); err != nil {
				w.t.Errorf("event %q: %v", e.Data, err)
			}
			c <- x
		}
	}()
	return c, cancel
}

// next returns the next event of a stream.
func next(t *testing.T, events <-chan told) told {
	t.Helper()
	select {
	case e, ok := <-events:
		if !ok {
			t.Fatal("the stream has ended")
		}
		return e
	case <-time.After(patience):
		t.Fatal("no event")
	}
	return told{}
}

// until returns the next event of a kind.
func until(t *testing.T, events <-chan told, k event.Kind) told {
	t.Helper()
	for {
		if e := next(t, events); e.Kind == k {
			return e
		}
	}
}

// pool.md §9: an admin hears of everything, everybody else of his own sessions and of
// what they alone can use (N2).
func TestEventsGoToThoseWhomTheyConcern(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {
		"own": {"command": "SERVER"},
		"all": {"command": "SERVER", "shareAcrossPrincipals": true}}}`)
	toRoot, _ := w.listen(root, "")
	toAlice, _ := w.listen(alice, "")
	w.client(bob, "own", "bobs")
	w.client(bob, "all", "bobs")
	w.client(alice, "own", "alices")
	if e := until(t, toRoot, event.SessionBegun); e.Session != "bobs" || e.Principal != "bob" {
		t.Errorf("%+v", e)
	}
	if e := until(t, toRoot, event.ConnectionOpened); e.Principal != "bob" || e.Server != "own" {
		t.Errorf("%+v", e)
	}
	if e := until(t, toRoot, event.ConnectionOpened); e.Principal != "" || e.Server != "all" {
		t.Errorf("%+v", e)
	}
	first, second := next(t, toAlice), next(t, toAlice)
	if first.Kind != event.SessionBegun || first.Session != "alices" || second.Kind != event.ConnectionOpened || second.Principal != "alice" {
		t.Errorf("alice heard %+v and %+v", first, second)
	}
	if r := w.send("nobody-at-all-here", "GET", "/api/v1/events", ""); r.status != 401 {
		t.Errorf("without a token: %d", r.status)
	}
}

// Who comes back gets what he has missed, as far as it is kept, and is told how much is
// not, or that this is another daemon.
func TestEventsGoOnAfterTheLastOneThatWasSeen(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER"}}}`)
	feed := w.feed
	events, end := w.listen("", "")
	feed.Publish(event.Event{Kind: event.SessionBegun, Reason: "one"})
	one := next(t, events)
	end()
	feed.Publish(event.Event{Kind: event.SessionBegun, Reason: "two"})
	feed.Publish(event.Event{Kind: event.SessionBegun, Reason: "three"})
	events, end = w.listen("", one.mark)
	if e := next(t, events); e.Reason != "two" {
		t.Errorf("after %s comes %+v", one.mark, e)
	}
	end()
	events, end = w.listen("", "")
	feed.Publish(event.Event{Kind: event.SessionBegun, Reason: "four"})
	if e := next(t, events); e.Reason != "four" {
		t.Errorf("without a mark comes %+v", e)
	}
	end()
	for range 2000 {
		feed.Publish(event.Event{Kind: event.SessionBegun})
	}
	events, _ = w.listen("", one.mark)
	if e := next(t, events); e.Kind != event.EventsLost || e.Lost != 2003-1024 {
		t.Errorf("after a long time comes %+v", e)
	}
	next(t, events)
	events, _ = w.listen("", "nonsense-1")
	if e := next(t, events); e.Kind != event.EventsLost || e.Lost != 0 {
		t.Errorf("with a foreign mark comes %+v", e)
	}
	if e := next(t, events); e.Kind != event.EventsLost { // then what there is
		t.Errorf("then comes %+v", e)
	}
}

// G1: a shutdown ends the streams of events, and a silent one is kept open by comments.
func TestEventStreamsEndAtAShutdown(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER"}}}`, func(c *control.Config) { c.KeepAlive = 10 * time.Millisecond })
	events, _ := w.listen("", "")
	time.Sleep(50 * time.Millisecond) // comments are no events
	w.control.CloseStreams()
	select {
	case e, ok := <-events:
		if ok {
			t.Errorf("an event: %+v", e)
		}
	case <-time.After(patience):
		t.Error("the stream does not end")
	}
}
