package responses

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"roundhouse/internal/config"
	"roundhouse/internal/front"
	"roundhouse/internal/loop"
)

// manage is a route about one response. A response that is not ours may be an upstream's
// that speaks this API itself.
func (f *Face) manage(serve func(x *exchange, p *response) error) front.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, c front.Caller) {
		if len(f.cfg.Models.Upstreams()) == 0 {
			f.cfg.Pass(w, r, c) // which says that no model APIs are served
			return
		}
		x := &exchange{f, w, r, c}
		p, err := f.find(r.Context(), c.Principal, r.PathValue("response"))
		if isUnknown(err) && f.upstreamsKeepResponses() {
			f.cfg.Pass(w, r, c)
			return
		}
		if err == nil {
			err = serve(x, p)
		}
		if err != nil {
			x.fail(err)
		}
	}
}

func isUnknown(err error) bool {
	f, ok := errors.AsType[*loop.Failure](err)
	return ok && f.Status == http.StatusNotFound
}

func (f *Face) upstreamsKeepResponses() bool {
	return slices.ContainsFunc(f.cfg.Config().LLM.Upstreams, func(u *config.Upstream) bool { return u.Responses })
}

// retrieve returns a response, or with stream its events.
func (x *exchange) retrieve(p *response) error {
	query := x.r.URL.Query()
	stream, err := strconv.ParseBool(or(query.Get("stream"), "false"))
	if err != nil {
		return refused("stream must be true or false")
	}
	after, err := strconv.Atoi(or(query.Get("starting_after"), "-1"))
	switch {
	case err != nil || after < -1:
		return refused("starting_after must be the sequence_number of an event")
	case !stream && after >= 0:
		return refused("starting_after is for stream=true only")
	case !stream:
		x.write(http.StatusOK, p.record.Object)
		return nil
	}
	r, err := p.log()
	if err != nil {
		return err
	}
	if p.record.Cut && after+1 >= len(r.events) {
		// The client has seen more than was stored when the daemon ended. It gets the end
		// alone, which rises above what it has.
		r.events = append(make([]entry, after+1), newEntry(after+1, "response.failed", "response", p.record.Object))
	}
	x.stream(r, after+1)
	return nil
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// cancel ends a response in the background and returns it. One that has ended already is
// returned as it is.
func (x *exchange) cancel(p *response) error {
	if !p.background {
		return refused("only a response that was created with background can be cancelled")
	}
	if p.live == nil {
		x.write(http.StatusOK, p.record.Object)
		return nil
	}
	p.live.cancel(loop.ErrCancelled)
	object, _, err := p.live.wait(x.r.Context())
	if err != nil {
		return err
	}
	x.write(http.StatusOK, object)
	return nil
}

// remove deletes a response, with what it has said and done. One that is under way is
// cancelled.
func (x *exchange) remove(p *response) error {
	// It is gone or not, and does not depend on who waits for that.
	ctx, stop := context.WithTimeout(context.WithoutCancel(x.r.Context()), saveTimeout)
	defer stop()
	if r := p.live; r != nil {
		r.deleted.Store(true)
		r.cancel(loop.ErrCancelled)
		if _, _, err := r.wait(ctx); err != nil { // until then it may still be stored
			return fmt.Errorf("wait for the end of response %q: %w", p.id, err)
		}
	}
	if err := x.cfg.Store.DeleteResponse(ctx, x.caller.Principal, p.id); err != nil {
		return err
	}
	return x.writeJSON(struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Deleted bool   `json:"deleted"`
	}{p.id, "response", true})
}

// inputItems lists what the response was given, in pages.
func (x *exchange) inputItems(p *response) error {
	query := x.r.URL.Query()
	limit, err := strconv.Atoi(or(query.Get("limit"), "20"))
	if err != nil || limit < 1 || limit > 100 {
		return refused("limit must be a number from 1 to 100")
	}
	items, ids := make([]json.RawMessage, len(p.record.Input)), make([]string, len(p.record.Input))
	for i, raw := range p.record.Input {
		if items[i], ids[i], err = listed(p.id, i, raw); err != nil {
			return err
		}
	}
	switch order := or(query.Get("order"), "desc"); order {
	case "desc":
		slices.Reverse(items)
		slices.Reverse(ids)
	case "asc":
	default:
		return refused("order must be asc or desc")
	}
	if after := query.Get("after"); after != "" {
		i := slices.Index(ids, after)
		if i < 0 {
			return refused("after: the response has no input item %.100q", after)
		}
		items, ids = items[i+1:], ids[i+1:]
	}
	more := len(items) > limit
	if more {
		items, ids = items[:limit], ids[:limit]
	}
	page := struct {
		Object  string            `json:"object"`
		Data    []json.RawMessage `json:"data"`
		FirstID *string           `json:"first_id"`
		LastID  *string           `json:"last_id"`
		HasMore bool              `json:"has_more"`
	}{Object: "list", Data: items, HasMore: more}
	if len(ids) > 0 {
		page.FirstID, page.LastID = &ids[0], &ids[len(ids)-1]
	}
	return x.writeJSON(page)
}

// listed returns an input item as the API lists it: with an id, which is always the same,
// and a text as the one part of its content.
func listed(response string, i int, raw json.RawMessage) (item json.RawMessage, id string, err error) {
	var v map[string]json.RawMessage
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, "", fmt.Errorf("read an input item of response %q: %w", response, err)
	}
	if json.Unmarshal(v["id"], &id) != nil || id == "" {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", response, i))
		id = "msg_" + hex.EncodeToString(sum[:16])
	}
	set := func(name string, value any) {
		if err == nil {
			v[name], err = json.Marshal(value)
		}
	}
	set("id", id)
	if v["type"] == nil {
		set("type", "message")
	}
	if content := v["content"]; len(content) > 0 && content[0] == '"' {
		kind := "input_text"
		if string(v["role"]) == `"assistant"` {
			kind = "output_text"
		}
		set("content", []map[string]json.RawMessage{{"type": json.RawMessage(strconv.Quote(kind)), "text": content}})
	}
	if err == nil {
		item, err = json.Marshal(v)
	}
	return item, id, err
}

func (x *exchange) writeJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write an answer: %w", err)
	}
	x.write(http.StatusOK, b)
	return nil
}
