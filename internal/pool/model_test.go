package pool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/wire"
)

// model does at random what sessions, servers and people do to a pool.
type model struct {
	*world
	rand    *rand.Rand
	servers []*config.Server
	scripts []*script
	holders []*Holder
	atts    []*Attachment
	pending []*pending
	cancels []context.CancelFunc
	calls   []answer
}

func (m *model) pick(n int) int { return m.rand.IntN(n) }

// Properties of pool.md, section 2, and M8, under random use: references are attachments;
// what nobody holds drains or is terminal; there is one dial for an id at a time (the
// dialer checks it); every process belongs to a connection that the pool knows; no
// call is left without an answer; and in the end nothing is left.
func TestRandomUseKeepsTheInvariants(t *testing.T) {
	seeds, steps := 60, 150
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		c := Config{DrainDelay: testDrainDelay, MaxIdle: testMaxIdle}
		switch seed % 4 {
		case 1:
			c.DrainDelay = 0
		case 2:
			c.MaxIdle = 0
		}
		if seed%3 == 0 {
			c.Circuit = config.Defaults().Pool.Circuit
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inWorld(t, c, func(w *world) {
				w.eras = 2
				m := &model{world: w, rand: rand.New(rand.NewPCG(uint64(seed), 1))}
				for i := range 4 {
					server, s := w.server(fmt.Sprint("server", i))
					if i == 3 {
						server.Sharing = config.Session
					}
					if i%2 == 1 {
						server.Recovery, server.Health = config.Defaults().Pool.Recovery.Stdio, config.Defaults().Pool.Health
					}
					server.StartTimeout = 20 * time.Second
					m.servers, m.scripts = append(m.servers, server), append(m.scripts, s)
				}
				for i := range 5 {
					m.holders = append(m.holders, w.pool.NewHolder(fmt.Sprint("session", i)))
				}
				for range steps {
					what := m.step()
					if m.pick(3) == 0 {
						continue // the next step comes in the middle of what this one began
					}
					synctest.Wait()
					m.check(what)
					if t.Failed() {
						t.FailNow()
					}
				}
				m.finish(seed)
			})
		})
	}
}

// step does one thing and says what.
func (m *model) step() string {
	switch n := m.pick(20); {
	case n < 6:
		server := *m.servers[m.pick(len(m.servers))]
		if m.pick(4) == 0 {
			server.Args = []string{"other"} // another fingerprint
		}
		ctx, cancel := context.WithCancel(context.Background())
		m.cancels = append(m.cancels, cancel)
		x := want(&server, nil)
		x.Era = []era.Era{era.Legacy, era.Modern}[m.pick(2)]
		m.pending = append(m.pending, m.begin(ctx, m.holders[m.pick(len(m.holders))], x))
		return "acquire"
	case n < 8 && len(m.atts) > 0:
		m.atts[m.pick(len(m.atts))].Release()
		return "release"
	case n == 8:
		i := m.pick(len(m.holders))
		m.holders[i].Release()
		m.holders[i] = m.pool.NewHolder(fmt.Sprint("session", i))
		return "release a session"
	case n == 9 && len(m.cancels) > 0:
		m.cancels[m.pick(len(m.cancels))]()
		return "give up"
	case n == 10 && m.started() > 0:
		m.mu.Lock()
		p := m.procs[m.pick(len(m.procs))]
		m.mu.Unlock()
		if m.pick(4) == 0 {
			p.frozen.Store(true)
			return "freeze"
		}
		p.die("signal: killed")
		return "kill"
	case n == 11:
		name := m.servers[m.pick(len(m.servers))].Name
		go m.pool.Restart(context.Background(), name)
		return "restart"
	case n < 15 && len(m.atts) > 0:
		a, tool := m.atts[m.pick(len(m.atts))], []string{"echo", "hang", "sleep:3s", "exit"}[m.pick(4)]
		out := make(answer, 2)
		m.calls = append(m.calls, out)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			got, err := call(ctx, a, tool)
			if err != nil {
				out <- err.Error()
				return
			}
			out <- <-got
		}()
		return "call " + tool
	case n == 15 && m.started() > 0:
		m.scripts[m.pick(len(m.scripts))].set(func(s *script) { s.tools = []string{"echo", fmt.Sprint(m.pick(1000))} })
		m.proc().changed(wire.ToolsListChanged)
		return "change"
	case n == 16:
		m.scripts[m.pick(len(m.scripts))].set(func(s *script) {
			s.dialErr, s.deaf, s.silent = nil, m.pick(2) == 0, m.pick(8) == 0
			s.modern, s.noProbe = m.pick(3) == 0, []string{"", "silence", "exit"}[m.pick(3)]
			s.noLegacy = s.modern && m.pick(2) == 0
			s.dialDelay, s.initDelay, s.linger = m.some(3*time.Second), m.some(time.Second), m.some(10*time.Second)
			if m.pick(4) == 0 {
				s.dialErr = errRefused
			}
		})
		return "another script"
	default:
		time.Sleep(m.some([]time.Duration{time.Second, 10 * time.Second, 40 * time.Second, 6 * time.Minute}[m.pick(4)]))
		return "sleep"
	}
}

// some is a random duration, often none.
func (m *model) some(most time.Duration) time.Duration {
	if m.pick(3) == 0 {
		return 0
	}
	return time.Duration(m.rand.Int64N(int64(most)))
}

// check verifies what holds whenever nothing moves.
func (m *model) check(after string) {
	m.pending = slices.DeleteFunc(m.pending, func(p *pending) bool {
		if p.ended() && p.err == nil {
			m.atts = append(m.atts, p.att)
		}
		return p.ended()
	})
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	fail := func(e *entry, format string, args ...any) {
		m.Errorf("after %s: %s (%s, %d refs, %d waiters): %s", after, e.id, e.state, len(e.atts), e.waiters, fmt.Sprintf(format, args...))
	}
	known := len(p.dying)
	for id, e := range p.entries {
		if e.id != id {
			fail(e, "it stands at %s", id)
		}
		for a := range e.atts {
			if _, ok := a.holder.atts[a]; !ok || a.entry != e || a.holder.released || a.detached.Load() {
				fail(e, "an attachment is not its session's")
			}
		}
		c, idle := e.conn.Load(), len(e.atts) == 0
		switch e.state {
		case Active:
			if idle {
				fail(e, "nobody holds it and it does not drain")
			}
		case Draining:
			if !idle || e.owner != nil {
				fail(e, "it should not drain")
			}
		case Failed:
			if idle && e.owner != nil {
				fail(e, "nobody will ask for it again")
			}
		case Closed:
			fail(e, "it is still listed")
		}
		if live := e.state == Active || e.state == Draining; live != (c != nil) {
			fail(e, "its connection is %v", c)
		}
		if c != nil && (c.hand.Era != e.tongue.era || e.owner == nil && e.id != e.tongue.identity(e.name) || e.identity != e.tongue.identity(e.name)) {
			fail(e, "its connection speaks %s, and it %s as %s", c.hand.Era, e.tongue.era, e.identity)
		}
		if needs := e.state == Draining || e.state == Failed && idle; needs != (e.timer != nil) && e.state != Recovering {
			fail(e, "its timer is %v", e.timer)
		}
		if e.state == Recovering && e.timer != nil && (idle && e.waiters == 0 || e.recovery.dialing || e.recovery.tries >= e.recovery.most) {
			fail(e, "it waits for an attempt that it does not need: %+v", e.recovery)
		}
		if e.waiters > 0 && e.state != Spawning && e.state != Recovering {
			fail(e, "somebody waits for what has ended")
		}
		if e.telling || len(e.news) > 0 {
			fail(e, "news was not told")
		}
		if !e.state.terminal() {
			known++ // a connection, or a dial that may have one
		}
	}
	for _, h := range m.holders {
		for a := range h.atts {
			if _, ok := a.entry.atts[a]; !ok {
				fail(a.entry, "a session has an attachment that it does not know")
			}
			if e := a.entry; !e.state.terminal() && p.entries[e.id] != e {
				fail(e, "a session holds it and it is not listed")
			}
		}
	}
	if n := m.alive(); n > known {
		m.Errorf("after %s: %d processes live, the pool knows %d connections", after, n, known)
	}
}

// finish ends every session and waits: some pools by their timers, some by Drain.
func (m *model) finish(seed int) {
	if seed%3 != 0 {
		for _, h := range m.holders {
			h.Release()
		}
		sleep(time.Hour)
		m.check("the end")
		m.pool.mu.Lock()
		left := len(m.pool.entries) + len(m.pool.dying)
		m.pool.mu.Unlock()
		if left+m.alive() > 0 {
			m.Errorf("in the end %d entries and dying connections and %d processes are left", left, m.alive())
		}
	}
	m.pool.Drain(context.Background(), seed%2 == 0)
	sleep(2 * time.Minute)
	if held := m.pool.Budget().Held; len(held) > 0 {
		m.Errorf("in the end %v is held of the budget", held)
	}
	for _, cancel := range m.cancels {
		cancel()
	}
	for _, out := range m.calls {
		if len(out) != 1 {
			m.Errorf("a call has %d answers, want one", len(out))
		}
	}
}
