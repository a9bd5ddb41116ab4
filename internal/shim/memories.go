package shim

import (
	"encoding/json"
	"slices"
	"strconv"

	"roundhouse/internal/wire"
)

// memories are what a new line must be told so that it stands where the old one
// stood. Guarded by shim.mu.
type memories struct {
	hello       wire.Frame // the initialize request, if its Raw is set
	answer      []byte     // the result that the client got for it; nil before
	initialized []byte
	level       wire.Frame // the last logging/setLevel that was accepted, if its Raw is set
	subscribed  []wire.Frame
	listening   []wire.Frame // subscriptions/listen that the daemon has acknowledged, and not ended
}

// read remembers what the client sends.
func (m *memories) read(f wire.Frame) {
	switch {
	case f.Kind == wire.Request && f.Method == wire.MethodInitialize && m.hello.Raw == nil:
		m.hello = f
	case f.Kind == wire.Notification && f.Method == wire.Initialized:
		m.initialized = f.Raw
	}
}

// forgetHello is for a handshake that failed.
func (m *memories) forgetHello() { m.hello, m.answer = wire.Frame{}, nil }

// answered remembers what the answer to a request changes.
func (m *memories) answered(request, answer wire.Frame) {
	ok := answer.ResultSpan.Present()
	switch request.Method {
	case wire.MethodInitialize:
		switch {
		case string(request.ID()) != string(m.hello.ID()):
		case ok && m.answer == nil:
			m.answer = answer.Result()
		case m.answer == nil:
			m.forgetHello()
		}
	case wire.LoggingSetLevel:
		if ok {
			m.level = request
		}
	case wire.ResourcesSubscribe:
		if ok {
			m.unsubscribe(request)
			m.subscribed = append(m.subscribed, request)
		}
	case wire.ResourcesUnsubscribe:
		if ok {
			m.unsubscribe(request)
		}
	}
}

func (m *memories) unsubscribe(f wire.Frame) {
	uri := uriOf(f)
	m.subscribed = slices.DeleteFunc(m.subscribed, func(s wire.Frame) bool { return uriOf(s) == uri })
}

func (m *memories) listens(id string) bool {
	return slices.ContainsFunc(m.listening, func(f wire.Frame) bool { return string(f.ID()) == id })
}

func (m *memories) unlisten(id string) {
	m.listening = slices.DeleteFunc(m.listening, func(f wire.Frame) bool { return string(f.ID()) == id })
}

// uriOf is the URI in a request, as JSON.
func uriOf(f wire.Frame) string {
	r, err := f.Routing()
	if err != nil {
		return ""
	}
	return string(r.URI.Of(f.Raw))
}

// rest returns what is sent after the handshake was repeated: the notification, and
// requests with ids of ours, whose answers are not for the client.
func (m *memories) rest() (frames [][]byte, ids []string) {
	if m.initialized != nil {
		frames = append(frames, m.initialized)
	}
	again := m.subscribed
	if m.level.Raw != nil {
		again = slices.Insert(slices.Clone(again), 0, m.level)
	}
	for i, f := range again {
		id := strconv.Quote("roundhouse:again:" + strconv.Itoa(i))
		frames = append(frames, wire.Splice(nil, f.Raw, wire.Edit{At: f.IDSpan, With: []byte(id)}))
		ids = append(ids, id)
	}
	return frames, ids
}

// news returns what the client is told after its handshake was repeated: that the
// lists may have changed, which either answer offers, and what it subscribed to. It
// was not told of changes meanwhile.
func (m *memories) news(answer []byte) [][]byte {
	before, after := offers(m.answer), offers(answer)
	var news [][]byte
	for _, list := range []struct{ capability, method string }{
		{"tools", wire.ToolsListChanged}, {"prompts", wire.PromptsListChanged}, {"resources", wire.ResourcesListChanged},
	} {
		if before[list.capability] != nil || after[list.capability] != nil {
			news = append(news, wire.NewNotification(list.method, nil))
		}
	}
	for _, f := range m.subscribed {
		news = append(news, wire.NewNotification(wire.ResourceUpdated, []byte(`{"uri":`+uriOf(f)+`}`)))
	}
	return news
}

// offers are the capabilities in the result of initialize.
func offers(result []byte) map[string]json.RawMessage {
	var r struct {
		Capabilities map[string]json.RawMessage `json:"capabilities"`
	}
	if json.Unmarshal(result, &r) != nil {
		return nil // then it says nothing of lists
	}
	return r.Capabilities
}

// ack is the params of notifications/subscriptions/acknowledged.
type ack struct {
	Meta struct {
		ID json.RawMessage `json:"io.modelcontextprotocol/subscriptionId"`
	} `json:"_meta"`
	Notifications struct {
		Tools     bool     `json:"toolsListChanged"`
		Prompts   bool     `json:"promptsListChanged"`
		Resources bool     `json:"resourcesListChanged"`
		URIs      []string `json:"resourceSubscriptions"`
	} `json:"notifications"`
}

func readAck(f wire.Frame) (a ack) {
	if json.Unmarshal(f.Params(), &a) != nil {
		return ack{} // of no listen
	}
	return a
}

// news returns what a client that listens is told after its listen was sent again: that
// everything of it may have changed. It was not told of changes meanwhile.
func (a *ack) news() (news [][]byte) {
	meta := append(append([]byte(`{"_meta":{"`+wire.MetaSubscription+`":`), a.Meta.ID...), '}')
	for _, list := range []struct {
		granted bool
		method  string
	}{
		{a.Notifications.Tools, wire.ToolsListChanged}, {a.Notifications.Prompts, wire.PromptsListChanged}, {a.Notifications.Resources, wire.ResourcesListChanged},
	} {
		if list.granted {
			news = append(news, wire.NewNotification(list.method, append(meta[:len(meta):len(meta)], '}')))
		}
	}
	for _, uri := range a.Notifications.URIs {
		params := append(append(append(meta[:len(meta):len(meta)], `,"uri":`...), wire.Quote(uri)...), '}')
		news = append(news, wire.NewNotification(wire.ResourceUpdated, params))
	}
	return news
}
