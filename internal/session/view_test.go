package session

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// V3: exclude comes first; then an absent include list is all and an empty one none; an
// include entry is cut at its first "(".
func TestPermits(t *testing.T) {
	for _, x := range []struct {
		tools        Tools
		server, name string
		want         bool
	}{
		{Tools{}, "a", "b", true},
		{Tools{Include: []string{}}, "a", "b", false},
		{Tools{Include: []string{"a__b"}}, "a", "b", true},
		{Tools{Include: []string{"a__b(x)"}}, "a", "b", true},
		{Tools{Include: []string{"a__b"}}, "a", "B", false},
		{Tools{Include: []string{"a__b"}}, "A", "b", false},
		{Tools{Include: []string{"a__*"}}, "a", "b", true},
		{Tools{Include: []string{"a__*"}}, "ab", "b", false},
		{Tools{Include: []string{"a__*"}, Exclude: []string{"a__b"}}, "a", "b", false},
		{Tools{Exclude: []string{"a__*"}}, "a", "b", false},
		{Tools{Exclude: []string{"a__b"}}, "a", "c", true},
		{Tools{Exclude: []string{"a__b(x)"}}, "a", "b", true},
		// Another server's tool of the same spelling is not let in, but kept out.
		{Tools{Include: []string{"a__b__c"}}, "a", "b__c", true},
		{Tools{Include: []string{"a__b__c"}}, "a__b", "c", false},
		{Tools{Include: []string{"a__b__*"}}, "a__b", "c", true},
		{Tools{Exclude: []string{"a__b__c"}}, "a__b", "c", false},
		// Names that model APIs do not take.
		{Tools{Include: []string{publicName("a b", "c.d")}}, "a b", "c.d", true},
		{Tools{Include: []string{"a b__c.d"}}, "a b", "c.d", false},
		{Tools{Exclude: []string{"a b__c.d"}}, "a b", "c.d", false},
	} {
		if got := permits(&x.tools, x.server, x.name); got != x.want {
			t.Errorf("%+v lets %s of %s through: %t", x.tools, x.name, x.server, got)
		}
	}
}

// ParseTools refuses what would have no effect (V3, W2).
func TestParseTools(t *testing.T) {
	for _, good := range []string{`null`, `{}`, `{"include":[]}`, `{"exclude":["a__b","c__*"],"include":["a__x(y)"]}`} {
		if _, err := ParseTools([]byte(good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		``, `[]`, `"a__b"`, `{"include":null}`, `{"include":"a__b"}`, `{"include":[1]}`, `{"include":["a"]}`, `{"Exclude":["a__b"]}`,
		`{"exclude":[],"exclude":["a__b"]}`, `{"exclude":["a__b"],"only":[]}`, `{"exclude":["a__b*"]}`,
	} {
		if f, err := ParseTools([]byte(bad)); !fault.Is(err, fault.BadRequest) {
			t.Errorf("%s: %v, %v", bad, f, err)
		}
	}
}

// twoTools answers tools/list with the tools echo and danger.
func twoTools(l *link, f wire.Frame) bool {
	if f.Method != wire.ToolsList {
		return false
	}
	go l.say(wire.Result(f.ID(), []byte(`{"tools":[{"name":"echo"},{"name":"danger"}]}`)))
	return true
}

// lists returns the names that a client is listed.
func (c *Client) lists() string {
	var names []string
	for part := range strings.SplitSeq(c.do(2, wire.ToolsList, `{}`), `"name":"`) {
		name, _, _ := strings.Cut(part, `"`)
		names = append(names, name)
	}
	return strings.Join(names[1:], " ")
}

// wantDenied checks that a tool can be called under neither of its names, and that this
// looks as if there were none (case 29).
func (c *Client) wantDenied(t *testing.T, tool string) {
	t.Helper()
	denied := c.do(3, wire.ToolsCall, `{"name":"`+tool+`"}`)
	unknown := c.do(3, wire.ToolsCall, `{"name":"nothing"}`)
	if !strings.Contains(denied, `"reason":"forbidden_tool"`) || strings.ReplaceAll(denied, tool, "nothing") != unknown {
		t.Errorf("a denied tool gives %s, an unknown one %s", denied, unknown)
	}
}

// V4: a session's filter changes what this session sees and may call, of one server and
// of all; only its clients are told, and no server hears of it.
func TestASessionsFilter(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a"), server("b")}, func(w *world) {
		w.on = twoTools
		one, all, other := w.client("a", "s"), w.client("", "s"), w.client("", "o")
		before := all.lists()
		if before != "a__echo a__danger b__echo b__danger" || one.lists() != "echo danger" || other.lists() != before {
			t.Fatalf("without a filter: %s", before)
		}
		if got := one.do(4, wire.ToolsCall, `{"name":"danger"}`); strings.Contains(got, "error") {
			t.Fatalf("without a filter: %s", got)
		}
		seen := len(w.link("a").seen) + len(w.link("b").seen)
		for _, c := range []*Client{one, all, other} {
			c.heard()
		}
		set := func(f *Tools) {
			t.Helper()
			if err := w.m.SetTools(context.Background(), "local", "s", f); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		set(&Tools{Exclude: []string{"a__danger"}})
		told := []string{wire.ToolsListChanged, wire.PromptsListChanged}
		expectHeard(t, one, told...)
		expectHeard(t, all, told...)
		expectHeard(t, other)
		if one.lists() != "echo" || all.lists() != "a__echo b__echo b__danger" || other.lists() != before {
			t.Errorf("%s; %s; %s", one.lists(), all.lists(), other.lists())
		}
		one.wantDenied(t, "danger")
		all.wantDenied(t, "a__danger")
		all.wantDenied(t, "a__ech")
		set(&Tools{Exclude: []string{"a__danger"}})
		expectHeard(t, one)
		set(&Tools{Include: []string{"b__*"}})
		one.wantDenied(t, "echo")
		if one.lists() != "" || all.lists() != "b__echo b__danger" {
			t.Errorf("%s; %s", one.lists(), all.lists())
		}
		if info, err := w.m.Get("local", false, "s"); err != nil || info.Tools == nil || !slices.Equal(info.Tools.Include, []string{"b__*"}) {
			t.Errorf("%+v %v", info, err)
		}
		if now := len(w.link("a").seen) + len(w.link("b").seen); now != seen {
			t.Errorf("the servers were told %v, %v", w.link("a").seen, w.link("b").seen)
		}
		set(&Tools{})
		if one.lists() != "echo danger" || all.lists() != before {
			t.Errorf("%s; %s", one.lists(), all.lists())
		}
		if err := w.m.SetTools(context.Background(), "another", "s", &Tools{}); !fault.Is(err, fault.UnknownSession) {
			t.Errorf("another principal's: %v", err)
		}
	})
}

// V3, V4: a principal's filter holds in all of its sessions whatever they say, and a new
// one holds at once. It outlives the loss of a connection.
func TestAPrincipalsFilter(t *testing.T) {
	inWorld(t, usual, []*config.Server{lasting("a")}, func(w *world) {
		w.on = twoTools
		c := w.client("a", "s")
		filter := func(f map[string]config.ToolFilter) {
			s := w.m.live.Load().Settings
			s.Filters = f
			w.m.Configure(s)
			synctest.Wait()
		}
		c.lists()
		c.heard()
		filter(map[string]config.ToolFilter{"local": {Exclude: []string{"a__danger"}}, "another": {Include: []string{}}})
		expectHeard(t, c, wire.ToolsListChanged, wire.PromptsListChanged)
		if err := w.m.SetTools(context.Background(), "local", "s", &Tools{Include: []string{"a__danger", "a__echo"}}); err != nil {
			t.Fatal(err)
		}
		if c.lists() != "echo" {
			t.Error(c.lists())
		}
		c.wantDenied(t, "danger")
		w.link("a").Abort(upstream.ErrInterrupted)
		synctest.Wait()
		c.wantDenied(t, "danger")
		if w.client("a", "s2").lists() != "echo" {
			t.Error("another session of the principal sees more")
		}
		c.heard()
		filter(map[string]config.ToolFilter{"another": {Include: []string{}}})
		expectHeard(t, c, wire.ToolsListChanged, wire.PromptsListChanged)
		if c.lists() != "echo danger" {
			t.Error(c.lists())
		}
	})
}

// V4: a client may bring the filter of its session; the others hear of it.
func TestAClientBringsAFilter(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		w.on = twoTools
		first := w.client("a", "s")
		first.lists()
		first.heard()
		second, _, err := w.m.Initialize(w.Context(), Hello{
			ClientID: NewID(), Principal: "local", Session: "s", Scope: "a", Tools: &Tools{Include: []string{"a__echo"}},
			Frame: frame(1, wire.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{}}`), Stream: newTray(),
		})
		if err != nil {
			t.Fatal(err)
		}
		expectHeard(t, first, wire.ToolsListChanged, wire.PromptsListChanged)
		expectHeard(t, second)
		if first.lists() != "echo" || second.lists() != "echo" {
			t.Errorf("%s; %s", first.lists(), second.lists())
		}
		visit := Visit{Principal: "local", Scope: "a", Capabilities: []byte(`{}`), Tools: &Tools{}}
		if _, err := w.m.Visit(visit); !fault.Is(err, fault.BadRequest) {
			t.Errorf("the filter of a session that is everybody's: %v", err)
		}
		visit.Session = "s"
		c, err := w.m.Visit(visit)
		if err != nil {
			t.Fatal(err)
		}
		c.Leave()
		if first.lists() != "echo danger" {
			t.Error(first.lists())
		}
	})
}
