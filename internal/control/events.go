package control

import (
	"encoding/json"
	"net/http"
	"time"

	"roundhouse/internal/event"
	"roundhouse/internal/front"
	"roundhouse/internal/sse"
)

// events streams what happens from now on, or after the event that Last-Event-ID
// names, as far as it is kept. Who is no admin gets what concerns his own sessions, and
// the connections that they alone can use.
func (c *Control) events(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	c.stream(w, r, func(out *sse.Writer, mark string, e event.Event) {
		if caller.Admin || e.Principal == caller.Principal || e.Kind == event.EventsLost {
			sendEvent(out, mark, e)
		}
	})
}

// stream calls send for what happens from now on, or after the event that Last-Event-ID
// names, or with ?past=true for what is kept and then goes on, until the caller leaves or CloseStreams is called. What is missing is told as
// event.EventsLost.
func (c *Control) stream(w http.ResponseWriter, r *http.Request, send func(out *sse.Writer, mark string, e event.Event)) {
	past, err := flag(r, "past")
	if err != nil {
		front.WriteError(w, err)
		return
	}
	feed := c.cfg.Events
	after := feed.Last()
	if past {
		after = 0
	}
	out := sse.NewWriter(w, c.cfg.WriteDeadline)
	if mark := r.Header.Get("Last-Event-ID"); mark != "" {
		var ok bool
		if after, ok = feed.Find(mark); !ok { // another daemon's: what it kept has gone with it
			send(out, "", event.Event{Kind: event.EventsLost, Time: time.Now()})
		}
	}
	silence := time.NewTicker(c.cfg.KeepAlive)
	defer silence.Stop()
	if out.Flush() != nil {
		return // the caller is gone
	}
	for {
		news, lost, more := feed.After(after)
		if lost > 0 {
			send(out, "", event.Event{Kind: event.EventsLost, Time: time.Now(), Lost: lost})
		}
		for _, e := range news {
			after = e.ID
			send(out, feed.Mark(e), e)
		}
		if out.Flush() != nil {
			return // the caller is gone
		}
		select {
		case <-more:
		case <-silence.C:
			out.Comment("keep-alive")
		case <-r.Context().Done():
			return
		case <-c.closing.Done():
			return
		}
	}
}

func sendEvent(out *sse.Writer, mark string, e event.Event) {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings, numbers and times
	}
	out.Event(mark, b)
}
