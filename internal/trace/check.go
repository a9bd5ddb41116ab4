package trace

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"roundhouse/internal/store"
)

// Verdict says whether a session's recording is complete (C3), and why not.
type Verdict struct {
	Complete bool     `json:"complete"`
	Why      []string `json:"why,omitempty"`
}

// Judge gives the verdict of a session from its calls, whose contents are not needed
// (store.CallFilter.Summary).
//
// Under the policy Train a call that is not a whole turn fails it, unless a later
// attempt with the same body became one: then nothing is missing. Under Observe only
// what roundhouse lost does. Calls that are under way make it not complete yet.
func Judge(s store.Session, calls iter.Seq2[store.Call, error]) (Verdict, error) {
	var v Verdict
	if s.Incomplete != "" {
		v.Why = append(v.Why, s.Incomplete)
	}
	type body struct {
		endpoint string
		digest   [32]byte
	}
	var failed []store.Call
	last := map[body]int64{} // the position of the last whole turn with this body
	for c, err := range calls {
		if err != nil {
			return Verdict{}, fmt.Errorf("judge session %q: %w", s.ID, err)
		}
		switch {
		case c.Result == nil:
			v.Why = append(v.Why, fmt.Sprintf("call %q is under way", c.ID))
		case c.Result.Outcome.Trainable():
			last[body{c.Endpoint, c.Request.Digest()}] = c.Position
		case c.Policy == store.Train || ours(c.Result.Outcome):
			failed = append(failed, c)
		}
	}
	for _, c := range failed {
		if last[body{c.Endpoint, c.Request.Digest()}] < c.Position {
			v.Why = append(v.Why, fmt.Sprintf("call %q ended as %s", c.ID, c.Result.Outcome))
		}
	}
	v.Complete = len(v.Why) == 0
	return v, nil
}

// ours are the outcomes in which a turn may have been had and is not recorded.
func ours(o store.Outcome) bool {
	return o == store.Lost || o == store.StoreFailed || o == store.Unparsed
}

// Report is what Check found (J4).
type Report struct {
	Session     string  `json:"session_id"`
	Principal   string  `json:"principal"`
	Incarnation int     `json:"incarnation"`
	Sealed      bool    `json:"sealed"`
	Verdict     Verdict `json:"verdict"`
	// Hole says that the session has calls under the policy Train and that its recording
	// is not complete, or that something in it does not fit together.
	Hole         bool                   `json:"hole"`
	Calls        int                    `json:"calls"`
	UnderWay     int                    `json:"under_way"` // intents without an outcome
	Outcomes     map[store.Outcome]int  `json:"outcomes"`
	Deliveries   map[store.Delivery]int `json:"deliveries"`
	Turns        int                    `json:"turns"`
	Trajectories int                    `json:"trajectories"`
	WithTokens   int                    `json:"with_tokens"` // turns that have token ids
	// MergeRatio is the part of the turns, the first one aside, that have a parent: 1 if
	// they all go on from an earlier one.
	MergeRatio float64  `json:"merge_ratio"`
	Breaks     []Break  `json:"breaks,omitempty"`
	Problems   []string `json:"problems,omitempty"` // what does not fit together
}

// Check proves how complete a session's recording is.
func Check(ctx context.Context, st *store.Store, k store.SessionKey) (Report, error) {
	r := Report{
		Session: k.ID, Principal: k.Principal, Incarnation: k.Incarnation,
		Outcomes: map[store.Outcome]int{}, Deliveries: map[store.Delivery]int{},
	}
	var session store.Session
	for s, err := range st.Sessions(ctx, store.Of(k)) {
		if err != nil {
			return r, err
		}
		session = s
	}
	if session.Position == 0 {
		return r, fmt.Errorf("check session %q: %w", k.ID, store.ErrNotFound)
	}
	r.Sealed = !session.Sealed.IsZero()
	f := newForest()
	f.verify = true
	train := false
	calls := func(yield func(store.Call, error) bool) {
		for c, err := range st.Calls(ctx, store.CallFilter{Session: store.Of(k)}) {
			if err == nil {
				train = train || c.Policy == store.Train
				r.count(c)
				err = f.add(c)
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
	var err error
	if r.Verdict, err = Judge(session, calls); err != nil {
		return r, err
	}
	r.describe(f)
	r.Hole = train && !r.Verdict.Complete || len(r.Problems) > 0
	return r, nil
}

// count takes in one call.
func (r *Report) count(c store.Call) {
	r.Calls++
	bodies := []store.Body{c.Request}
	if c.Result == nil {
		r.UnderWay++
	} else {
		r.Outcomes[c.Result.Outcome]++
		r.Deliveries[c.Result.Delivery]++
		bodies = append(bodies, c.Result.Raw, c.Result.Response)
		r.compare(c)
	}
	for _, b := range bodies {
		if err := b.Verify(); err != nil {
			r.Problems = append(r.Problems, fmt.Sprintf("call %q: %v", c.ID, err))
		}
	}
}

// compare holds the tokens against what the engine says it counted.
func (r *Report) compare(c store.Call) {
	var usage struct {
		Prompt *int `json:"prompt_tokens"`
		Output *int `json:"completion_tokens"`
	}
	if c.API != "chat" || json.Unmarshal(c.Result.Usage, &usage) != nil {
		return // the others leave out what was cached
	}
	differ := func(what string, ids []int32, counted *int) {
		if ids != nil && counted != nil && len(ids) != *counted {
			r.Problems = append(r.Problems, fmt.Sprintf("call %q: %d %s tokens, of which the usage counts %d", c.ID, len(ids), what, *counted))
		}
	}
	differ("prompt", c.Result.PromptIDs, usage.Prompt)
	differ("output", c.Result.OutputIDs, usage.Output)
}

// describe takes in the forest.
func (r *Report) describe(f *forest) {
	joined := 0
	for i, t := range f.turns {
		if f.children[i] == 0 {
			r.Trajectories++
		}
		if t.split != nil {
			r.Breaks = append(r.Breaks, *t.split)
		}
		if t.sample > 0 {
			continue // the turn is counted
		}
		r.Turns++
		if t.parent != none {
			joined++
		}
		if t.tokens != none {
			r.WithTokens++
		}
	}
	r.MergeRatio = 1
	if r.Turns > 1 {
		r.MergeRatio = float64(joined) / float64(r.Turns-1)
	}
	r.Problems = append(r.Problems, f.problems...)
}
