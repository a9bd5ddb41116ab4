package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/pool"
	"roundhouse/internal/secret"
	"roundhouse/internal/session"
)

// live are the settings that a daemon changes while it runs; pool.enabled and
// pool.transports, like recovery and health, act through the servers.
var live = []string{
	"PublicNames", "AllowedOrigins", "Auth.Tokens", "Sessions.Max", "Sessions.IdleTimeout", "Sessions.ExpireAfter", "Sessions.MaxLifetime", "Sessions.MaxTasks", "Sessions.Kinds",
	"Pool.Enabled", "Pool.Transports", "Pool.DrainDelay", "Pool.MaxIdle", "Pool.Budget", "Pool.Recovery", "Pool.Health", "Pool.Circuit",
	"Gateway.ListWait", "Gateway.InteractiveTimeout", "Shutdown.Grace", "Shutdown.Total", "Servers",
	"Autostart.Enabled", // which only "roundhouse connect" reads
	"ListenGiven",       // of no use to a daemon that listens
	"File", "Problems",  // which say where the rest came from
}

// Case 45: every setting either changes while the daemon runs, or is named as one that
// needs a restart.
func TestEverySettingIsEitherLiveOrNeedsARestart(t *testing.T) {
	begun := config.Defaults()
	if names := needsRestart(begun, config.Defaults()); len(names) > 0 {
		t.Errorf("without a change %v need a restart", names)
	}
	var walk func(prefix string, typ reflect.Type, index []int)
	walk = func(prefix string, typ reflect.Type, index []int) {
		for i := range typ.NumField() {
			f, at := typ.Field(i), append(slices.Clone(index), i)
			name := prefix + f.Name
			switch {
			case slices.Contains(live, name):
				continue
			case name == "LLM": // changes as a whole
				body, _ := f.Type.FieldByName("MaxBody")
				at, f.Type = append(at, body.Index...), body.Type
			case f.Type.Kind() == reflect.Struct:
				walk(name+".", f.Type, at)
				continue
			}
			now := config.Defaults()
			switch v := reflect.ValueOf(now).Elem().FieldByIndex(at); v.Kind() {
			case reflect.String:
				v.SetString("other")
			case reflect.Int, reflect.Int64:
				v.SetInt(v.Int() + 1)
			default:
				t.Fatalf("%s is a %s: teach this test to change it, or the daemon to go by it", name, v.Kind())
			}
			if names := needsRestart(begun, now); len(names) != 1 || !strings.EqualFold(names[0], name) {
				t.Errorf("when %s changes, %v need a restart", name, names)
			}
		}
	}
	walk("", reflect.TypeFor[config.Config](), nil)
}

// What changed is told by name; a server that only moved within the file has not changed.
func TestDifferences(t *testing.T) {
	server := func(name string, change func(s *config.Server)) *config.Server {
		s := &config.Server{Name: name, Position: "f:1:1", Command: "x", Env: map[string]secret.String{"A": secret.New("b")}}
		if change != nil {
			change(s)
		}
		return s
	}
	before := []*config.Server{server("same", nil), server("moved", nil), server("secret", nil), server("off", nil), server("gone", nil)}
	after := []*config.Server{
		server("new", nil), server("same", nil),
		server("moved", func(s *config.Server) { s.Position = "f:9:9" }),
		server("secret", func(s *config.Server) { s.Env = map[string]secret.String{"A": secret.New("c")} }),
		server("off", func(s *config.Server) { s.DisabledReason = "broken" }),
	}
	added, changed, removed := differences(before, after)
	if !slices.Equal(added, []string{"new"}) || !slices.Equal(changed, []string{"secret", "off"}) || !slices.Equal(removed, []string{"gone"}) {
		t.Errorf("added %v, changed %v, removed %v", added, changed, removed)
	}
}

// Case 45: a broken file keeps what was read before, and says so once for each way in
// which it is broken; the next good one counts.
func TestABrokenFileChangesNothing(t *testing.T) {
	s, feed := idleServer(t)
	var cfg *config.Config
	var broken error
	r := s.reloader
	r.load = func() (*config.Config, error) { return cfg, broken }
	told := func() (kinds []event.Kind) {
		events, _, _ := feed.After(0)
		for _, e := range events {
			kinds = append(kinds, e.Kind)
		}
		return kinds
	}
	broken = &config.Invalid{Problems: []config.Problem{{Severity: config.Error, Path: "listen", Message: "no"}}}
	for range 3 {
		r.look()
	}
	if done := r.last.Load(); r.current.Load() != s.Config || !done.Refused || len(done.Problems) != 1 || done.Problems[0].Path != "listen" {
		t.Errorf("%+v", done)
	}
	broken = errors.New("another")
	r.look()
	if got := told(); !slices.Equal(got, []event.Kind{event.ReloadRefused, event.ReloadRefused}) {
		t.Errorf("told %v", got)
	}
	cfg, broken = config.Defaults(), nil
	r.look()
	if done := r.last.Load(); r.current.Load() != cfg || done.Refused || len(done.Problems) != 0 {
		t.Errorf("%+v", done)
	}
	cfg = config.Defaults()
	r.look() // the same again
	if got := told(); len(got) != 3 || got[2] != event.ConfigReloaded {
		t.Errorf("told %v", got)
	}
	if done := r.reload(); done.Refused || len(told()) != 4 { // somebody wants it
		t.Errorf("%+v", done)
	}
}

// A watch says when an editor replaces the file, or what a link to it points to.
func TestTheFileIsWatched(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	plain, link, target := filepath.Join(dir, "plain"), filepath.Join(dir, "link"), filepath.Join(elsewhere, "target")
	write(plain, "1")
	write(target, "1")
	if err := os.Symlink(target, link); err != nil {
		t.Skip(err)
	}
	for _, c := range []struct{ file, change string }{{plain, plain}, {link, target}} {
		w := watchFile(c.file, slog.New(slog.DiscardHandler))
		write(c.change, "2")
		happened, _ := w.news()
		late := time.After(time.Minute)
		for concerned := false; !concerned; {
			select {
			case e := <-happened:
				concerned = w.concerns(e)
			case <-late:
				t.Fatalf("nothing is said of %s", c.change)
			}
		}
		w.close()
	}
	none := watchFile("", slog.New(slog.DiscardHandler))
	if happened, failed := none.news(); happened != nil || failed != nil {
		t.Error("without a file something is watched")
	}
	none.close()
}

// idleServer is a daemon's middle, without doors.
func idleServer(t *testing.T) (*server, *event.Feed) {
	t.Helper()
	feed := event.NewFeed()
	s := &server{Options: Options{Config: config.Defaults(), Log: slog.New(slog.DiscardHandler)}}
	s.pool = pool.New(pool.Config{})
	s.sessions = session.NewManager(session.Config{Pool: s.pool})
	s.reloader = newReloader(s, feed)
	t.Cleanup(func() {
		s.sessions.Shutdown(t.Context())
		s.pool.Drain(t.Context(), true)
	})
	return s, feed
}
