package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// subscriptions/listen is answered from our own fan-out (M9): the servers' list_changed
// and resources/updated of the older era, each copy marked with the listener's own id.

// maxWatched is how many resources one request may listen to.
const maxWatched = 1024

// readWatch reads what a subscriptions/listen asks for. Members may stand once only,
// and in one spelling (W2).
func readWatch(params []byte) (session.Watch, error) {
	var want session.Watch
	raw, err := only(params, "notifications")
	if err != nil {
		return want, err
	}
	if len(raw) == 0 || raw[0] != '{' {
		return want, invalid("params.notifications must be an object")
	}
	for name, flag := range map[string]*bool{"toolsListChanged": &want.Tools, "promptsListChanged": &want.Prompts, "resourcesListChanged": &want.Resources} {
		v, err := only(raw, name)
		if err != nil {
			return want, err
		}
		if v != nil && json.Unmarshal(v, flag) != nil {
			return want, invalid("params.notifications." + name + " must be true or false")
		}
	}
	v, err := only(raw, "resourceSubscriptions")
	if err != nil {
		return want, err
	}
	if v != nil && json.Unmarshal(v, &want.URIs) != nil {
		return want, invalid("params.notifications.resourceSubscriptions must be an array of URIs")
	}
	if len(want.URIs) > maxWatched {
		return want, invalid("one request may listen to 1024 resources at most")
	}
	slices.Sort(want.URIs)
	want.URIs = slices.Compact(want.URIs)
	return want, nil
}

func invalid(message string) error {
	return &wire.ParseFailure{Code: wire.InvalidParams, Message: message}
}

// only returns a member of an object, or nil. It is an error if it stands twice, or in
// another case.
func only(object []byte, name string) (value []byte, err error) {
	for m, err := range wire.Members(object) {
		if err != nil {
			return nil, err
		}
		if !strings.EqualFold(m.Key, name) {
			continue
		}
		if value != nil || m.Key != name {
			return nil, invalid("the member " + name + " stands twice, or is spelled in another way")
		}
		value = m.Value.Of(object)
	}
	return value, nil
}

// listen answers subscriptions/listen with a stream that stands until the client hangs
// up, its session ends, or the daemon does (M9).
func (g *Gateway) listen(w http.ResponseWriter, r *http.Request, k *call) {
	x := newExchange(g, k)
	x.held = true
	k.visit.Stream = x
	if err := g.enroll(x.me); err != nil {
		fail(w, 0, k.frame.ID(), err)
		return
	}
	defer g.discharge(x.me)
	c, err := g.cfg.Sessions.Visit(k.visit)
	if err != nil {
		g.refuse(w, k.frame.ID(), err)
		return
	}
	closed := c.StreamOpened()
	defer closed()
	x.serve(w, r, c, func() {
		granted, err := c.Listen(r.Context(), k.watch)
		if err != nil {
			x.fail(err)
			return
		}
		x.acknowledge(granted)
	})
}

// acknowledge lets the listening begin: the client first hears what it will be told of.
// If that is nothing, that is all.
func (x *exchange) acknowledge(granted session.Watch) {
	x.mu.Lock()
	if !x.over && !x.lost {
		x.held, x.granted = false, granted
		x.first = x.call.acknowledgement(granted)
	}
	x.mu.Unlock()
	x.signal()
	if nothing(granted) {
		x.close()
	}
}

func nothing(w session.Watch) bool {
	return !w.Tools && !w.Prompts && !w.Resources && len(w.URIs) == 0
}

// acknowledgement is the first that a listener hears.
func (k *call) acknowledgement(granted session.Watch) []byte {
	return wire.NewNotification(wire.Acknowledged, k.marked(grant(granted)))
}

// ending is the answer to a listening that ends in order.
func (k *call) ending() []byte {
	return wire.Result(k.frame.ID(), k.marked([]byte(`"resultType":"complete"`)))
}

// grant says, as a member of params, what a client will be told of.
func grant(w session.Watch) []byte {
	v := struct {
		Tools     bool     `json:"toolsListChanged,omitempty"`
		Prompts   bool     `json:"promptsListChanged,omitempty"`
		Resources bool     `json:"resourcesListChanged,omitempty"`
		URIs      []string `json:"resourceSubscriptions,omitempty"`
	}{w.Tools, w.Prompts, w.Resources, w.URIs}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and booleans
	}
	return append([]byte(`"notifications":`), b...)
}

// marked returns an object with the listener's id in its _meta, as the client spelled
// it, and further members.
func (k *call) marked(members ...[]byte) []byte {
	b := append([]byte(`{"_meta":`), k.mark([]byte("{}"))...)
	for _, m := range members {
		b = append(append(b, ','), m...)
	}
	return append(b, '}')
}

// mark adds the listener's id to a _meta object.
func (k *call) mark(meta []byte) []byte {
	b := append([]byte(`{"`+wire.MetaSubscription+`":`), k.frame.ID()...)
	if len(meta) > len("{}") {
		b = append(b, ',')
	}
	return append(b, meta[1:]...)
}

// Push implements session.Stream, for a client that listens.
func (x *exchange) Push(p mux.Pieces) { x.Note(p) }

// End implements session.Stream: the listening ends in order.
func (x *exchange) End(*fault.Error) { x.close() }

// close ends a listening with the result that says so. It reports false for other
// requests.
func (x *exchange) close() bool {
	x.mu.Lock()
	lost := x.lost
	x.mu.Unlock()
	if lost || x.call.frame.Method != wire.SubscriptionsListen {
		return false
	}
	x.Done(mux.Pieces{x.call.ending()})
	return true
}

// heard is a notification as a listener gets it, or nil if it did not ask for it.
func (k *call) heard(f wire.Frame, granted session.Watch) []byte {
	switch f.Method {
	case wire.ToolsListChanged:
		if !granted.Tools {
			return nil
		}
	case wire.PromptsListChanged:
		if !granted.Prompts {
			return nil
		}
	case wire.ResourcesListChanged:
		if !granted.Resources {
			return nil
		}
	case wire.ResourceUpdated:
		return k.updated(f)
	default:
		return nil
	}
	return wire.NewNotification(f.Method, k.marked())
}

// updated marks a notifications/resources/updated, which comes to subscribers only.
func (k *call) updated(f wire.Frame) []byte {
	r, err := f.Routing()
	if err != nil || !r.URI.Present() {
		return nil
	}
	if !r.Meta.Present() {
		at := wire.Span{Start: f.ParamsSpan.Start + 1, End: f.ParamsSpan.Start + 1}
		head := append(append([]byte(`"_meta":`), k.mark([]byte("{}"))...), ',') // uri follows
		return wire.Splice(nil, f.Raw, wire.Edit{At: at, With: head})
	}
	if f.Raw[r.Meta.Start] != '{' {
		return nil
	}
	meta, err := era.PublicMeta(r.Meta.Of(f.Raw))
	if err != nil {
		return nil
	}
	return wire.Splice(nil, f.Raw, wire.Edit{At: r.Meta, With: k.mark(meta)})
}
