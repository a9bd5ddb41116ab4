package pool

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/secret"
)

var testKey = []byte("a key for tests")

// fullServer has a value in every field that is part of a fingerprint.
func fullServer() *config.Server {
	return &config.Server{
		Name: "s", Transport: config.Stdio, Command: "cmd", Args: []string{"a", "b"}, Cwd: "/srv",
		Env:     map[string]secret.String{"A": secret.New("1"), "B": secret.New("2")},
		URL:     secret.New("https://search.example/mcp"),
		Headers: map[string]secret.String{"Authorization": secret.New("x"), "X-Chat-Id": secret.New("y")},
		Sharing: config.Shared, Interactive: config.Auto, Era: config.EraAuto,
		StartTimeout: time.Minute, CallTimeout: time.Minute, CloseEOFWait: 1, CloseTermWait: 2, CloseKillWait: 3,
		OAuth: config.OAuth{Enabled: true, ClientID: "id", ClientSecret: secret.New("hidden"), Scopes: []string{"r", "w"}, Audiences: []string{"u", "v"}},
	}
}

func printOf(change func(w *Want)) string {
	w := Want{Server: fullServer(), Principal: "local", Capabilities: []byte(`{"roots":{}}`), Workspace: "/home/me"}
	if change != nil {
		change(&w)
	}
	return fingerprint(testKey, w)
}

// K2: what does not define a connection. A field that is here or in none of both is a
// decision to make when it is added.
var excluded = []string{
	"Position", "DisabledReason", // where it stands, and whether
	"Sharing",                      // only shared servers are looked up by fingerprint
	"Instances",                    // one is made for a place of its own, and never looked up
	"Cleanup",                      // each session has its own
	"Retry",                        // each session sends its own calls
	"IncludeTools", "ExcludeTools", // each session filters for itself
	"ForwardHeaders",       // their values are among Headers
	"Injected",             // such a server is never looked up
	"Dialer",               // nor is one that a request named
	"Description", "Trust", // for people and other hosts
}

// K1, K2, K3: every field of a server changes the fingerprint, or is excluded by name.
func TestEveryFieldOfAServerIsInTheFingerprintOrExcluded(t *testing.T) {
	base := printOf(nil)
	for _, path := range fieldsOf(reflect.TypeFor[config.Server](), "") {
		t.Run(path, func(t *testing.T) {
			changed := printOf(func(w *Want) {
				if path == "Dialer" {
					w.Server.Dialer = &net.Dialer{}
					return
				}
				v := reflect.ValueOf(w.Server).Elem()
				for name := range strings.SplitSeq(path, ".") {
					v = v.FieldByName(name)
				}
				change(t, v)
			})
			outer, _, _ := strings.Cut(path, ".")
			switch out := slices.Contains(excluded, outer); {
			case out && changed != base:
				t.Errorf("%s is excluded and changes the fingerprint", path)
			case !out && changed == base:
				t.Errorf("%s is neither in the fingerprint nor excluded by name", path)
			}
		})
	}
	for _, name := range excluded {
		if _, ok := reflect.TypeFor[config.Server]().FieldByName(name); !ok {
			t.Errorf("the excluded field %s does not exist", name)
		}
	}
}

// fieldsOf lists the fields of a struct type, those of structs in it as Outer.Inner.
func fieldsOf(typ reflect.Type, prefix string) (paths []string) {
	for f := range typ.Fields() {
		if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[secret.String]() {
			paths = append(paths, fieldsOf(f.Type, prefix+f.Name+".")...)
		} else {
			paths = append(paths, prefix+f.Name)
		}
	}
	return paths
}

// change gives a field another value.
func change(t *testing.T, v reflect.Value) {
	t.Helper()
	switch x := v.Addr().Interface().(type) {
	case *secret.String:
		*x = secret.New(x.Reveal() + "+")
	case *map[string]secret.String:
		m := map[string]secret.String{"New": secret.New("n")}
		maps.Copy(m, *x)
		*x = m
	case *[]secret.String:
		*x = append(slices.Clone(*x), secret.New("+"))
	case *json.RawMessage:
		*x = json.RawMessage("[]")
	case *[]string:
		*x = append(slices.Clone(*x), "+")
	default:
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "+")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int64, reflect.Int:
			v.SetInt(v.Int() + 1)
		default:
			t.Fatalf("this test cannot change a %s", v.Type())
		}
	}
}

// K1, K2, case 26: what makes two wants one connection, and what does not.
func TestFingerprint(t *testing.T) {
	header := func(w *Want, name, value string) {
		w.Server.Headers = map[string]secret.String{name: secret.New(value)}
	}
	base := printOf(nil)
	for _, c := range []struct {
		name string
		same bool
		a, b func(w *Want) // nil is the base
	}{
		{"the same", true, nil, func(w *Want) { w.Server = fullServer() }},
		{"another principal", false, nil, func(w *Want) { w.Principal = "other" }},
		{"another principal where they share", true,
			func(w *Want) { w.Server.ShareAcrossPrincipals = true },
			func(w *Want) { w.Server.ShareAcrossPrincipals, w.Principal = true, "other" }},
		{"other capabilities", false, nil, func(w *Want) { w.Capabilities = []byte(`{}`) }},
		{"another workspace (K6)", false, nil, func(w *Want) { w.Workspace = "/home/you" }},
		{"another listener", true, nil, func(w *Want) { w.Listener = &ear{} }},
		{"a header's name in another case", true,
			func(w *Want) { header(w, "X-Chat-Id", "1") }, func(w *Want) { header(w, "x-chat-id", "1") }},
		{"a header's value in another case", false,
			func(w *Want) { header(w, "X-Chat-Id", "a") }, func(w *Want) { header(w, "X-Chat-Id", "A") }},
		{"a variable's name in another case", false,
			func(w *Want) { w.Server.Env = map[string]secret.String{"a": secret.New("1")} },
			func(w *Want) { w.Server.Env = map[string]secret.String{"A": secret.New("1")} }},
		{"a rotated token", false, nil, func(w *Want) { w.Server.Headers["Authorization"] = secret.New("Bearer 2") }},
		{"an empty variable and none", false, nil, func(w *Want) { w.Server.Env["C"] = secret.String{} }},
		{"arguments in another order", false, nil, func(w *Want) { w.Server.Args = []string{"b", "a"} }},
		{"arguments cut elsewhere", false,
			func(w *Want) { w.Server.Args = []string{"a b"} }, func(w *Want) { w.Server.Args = []string{"a", "b"} }},
		{"arguments that look like two", false,
			func(w *Want) { w.Server.Args = []string{`a", "b`} }, func(w *Want) { w.Server.Args = []string{"a", "b"} }},
		{"scopes in another order, and twice", true, nil, func(w *Want) { w.Server.OAuth.Scopes = []string{"w", "r", "w"} }},
		{"audiences in another order", true, nil, func(w *Want) { w.Server.OAuth.Audiences = []string{"v", "u"} }},
		{"an empty argument and none", false,
			func(w *Want) { w.Server.Args = nil }, func(w *Want) { w.Server.Args = []string{""} }},
		{"nil and empty", true,
			func(w *Want) {
				w.Server.Args, w.Server.Env, w.Server.Headers = nil, nil, nil
				w.Server.OAuth.Scopes, w.Server.OAuth.Audiences, w.Capabilities = nil, nil, nil
			},
			func(w *Want) {
				w.Server.Args, w.Server.Env, w.Server.Headers = []string{}, map[string]secret.String{}, map[string]secret.String{}
				w.Server.OAuth.Scopes, w.Server.OAuth.Audiences, w.Capabilities = []string{}, []string{}, []byte{}
			}},
		{"bytes that are no text", false,
			func(w *Want) { header(w, "Authorization", "\xfe") }, func(w *Want) { header(w, "Authorization", "\xff") }},
		{"other filters", true, nil, func(w *Want) { w.Server.IncludeTools, w.Server.ExcludeTools = []string{}, []string{"x"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := printOf(c.a), printOf(c.b)
			if (a == b) != c.same {
				t.Errorf("equal: %v, want %v", a == b, c.same)
			}
			if c.a == nil && a != base {
				t.Error("the base is not stable")
			}
		})
	}
}

// K1: the order in which a map is walked does not count.
func TestMapOrderDoesNotCount(t *testing.T) {
	build := func(keys []string) string {
		return printOf(func(w *Want) {
			w.Server.Env, w.Server.Headers = map[string]secret.String{}, map[string]secret.String{}
			for _, k := range keys {
				w.Server.Env[k], w.Server.Headers["X-"+k] = secret.New(k), secret.New(k)
			}
		})
	}
	keys := strings.Split("abcdefghijklmnop", "")
	base := build(keys)
	slices.Reverse(keys)
	for range 20 {
		if build(keys) != base {
			t.Fatal("the fingerprint depends on the order")
		}
	}
}

// K4: the hash is keyed, so that ids are no oracle: two pools give two ids, of 128
// bits as hex, and nothing of a secret shows.
func TestIDsAreNoOracle(t *testing.T) {
	ids := map[string]bool{}
	for range 2 {
		inWorld(t, defaults, func(w *world) {
			server, _ := w.server("files")
			server.Env = map[string]secret.String{"TOKEN": secret.New("sesame")}
			id := w.acquire(w.pool.NewHolder("a"), server).ID()
			ids[id] = true
			if name, fp := SplitID(id); name != "files" || len(fp) != 32 || strings.Trim(fp, "0123456789abcdef") != "" {
				t.Errorf("the id is %q", id)
			}
		})
	}
	if len(ids) != 2 {
		t.Error("two pools gave the same id")
	}
}

// K5: ids are split at the last "::".
func TestSplitID(t *testing.T) {
	for _, c := range []struct{ id, name, fp string }{
		{"files::0a", "files", "0a"},
		{"a::b::0a", "a::b", "0a"},
		{"files::unpooled-3", "files", "unpooled-3"},
		{"::0a", "", "0a"},
		{"a:::0a", "a:", "0a"},
		{"files", "files", ""},
	} {
		if name, fp := SplitID(c.id); name != c.name || fp != c.fp {
			t.Errorf("SplitID(%q) = %q, %q; want %q, %q", c.id, name, fp, c.name, c.fp)
		}
	}
}

// Case 26: principals share nothing unless the server says so.
func TestPrincipalsDoNotShare(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("search")
		acquire := func(principal string) *Attachment {
			x := want(server, nil)
			x.Principal = principal
			return w.acquireWith(w.pool.NewHolder(principal), x)
		}
		if acquire("ann").ID() == acquire("bob").ID() || w.started() != 2 {
			t.Errorf("two principals share; %d processes", w.started())
		}
		server.ShareAcrossPrincipals = true
		if acquire("ann").ID() != acquire("bob").ID() {
			t.Error("two principals do not share although the server says that they may")
		}
	})
}

// Case 45: with one argument changed new sessions get a new connection, the old one
// serves those who have it, and ends when they have left.
func TestAChangedConfigurationLetsTheOldConnectionDrain(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		old, _ := w.server("files")
		now := *old
		now.Args = []string{"--new"}
		a := w.acquire(w.pool.NewHolder("a"), old)
		out := w.call(a, "sleep:10s")
		b := w.acquire(w.pool.NewHolder("b"), &now)
		if a.ID() == b.ID() {
			t.Fatal("the changed server shares the old connection")
		}
		sleep(10 * time.Second)
		if out.got() == "" {
			t.Error("the call in flight got no answer")
		}
		a.Release()
		sleep(testDrainDelay)
		if i := w.only("files"); i.ID != b.ID() || w.alive() != 1 {
			t.Errorf("left is %+v, with %d processes", i, w.alive())
		}
	})
}

// K7: the pool shares what is to be shared and nothing else.
func TestOnlySharedServersAreShared(t *testing.T) {
	for _, sharing := range []config.Sharing{config.Session, config.Exclusive} {
		inWorld(t, defaults, func(w *world) {
			server, _ := w.server("files")
			server.Sharing = sharing
			h := w.pool.NewHolder("a")
			a, b := w.acquire(h, server), w.acquire(w.pool.NewHolder("b"), server)
			if a.ID() == b.ID() || !a.Own() || a.ID() != "files::unpooled-1" || b.ID() != "files::unpooled-2" {
				t.Errorf("%s: the ids are %s and %s", sharing, a.ID(), b.ID())
			}
			if _, err := h.Acquire(context.Background(), want(server, nil)); err != nil {
				t.Error(err)
			}
		})
	}
}

// X4: the name of the session, which a server that is not shared is told, does not make it
// another server: what is known of one is known for all sessions.
func TestTheNameOfTheSessionIsNotInTheFingerprint(t *testing.T) {
	with := func(sharing config.Sharing, id string) string {
		return printOf(func(w *Want) {
			w.Server.Sharing = sharing
			if id != "" {
				w.Server.Headers = map[string]secret.String{"X-Session-Id": secret.New(id)}
			}
		})
	}
	if with(config.Session, "a") != with(config.Session, "b") {
		t.Error("sessions have servers of their own each")
	}
	if with(config.Shared, "a") == with(config.Shared, "b") {
		t.Error("a configured header of a shared server is left out")
	}
}
