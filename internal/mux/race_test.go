package mux

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// tally is an outlet that only counts, for tests with real goroutines.
type tally struct{ done atomic.Int32 }

func (o *tally) Note(Pieces) {}

func (o *tally) Done(Pieces) { o.done.Add(1) }

// R2, M2: an answer, a cancellation, a time-out, the client's leaving and the loss of
// the connection race; each call ends once, and nothing is left.
func TestEndsOfACallRace(t *testing.T) {
	for round := range 300 {
		policy := []Policy{Auto, Serialize}[round%2]
		m := New(Config{Policy: policy, Post: func([]byte) {}})
		peers := []*client{{}, {}, {}}
		var calls []*Call
		var outs []*tally
		for i := range 12 {
			raw := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`
			if i%4 == 3 {
				raw = subscribing(`"u"`)
			}
			f, r := frame(t, raw)
			out := &tally{}
			c, err := m.Begin(peers[i%len(peers)], f, r, out)
			if err != nil {
				t.Fatal(err)
			}
			outs = append(outs, out)
			if c != nil {
				calls = append(calls, c)
			}
		}
		ask, _ := frame(t, eliciting(`1`))
		m.Receive(ask, nil)

		var wg, waiters sync.WaitGroup
		start := make(chan struct{})
		race := func(f func()) { wg.Go(func() { <-start; f() }) }
		race(func() { // the one goroutine that receives
			for _, c := range calls {
				for _, raw := range []string{
					`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d}}`,
					`{"jsonrpc":"2.0","id":%d,"result":{}}`,
				} {
					f, err := wire.Parse(fmt.Appendf(nil, raw, c.id))
					if err != nil {
						t.Error(err)
						return
					}
					m.Receive(f, nil)
				}
				m.Oversize(fmt.Append(nil, c.id+1), wire.Response, 2, 1)
			}
		})
		for _, c := range calls {
			if r := c.Ready(); r != nil {
				waiters.Go(func() { <-r; admitted(c) })
			}
			switch rand.IntN(3) {
			case 0:
				race(func() { c.Cancel(wire.Frame{}, wire.Span{}) })
			case 1:
				race(func() { c.Fail(fault.New(fault.CallTimeout, "too slow")) })
			}
		}
		race(func() { m.Leave(peers[0], fault.New(fault.UnknownSession, "gone")) })
		race(func() {
			for _, a := range peers[1].asks {
				a.Fail(-1, "no")
			}
		})
		if round%3 == 0 {
			race(func() { m.Lose(fault.New(fault.Interrupted, "gone")) })
		}
		close(start)
		wg.Wait()
		for _, p := range peers {
			m.Leave(p, nil)
		}
		m.Lose(fault.New(fault.Interrupted, "gone")) // ends what the server did not answer
		waiters.Wait()
		for i, out := range outs {
			if out.done.Load() != 1 {
				t.Fatalf("round %d: call %d was answered %d times", round, i, out.done.Load())
			}
		}
		(&world{t: t, m: m}).empty()
	}
}

// M4, M6: clients come, call, subscribe and leave while the server answers.
func TestClientsComeAndGo(t *testing.T) {
	for _, policy := range []Policy{Auto, Serialize} {
		t.Run(string(policy), func(t *testing.T) {
			toServer := make(chan []byte, 1<<14)
			w := &world{t: t, m: New(Config{Policy: policy, Post: func(b []byte) { toServer <- b }})}
			var server sync.WaitGroup
			server.Go(func() {
				for raw := range toServer {
					f, err := wire.Parse(raw)
					if err != nil {
						t.Error(err)
						continue
					}
					if f.Kind != wire.Request {
						continue
					}
					g, _ := wire.Parse(wire.Result(f.ID(), []byte("{}")))
					w.m.Receive(g, nil)
				}
			})
			var clients sync.WaitGroup
			var outs [8][]*tally
			for i := range outs {
				clients.Go(func() {
					for k := range 60 {
						p := &client{}
						for _, raw := range []string{
							`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, subscribing(`"u"`), levelling("debug"),
							`{"jsonrpc":"2.0","id":2,"method":"tools/call"}`, unsubscribing(`"u"`),
						} {
							f, r := frame(t, raw)
							out := &tally{}
							c, err := w.m.Begin(p, f, r, out)
							if err != nil {
								t.Error(err)
								return
							}
							outs[i] = append(outs[i], out)
							if c == nil {
								continue
							}
							if c.Ready() != nil {
								<-c.Ready()
							}
							_ = c.Send(func(message *upstream.Message) error {
								toServer <- message.Bytes
								return nil
							})
						}
						if k%2 == 0 {
							runtime.Gosched()
						}
						w.m.Leave(p, nil)
					}
				})
			}
			clients.Wait()
			for { // until the server has answered what we asked of it
				w.m.mu.Lock()
				open := len(w.m.calls)
				w.m.mu.Unlock()
				if open == 0 {
					break
				}
				runtime.Gosched()
			}
			close(toServer)
			server.Wait()
			for _, list := range outs {
				for _, out := range list {
					if out.done.Load() != 1 {
						t.Fatalf("a call was answered %d times", out.done.Load())
					}
				}
			}
			w.empty()
		})
	}
}
