package session

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"roundhouse/internal/era"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// A server of the newer era that needs something of the client during a call answers with
// an input_required result, and gets the request once more with what it needs. A client of
// the older era is asked instead, on the stream of its call, and knows nothing of the
// rounds (M8).

const (
	maxRounds  = 10                     // then the server is not believed to end
	firstPause = 250 * time.Millisecond // before a request is sent again that needs nothing but time
	lastPause  = 10 * time.Second
)

// dialogue is the state of the rounds of one call.
type dialogue struct {
	mu       sync.Mutex
	rounds   int          // that have ended with a wish of the server
	asks     []era.Ask    // of the round that waits
	answers  []era.Answer // to them; one without a result is still missing
	missing  int
	state    []byte
	legs     []*leg
	pause    time.Duration
	timer    *time.Timer
	over     bool
	progress float64 // the last that the client was told of
	told     bool    // it was told of some
}

// later reports whether the call is beyond its first round.
func (d *dialogue) later() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rounds > 0
}

// repeats reports whether a notification is progress that the client heard of in an
// earlier round: a server may count anew, and progress must grow.
func (d *dialogue) repeats(p mux.Pieces) bool {
	f, err := wire.Parse(whole(p))
	if err != nil || f.Method != wire.Progress {
		return false
	}
	var params struct {
		Progress *float64 `json:"progress"`
	}
	if json.Unmarshal(f.Params(), &params) != nil || params.Progress == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rounds > 0 && d.told && *params.Progress <= d.progress {
		return true
	}
	d.told, d.progress = true, *params.Progress
	return false
}

// answered takes a server's answer to a round of a client of the older era.
func (x *crossing) answered(f wire.Frame) {
	if f.ErrorSpan.Present() {
		x.call.Done(mux.Pieces{era.Bare(f, x.f.Method)})
		return
	}
	round, more, err := era.ReadRound(f.Result())
	switch {
	case err != nil:
		x.giveUp(fmt.Sprintf("server %q answered with a result that cannot be used: %v", x.att.Server(), err))
	case more:
		x.ask(round)
	default:
		x.call.Done(mux.Pieces{era.Bare(f, x.f.Method)})
	}
}

// giveUp ends the call with an error.
func (x *crossing) giveUp(message string) {
	x.call.Done(mux.Pieces{wire.ErrorReply(x.id, wire.ErrorObject(wire.InternalError, message))})
}

// ask begins a round: the client is asked what the server wants to know.
func (x *crossing) ask(round era.Round) {
	server := x.att.Server()
	x.d.mu.Lock()
	x.d.rounds++
	tooMany := x.d.rounds > maxRounds
	x.d.mu.Unlock()
	if tooMany {
		x.giveUp(fmt.Sprintf("server %q wanted to know something %d times; roundhouse does not ask the client again", server, maxRounds))
		return
	}
	sender, err := x.p.sender(x.att)
	if err != nil {
		x.call.fail(err)
		return
	}
	legs := make([]*leg, len(round.Asks))
	for i, a := range round.Asks {
		if lacks := lacking(sender.Capabilities, a); lacks != "" {
			x.giveUp(fmt.Sprintf("server %q wants the client to answer %s, but the client does not declare %s", server, a.Method, lacks))
			return
		}
		frame, err := wire.Parse(wire.NewRequest([]byte("0"), a.Method, legParams(a)))
		if err != nil {
			x.giveUp(fmt.Sprintf("server %q wants to know something that cannot be asked: %v", server, err))
			return
		}
		legs[i] = &leg{x: x, i: i, frame: frame, method: a.Method}
	}
	if !x.begin(round, legs) {
		return
	}
	for _, l := range legs {
		x.c.put(l, l.frame, x.call)
	}
}

// begin notes what the round waits for. It reports false if the call has ended.
func (x *crossing) begin(round era.Round, legs []*leg) bool {
	k := x.call
	k.mu.Lock()
	if k.done {
		k.mu.Unlock()
		return false
	}
	k.mc = nil
	k.on = func(bool) { x.end() }
	k.mu.Unlock()
	x.d.mu.Lock()
	defer x.d.mu.Unlock()
	if x.d.over {
		return false
	}
	x.d.asks, x.d.answers, x.d.missing = round.Asks, make([]era.Answer, len(round.Asks)), len(round.Asks)
	x.d.state, x.d.legs = round.State, legs
	if len(legs) == 0 {
		x.d.pause = min(max(2*x.d.pause, firstPause), lastPause)
		x.d.timer = time.AfterFunc(x.d.pause, func() { x.next() })
	}
	return true
}

// end takes back what the client is still asked when its call has ended.
func (x *crossing) end() {
	x.d.mu.Lock()
	x.d.over = true
	legs := x.d.legs
	x.d.legs = nil
	if x.d.timer != nil {
		x.d.timer.Stop()
	}
	x.d.mu.Unlock()
	for _, l := range legs {
		x.c.takeBack(l)
	}
}

// next sends the request again, with the answers.
func (x *crossing) next() {
	s := x.c.session
	s.m.spawn(func() {
		x.d.mu.Lock()
		answers, state := x.d.answers, x.d.state
		over := x.d.over
		x.d.legs = nil
		x.d.mu.Unlock()
		if over {
			return
		}
		f, err := era.Retry(x.f, answers, state)
		if err != nil {
			x.call.fail(err)
			return
		}
		r, err := f.Routing()
		if err != nil {
			x.call.fail(err)
			return
		}
		err = x.p.b.with(s.ctx, func(att *pool.Attachment) error {
			if att.Era() != era.Modern {
				return errMovedOn
			}
			mc, err := x.p.do(att, f, r, x)
			if mc != nil {
				x.sent(mc, true)
			}
			return err
		})
		if err != nil {
			x.call.fail(err)
		}
	})
}

var errMovedOn = &wire.ParseFailure{Code: wire.InternalError, Message: "the server has changed to another protocol version during the call"}

// settle takes the client's answer to one question. What has no answer fails the call.
func (x *crossing) settle(l *leg, result []byte, failure string) {
	x.d.mu.Lock()
	if x.d.over || l.i >= len(x.d.legs) || x.d.legs[l.i] != l || x.d.answers[l.i].Result != nil {
		x.d.mu.Unlock()
		return
	}
	if result == nil {
		x.d.mu.Unlock()
		x.unanswered(l, failure)
		return
	}
	x.d.answers[l.i] = era.Answer{Key: x.d.asks[l.i].Key, Result: result}
	x.d.missing--
	all := x.d.missing == 0
	x.d.mu.Unlock()
	if all {
		x.next()
	}
}

// unanswered ends the call because the client does not say what the server must know.
func (x *crossing) unanswered(l *leg, failure string) {
	message := fmt.Sprintf("the client did not answer %s: %s", l.method, failure)
	if x.f.Method != wire.ToolsCall {
		x.giveUp(message)
		return
	}
	content := append(append([]byte(`{"content":[{"type":"text","text":`), wire.Quote(message)...), `}],"isError":true}`...)
	x.call.result(content)
}

// leg is one question of a round to the client. It implements question.
type leg struct {
	x      *crossing
	i      int
	frame  wire.Frame
	method string
}

// declined is the answer for a person who is not there.
var declined = []byte(`{"action":"cancel"}`)

// Answer implements question.
func (l *leg) Answer(f wire.Frame) {
	switch {
	case f.ResultSpan.Present():
		l.x.settle(l, f.Result(), "")
	case l.method == wire.ElicitationCreate:
		l.x.settle(l, declined, "")
	default:
		l.x.settle(l, nil, (&pool.RPCError{Object: f.ErrorValue()}).Error())
	}
}

// Fail implements question.
func (l *leg) Fail(_ int, message string) {
	if l.method == wire.ElicitationCreate {
		l.x.settle(l, declined, "")
		return
	}
	l.x.settle(l, nil, message)
}

// Progress implements question: servers of the newer era hear of none.
func (l *leg) Progress([]byte) {}

// Withdrawal implements question.
func (l *leg) Withdrawal(id []byte) mux.Pieces {
	return mux.Pieces{cancelled(id, "the call for which the server asked has ended")}
}

// lacking returns the capability that a client would have to declare to be asked, or "".
func lacking(capabilities []byte, a era.Ask) string {
	var declared map[string]json.RawMessage
	if json.Unmarshal(capabilities, &declared) != nil {
		return a.Method
	}
	switch a.Method {
	case wire.SamplingCreate:
		return absent(declared, "sampling")
	case wire.RootsList:
		return absent(declared, "roots")
	case wire.ElicitationCreate:
		return lackingElicitation(declared, a.Params)
	}
	return "that method"
}

func absent(declared map[string]json.RawMessage, name string) string {
	if _, ok := declared[name]; ok {
		return ""
	}
	return name
}

// lackingElicitation tells the two ways of asking a person apart; a client that names
// none has the older one, a form.
func lackingElicitation(declared map[string]json.RawMessage, params []byte) string {
	raw, ok := declared["elicitation"]
	if !ok {
		return "elicitation"
	}
	var modes map[string]json.RawMessage
	_ = json.Unmarshal(raw, &modes) // what is no object names none
	var p struct{ Mode string }
	_ = json.Unmarshal(params, &p) // likewise
	if p.Mode == "url" {
		if _, ok := modes["url"]; !ok {
			return "elicitation.url"
		}
		return ""
	}
	if _, ok := modes["form"]; !ok && len(modes) > 0 {
		return "elicitation.form"
	}
	return ""
}

// legParams are the params of a request to the client. The older era wants an id of an
// elicitation by URL, which the newer one does not have.
func legParams(a era.Ask) []byte {
	if a.Params == nil {
		return []byte("{}")
	}
	var p struct {
		Mode string
		ID   *string `json:"elicitationId"`
	}
	if a.Method != wire.ElicitationCreate || json.Unmarshal(a.Params, &p) != nil || p.Mode != "url" || p.ID != nil {
		return a.Params
	}
	head := `"elicitationId":` + strconv.Quote(NewID()) + `,` // mode follows
	return wire.Splice(nil, a.Params, wire.Edit{At: wire.Span{Start: 1, End: 1}, With: []byte(head)})
}
