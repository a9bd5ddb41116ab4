package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/wire"
)

// S5: an attach needs no request of its own to show the catalogue.
func TestAttachShowsTheCatalogueAtOnce(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.tools = []string{"a", "b"} })
		w.acquire(w.pool.NewHolder("a"), server)
		b := w.acquire(w.pool.NewHolder("b"), server)
		if got := keysOf(b.Peek(Tools)); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("it shows %q", got)
		}
		w.tools(b)
		if n := w.asked(wire.ToolsList); n != 1 {
			t.Errorf("the server was asked %d times, want once", n)
		}
		h, err := b.Handshake(context.Background())
		if err != nil || h.Version != "2025-11-25" || !h.Has("tools") || h.Has("prompts") {
			t.Errorf("the handshake is %+v, %v", h, err)
		}
	})
}

// V1, case 32: a hundred announcements in a second are a few requests, and one
// notification to everybody for what really changed.
func TestManyAnnouncementsAreFewRequestsAndOneNotification(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		ears := []*ear{{}, {}, {}}
		var atts []*Attachment
		for i, e := range ears {
			x := want(server, e)
			if i == 2 {
				filtered := *server
				filtered.ExcludeTools = []string{"new"}
				x.Server = &filtered
			}
			atts = append(atts, w.acquireWith(w.pool.NewHolder(fmt.Sprint(i)), x))
		}
		s.set(func(s *script) { s.tools = []string{"echo", "new"} })
		for range 100 {
			w.proc().changed(wire.ToolsListChanged)
			time.Sleep(10 * time.Millisecond)
		}
		sleep(5 * time.Second)
		if n := w.asked(wire.ToolsList); n < 2 || n > 7 {
			t.Errorf("the server was asked %d times, want the first time and at most 6 more", n)
		}
		for _, e := range ears {
			e.expect(t, "tools changed")
		}
		for i, n := range []int{2, 2, 1} {
			if got := w.tools(atts[i]); len(got) != n {
				t.Errorf("session %d sees %q, want %d tools", i, got, n)
			}
		}

		w.proc().changed(wire.ToolsListChanged) // and it did not
		sleep(time.Second)
		for _, e := range ears {
			e.expect(t, "tools changed")
		}
		s.set(func(s *script) { s.tools = []string{"echo"} })
		w.proc().changed(wire.ToolsListChanged)
		sleep(time.Second)
		for _, e := range ears {
			e.expect(t, "tools changed", "tools changed")
		}
	})
}

// V1: a change that is announced while the list is being read again, or while the
// connection starts, is not lost.
func TestAChangeDuringAReadingIsNotLost(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		reads := 0
		s.set(func(s *script) {
			s.list = func(string, string) string {
				reads++
				if reads <= 2 { // at the start, and the first time again
					w.proc().changed(wire.ToolsListChanged)
				}
				return toolsResult("version " + strconv.Itoa(reads))
			}
		})
		a := w.acquire(w.pool.NewHolder("a"), server)
		sleep(time.Second)
		if got := w.tools(a); !slices.Equal(got, []string{"version 3"}) {
			t.Errorf("it shows %q, want version 3", got)
		}
	})
}

// V1: a resources announcement covers the templates too, and is one notification.
func TestAChangeOfResourcesCoversTemplates(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		version := "1"
		s.set(func(s *script) {
			s.caps = `{"resources":{}}`
			s.list = func(method, _ string) string {
				if method == wire.ResourcesList {
					return `{"resources":[{"uri":"file:///` + version + `"}]}`
				}
				return `{"resourceTemplates":[{"uriTemplate":"x` + version + `:{a}"}]}`
			}
		})
		e := &ear{}
		a := w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		version = "2"
		w.proc().changed(wire.ResourcesListChanged)
		sleep(time.Second)
		e.expect(t, "resources changed")
		if got := w.keys(a, Templates); !slices.Equal(got, []string{"x2:{a}"}) {
			t.Errorf("the templates are %q", got)
		}
		if w.asked(wire.ToolsList)+w.asked(wire.PromptsList) > 0 {
			t.Error("lists that the server does not declare were asked for")
		}
		if l, err := a.List(context.Background(), Tools); l != nil || err != nil {
			t.Errorf("a list that is not declared is %v, %v", l, err)
		}
	})
}

// paged serves n pages of one tool each.
func paged(n int) func(string, string) string {
	return func(_, cursor string) string {
		page, _ := strconv.Atoi(cursor)
		next := ""
		if page < n-1 {
			next = fmt.Sprintf(`,"nextCursor":"%d"`, page+1)
		}
		return fmt.Sprintf(`{"tools":[{"name":"tool%d"}]%s}`, page, next)
	}
}

// V2: all pages are read, up to a cap, and a cursor that repeats ends it.
func TestPages(t *testing.T) {
	for _, c := range []struct {
		name  string
		list  func(method, cursor string) string
		tools int
		err   string
	}{
		{"one", paged(1), 1, ""},
		{"many", paged(7), 7, ""},
		{"as many as the cap", paged(maxPages), maxPages, ""},
		{"one more than the cap", paged(maxPages + 1), 0, "more than 1000 pages"},
		{"the same cursor for ever", func(string, string) string { return `{"tools":[],"nextCursor":"x"}` }, 0, "repeats the cursor"},
		{"cursors in a circle", func(_, cursor string) string {
			return `{"tools":[],"nextCursor":"` + map[string]string{"": "a", "a": "b", "b": "c", "c": "a"}[cursor] + `"}`
		}, 0, "repeats the cursor"},
		{"an empty cursor is none", func(string, string) string { return `{"tools":[{"name":"a"}],"nextCursor":""}` }, 1, ""},
		{"a cursor that is null is none", func(string, string) string { return `{"tools":[{"name":"a"}],"nextCursor":null}` }, 1, ""},
		{"a page without the list", func(string, string) string { return `{"tolls":[]}` }, 0, `no array "tools"`},
		{"a list that is no array", func(string, string) string { return `{"tools":{}}` }, 0, `no array "tools"`},
		{"an error", func(string, string) string { return `({"code":-32603,"message":"disk on fire"})` }, 0, `"disk on fire" (code -32603)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, defaults, func(w *world) {
				server, s := w.server("files")
				s.set(func(s *script) { s.list = c.list })
				a := w.acquire(w.pool.NewHolder("a"), server)
				l, err := a.List(context.Background(), Tools)
				if c.err != "" {
					if err == nil || !strings.Contains(err.Error(), c.err) {
						t.Errorf("the error is %v, want %q", err, c.err)
					}
					return
				}
				if err != nil || len(l.Items) != c.tools {
					t.Errorf("%d tools, %v; want %d", len(keysOf(l)), err, c.tools)
				}
			})
		})
	}
}

// R9: a failed list is no empty one. At the start: the session may attach, the error
// is the answer, the next request tries again, and those who got the error hear of it.
func TestAFailedListAtTheStartIsTriedAgain(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) {
			s.list = func(string, string) string { return `({"code":-32603,"message":"not yet"})` }
		})
		e, f := &ear{}, &ear{}
		a := w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		b := w.acquireWith(w.pool.NewHolder("b"), want(server, f))
		_, err := a.List(context.Background(), Tools)
		if _, ok := errors.AsType[*RPCError](err); !ok {
			t.Errorf("the list gives %v, want the server's error", err)
		}
		if a.Peek(Tools) != nil {
			t.Error("a list that was never read shows something")
		}
		if !a.Knows(Tools, "anything") {
			t.Error("a list that was never read must not deny anything")
		}
		s.set(func(s *script) { s.list = nil })
		if got := w.tools(b); len(got) != 1 {
			t.Errorf("the second try shows %q", got)
		}
		synctest.Wait()
		e.expect(t, "tools changed")
		if !a.Knows(Tools, "echo") || a.Knows(Tools, "anything") {
			t.Error("the list that was read is not what it knows")
		}
	})
}

// R9: after the start a failed list leaves sessions what they had, and is tried again
// when somebody asks.
func TestAFailedListNeverEmptiesIt(t *testing.T) {
	for _, c := range []struct{ name, list string }{
		{"an error", `({"code":-32603,"message":"no"})`},
		{"nonsense", `{"tools":7}`},
		{"no answer", ``},
	} {
		for _, when := range []string{"announced", "restarted"} {
			if c.list == "" && when == "restarted" {
				continue // a server that does not answer at its start has not started
			}
			t.Run(c.name+", "+when, func(t *testing.T) {
				inWorld(t, defaults, func(w *world) {
					server, s := w.server("files")
					e := &ear{}
					a := w.acquireWith(w.pool.NewHolder("a"), want(server, e))
					heard := []string{}
					s.set(func(s *script) { s.list = func(string, string) string { return c.list } })
					if when == "restarted" {
						w.pool.Restart(context.Background(), "files")
						heard = []string{"renewed"}
					} else {
						w.proc().changed(wire.ToolsListChanged)
						sleep(2 * refetchTimeout)
					}
					synctest.Wait()
					begun := time.Now()
					if got := w.tools(a); !slices.Equal(got, []string{"echo"}) {
						t.Errorf("it shows %q, want what it had", got)
					}
					if took := time.Since(begun); took > staleTimeout {
						t.Errorf("the older list came after %s", took)
					}
					e.expect(t, heard...)

					s.set(func(s *script) { s.list, s.tools = nil, []string{"new"} })
					if got := w.tools(a); !slices.Equal(got, []string{"new"}) {
						t.Errorf("when it can be read again it shows %q", got)
					}
					synctest.Wait()
					e.expect(t, append(heard, "tools changed")...)
				})
			})
		}
	}
}

// V1, R8: a reading that began before a change does not replace one that began after it.
func TestAnOldReadingDoesNotReplaceANewerOne(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) {
			s.list = func(string, string) string { return `({"code":-32603,"message":"not yet"})` }
		})
		a := w.acquire(w.pool.NewHolder("a"), server)
		s.set(func(s *script) { s.list = func(string, string) string { return "" } })
		slow := make(chan []string, 1)
		go func() {
			l, _ := a.List(context.Background(), Tools)
			slow <- keysOf(l)
		}()
		synctest.Wait()
		s.set(func(s *script) { s.list, s.tools = nil, []string{"new"} })
		w.proc().changed(wire.ToolsListChanged)
		sleep(time.Second)
		w.proc().say(`{"jsonrpc":"2.0","id":3,"result":` + toolsResult("old") + `}`)
		synctest.Wait()
		if got := <-slow; !slices.Equal(got, []string{"new"}) {
			t.Errorf("the slow reader sees %q", got)
		}
		if got := w.tools(a); !slices.Equal(got, []string{"new"}) {
			t.Errorf("later ones see %q, want the new list", got)
		}
	})
}

// V3, case 29: exclude first, by exact name; then include, where absent is all, empty
// is none, and an entry ends at its first parenthesis.
func TestFilters(t *testing.T) {
	all := []string{"danger", "Danger", "danger2", "echo", "shell(ls)", "shell"}
	for _, c := range []struct {
		name             string
		include, exclude []string
		want             []string
	}{
		{"no filter", nil, nil, all},
		{"include none", []string{}, nil, []string{}},
		{"include one", []string{"echo"}, nil, []string{"echo"}},
		{"exclude one, by its exact name", nil, []string{"danger"}, []string{"Danger", "danger2", "echo", "shell(ls)", "shell"}},
		{"exclude counts before include", []string{"danger", "echo"}, []string{"danger"}, []string{"echo"}},
		{"an include entry is cut at its parenthesis", []string{"shell(ls)"}, nil, []string{"shell"}},
		{"an exclude entry is not", nil, []string{"shell(ls)"}, []string{"danger", "Danger", "danger2", "echo", "shell"}},
		{"empty exclude", nil, []string{}, all},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, defaults, func(w *world) {
				server, s := w.server("files")
				s.set(func(s *script) {
					s.caps = `{"tools":{},"prompts":{},"resources":{}}`
					s.list = func(method, _ string) string {
						switch method {
						case wire.ToolsList:
							return toolsResult(all...)
						case wire.PromptsList:
							return strings.Replace(toolsResult(all...), "tools", "prompts", 1)
						case wire.ResourcesList:
							return `{"resources":[{"uri":"danger"}]}`
						}
						return `{"resourceTemplates":[{"uriTemplate":"danger"}]}`
					}
				})
				server.IncludeTools, server.ExcludeTools = c.include, c.exclude
				a := w.acquire(w.pool.NewHolder("a"), server)
				var allowed []string
				for _, name := range all {
					if a.Allows(name) {
						allowed = append(allowed, name)
					}
				}
				if !slices.Equal(allowed, c.want) {
					t.Errorf("allowed are %q, want %q", allowed, c.want)
				}
				for _, k := range []Kind{Tools, Prompts} {
					if got := w.keys(a, k); !slices.Equal(got, c.want) {
						t.Errorf("listed %s are %q, want %q", k, got, c.want)
					}
					if got := keysOf(a.Peek(k)); !slices.Equal(got, c.want) {
						t.Errorf("known %s are %q, want %q", k, got, c.want)
					}
				}
				for _, k := range []Kind{Resources, Templates} {
					if got := w.keys(a, k); len(got) != 1 {
						t.Errorf("the filter took %s away", k)
					}
				}
				if filtered := c.include != nil || len(c.exclude) > 0; a.Filtered() != filtered {
					t.Errorf("Filtered says %v", a.Filtered())
				}
			})
		})
	}
}

// V4: another filter is another view of the same connection, without a request.
func TestAnotherFilterAsksTheServerNothing(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.tools = []string{"a", "b", "c"} })
		x := *server
		x.ExcludeTools = []string{"a"}
		y := *server
		y.IncludeTools = []string{"a"}
		h := w.pool.NewHolder("a")
		a, b := w.acquire(h, &x), w.acquire(w.pool.NewHolder("b"), &y)
		if got := w.tools(a); !slices.Equal(got, []string{"b", "c"}) {
			t.Errorf("one sees %q", got)
		}
		if got := w.tools(b); !slices.Equal(got, []string{"a"}) {
			t.Errorf("the other sees %q", got)
		}
		before := len(w.proc().seen)
		a.Release()
		a = w.acquire(h, &y)
		if got := w.tools(a); !slices.Equal(got, []string{"a"}) {
			t.Errorf("after the change one sees %q", got)
		}
		if len(w.proc().seen) != before || w.started() != 1 {
			t.Error("the server noticed")
		}
	})
}
