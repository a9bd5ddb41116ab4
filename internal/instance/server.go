package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// The one door of the state of a server's instances: every transition is here. Functions
// that end in Locked run with Pools.mu held and never wait.

// State is where an instance is in its life.
type State string

// The states. An instance that has ended is no more.
const (
	Starting  State = "starting"
	Warm      State = "warm"
	Leased    State = "leased"
	Resetting State = "resetting" // given back, and being made new or probed
	Ending    State = "ending"    // something of it may still live, so it holds its place
)

// server is the pool of one server. Its fields are guarded by Pools.mu.
type server struct {
	name    string
	conf    *config.Server
	refusal *fault.Error // why nothing is lent any more, else nil

	all     []*instance // in the order of their starts
	serial  int         // of the last instance
	waiters []*waiter   // in the order in which they came
	tickets uint64      // the last one
	curious []chan error
	known   *Catalogue // of any instance ever started

	failures int               // starts that failed since one was lent; those that were under way together are one
	failed   time.Time         // when the last of these failures came; zero if there is none
	failure  error             // of that; nil since a start worked
	pause    *time.Timer       // until the next start, after one that failed, unless one is lent before
	down     map[int]time.Time // endpoints of which the last start failed, by index, and when
	sweep    *time.Timer       // until a warm one has to go
}

// instance is one exclusive connection. Its fields below constant are guarded by Pools.mu.
type instance struct {
	server  *server
	id      string
	index   int // the smallest that was free; of a fleet, which endpoint it is
	created time.Time
	ready   time.Time               // when its start had ended
	giveUp  context.CancelCauseFunc // of its start
	unit    Unit                    // constant once it is warm

	state    State
	since    time.Time // of the state
	dead     error     // it has ended by itself
	uses     int
	lease    *Lease // in somebody's hands, who uses it
	Borrower        // while it is leased
	kept     string // the principal whose traces it has, if it was given back as it was
	marked   bool   // kept has a meaning
}

// waiter is who waits for an instance.
type waiter struct {
	Borrower
	since   time.Time
	failure error  // of the last instance that was probed for him, or nil
	ticket  uint64 // 0 before it first waits
	outcome chan outcome
}

// outcome is an instance that is reserved for the waiter, or why there is none.
type outcome struct {
	in  *instance
	err error
}

// queueLocked puts a waiter into its place, which it keeps if it was in the queue before.
func (v *server) queueLocked(w *waiter) {
	w.outcome = make(chan outcome, 1)
	if w.ticket == 0 {
		v.tickets++
		w.ticket = v.tickets
	}
	i, _ := slices.BinarySearchFunc(v.waiters, w.ticket, func(x *waiter, ticket uint64) int {
		if x.ticket < ticket {
			return -1
		}
		return 1
	})
	v.waiters = slices.Insert(v.waiters, i, w)
}

// most is how many instances there may be.
func (v *server) most() int { return v.conf.Instances.Max }

func (v *server) count(states ...State) (n int) {
	for _, in := range v.all {
		if slices.Contains(states, in.state) {
			n++
		}
	}
	return n
}

func (p *Pools) setLocked(in *instance, s State) {
	if in.state == Ending {
		panic(fmt.Sprintf("instance: %s leaves the terminal state %s for %s", in.id, in.state, s))
	}
	in.state, in.since = s, time.Now()
	if n := len(in.server.all); n > in.server.most() && s == Starting {
		panic(fmt.Sprintf("instance: server %s has %d instances", in.server.name, n))
	}
	p.cfg.Log.Debug("instance "+string(s), "server", in.server.name, "instance", in.id, "session", in.Session)
}

// fillLocked hands warm instances to those who wait longest, and starts as many as are
// wanted and allowed. Whatever changes ends with it.
func (p *Pools) fillLocked(v *server) {
	if v.refusal != nil {
		return
	}
	p.sweepLocked(v)
	for len(v.waiters) > 0 {
		w := v.waiters[0]
		in := v.pickLocked(w)
		if in == nil {
			break
		}
		v.waiters = v.waiters[1:]
		in.Borrower = w.Borrower
		p.setLocked(in, Leased)
		w.outcome <- outcome{in: in}
	}
	free := p.placesLocked(v)
	for ; v.wantedLocked() > 0 && len(free) > 0 && (v.pause == nil || v.promisesLocked(free[0])); free = p.placesLocked(v) {
		p.startLocked(v, free[0])
	}
	if len(v.waiters) > 0 && v.count(Starting, Resetting, Ending) == 0 && len(free) == 0 {
		p.evictLocked(v)
	}
	p.armLocked(v)
}

// pickLocked returns the warm instance that w gets: the one that was used last, and rather
// one with traces of its principal. Those with another's are not for w (I5).
func (v *server) pickLocked(w *waiter) (best *instance) {
	for _, in := range v.all {
		switch {
		case in.state != Warm || in.marked && in.kept != w.Principal:
		case best == nil, in.marked && !best.marked, in.marked == best.marked && !in.since.Before(best.since):
			best = in
		}
	}
	return best
}

// evictLocked ends a warm instance that nobody who waits may have, to make place for one
// that the first may.
func (p *Pools) evictLocked(v *server) {
	for _, in := range v.all {
		if in.state == Warm {
			p.endLocked(in, unused)
			return
		}
	}
}

// wantedLocked is how many more are wanted: for those who wait, for the warm ones that
// are kept ready, and for those who only ask what the server has. One that is made new or
// probed may take long or come to nothing: it will be kept ready, but nobody waits for it
// while another may be started.
func (v *server) wantedLocked() int {
	free := 0
	for _, in := range v.all {
		if in.state == Starting || in.state == Warm && !in.marked {
			free++
		}
	}
	wanted := len(v.waiters) + max(0, v.conf.Instances.Min-v.count(Resetting))
	if wanted == 0 && len(v.curious) > 0 {
		wanted = 1
	}
	return wanted - free
}

// placesLocked returns the indexes at which instances may be started now, the smallest
// first, but of a fleet those that are not known to be down.
func (p *Pools) placesLocked(v *server) (free []int) {
	room, fleet := v.most()-len(v.all), v.conf.Instances.Endpoints
	for index := 0; index < len(fleet) || len(fleet) == 0 && len(free) < room; index++ {
		if p.holderLocked(v, index) == nil {
			free = append(free, index)
		}
	}
	slices.SortStableFunc(free, func(a, b int) int { return v.down[a].Compare(v.down[b]) })
	return free[:min(len(free), max(room, 0))]
}

// promisesLocked reports whether an index is that of an endpoint which is not known to be
// down, so that failures of others say nothing about it.
func (v *server) promisesLocked(index int) bool {
	return len(v.conf.Instances.Endpoints) > 0 && v.down[index].IsZero()
}

// holderLocked returns the instance that has a place, or nil. It may be one of a
// configuration before, which a session still has: until that has ended nobody else gets
// its endpoint (I2), and no other process of the server its index.
func (p *Pools) holderLocked(v *server, index int) *instance {
	has := func(in *instance) bool { return in.server.name == v.name && in.index == index }
	if fleet := v.conf.Instances.Endpoints; len(fleet) > 0 {
		has = func(in *instance) bool {
			its := in.server.conf.Instances.Endpoints
			return in.index < len(its) && its[in.index] == fleet[index]
		}
	}
	if i := slices.IndexFunc(v.all, has); i >= 0 {
		return v.all[i]
	}
	for before := range p.retired {
		if i := slices.IndexFunc(before.all, has); i >= 0 {
			return before.all[i]
		}
	}
	return nil
}

// startLocked starts an instance in the background, at a place that is free.
func (p *Pools) startLocked(v *server, index int) {
	v.serial++
	in := &instance{server: v, id: fmt.Sprintf("%s#%d", v.name, v.serial), index: index, created: time.Now()}
	var ctx context.Context
	ctx, in.giveUp = context.WithCancelCause(p.base)
	v.all = append(v.all, in)
	p.setLocked(in, Starting)
	conf := v.conf
	p.wg.Go(func() {
		unit, known, err := p.launch(ctx, conf, in)
		in.giveUp(nil)
		p.started(in, unit, known, err)
	})
}

// launch starts an instance, warms it up and reads what it has.
func (p *Pools) launch(ctx context.Context, conf *config.Server, in *instance) (Unit, *Catalogue, error) {
	lost := func(err error) { p.lost(in, err) }
	unit, err := p.cfg.Launcher.Launch(ctx, conf, in.index, lost, func() { p.news(in) })
	if err != nil {
		return nil, nil, err
	}
	known, err := unit.Catalogue(ctx)
	if err != nil {
		err = fmt.Errorf("read what the instance has: %w", err)
		unit.Close(fault.Of(err))
		return nil, nil, err
	}
	return unit, known, nil
}

// The pause after a start that failed, doubled with each further one until one is lent (I6).
// An instance that ends within mostPause of its start, and was never lent, is a start that
// failed. A failure that was longer ago than forgiven does not count.
const (
	firstPause = time.Second
	mostPause  = 30 * time.Second
	forgiven   = 5 * time.Minute
)

// started takes the outcome of a start. A start that failed is told to the one who waits
// longest, for whom it was, and to all if they have nothing else to wait for. But an endpoint
// of a fleet is dead then, and the next is tried (I4, I8): that is told only to those for whom
// there is no other.
func (p *Pools) started(in *instance, unit Unit, known *Catalogue, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := in.server
	if err == nil {
		in.unit, in.ready = unit, time.Now()
		v.failure = nil
		v.learnLocked(known)
		for _, c := range v.curious {
			c <- nil
		}
		v.curious = nil
		p.restLocked(in)
		return
	}
	p.removeLocked(in)
	if v.refusal != nil {
		return
	}
	p.cfg.Log.Warn("an instance did not start", "server", v.name, "instance", in.id, "err", err)
	if p.failedLocked(in, err) {
		p.fillLocked(v)
		return
	}
	for _, c := range v.curious {
		c <- err
	}
	v.curious = nil
	told := min(len(v.waiters), 1)
	switch {
	case len(v.all) == 0:
		told = len(v.waiters)
	case len(v.conf.Instances.Endpoints) > 0:
		told = 0
	}
	for _, w := range v.waiters[:told] {
		w.outcome <- outcome{err: err}
	}
	v.waiters = slices.Delete(v.waiters, 0, told)
	p.fillLocked(v)
}

// failedLocked notes that the start of an instance failed; the next one waits (I6). But if
// there is another endpoint that may be well that is tried at once, which it reports.
func (p *Pools) failedLocked(in *instance, err error) (another bool) {
	v := in.server
	v.failure = err
	if len(v.conf.Instances.Endpoints) > 0 {
		v.down[in.index] = time.Now()
		if free := p.placesLocked(v); len(free) > 0 && v.promisesLocked(free[0]) {
			return true
		}
	}
	if in.created.After(v.failed) { // else it was under way when that failure came
		if time.Since(v.failed) > forgiven {
			v.failures = 0
		}
		v.failures++
		v.failed = time.Now()
	}
	if v.pause == nil {
		pause := min(firstPause<<min(v.failures-1, 10), mostPause)
		v.pause = time.AfterFunc(pause, func() { p.resume(v) })
	}
	return false
}

// forgive forgets how often starts failed.
func (v *server) forgive() {
	v.failures, v.failed = 0, time.Time{}
	v.pauseOver()
}

func (v *server) pauseOver() {
	if v.pause != nil {
		v.pause.Stop()
		v.pause = nil
	}
}

// resume ends the pause after a failed start.
func (p *Pools) resume(v *server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v.pause = nil
	p.fillLocked(v)
}

// lost takes the end of an instance that ended by itself. One that is lent stays so until
// its session has given it back, which hears of it too.
func (p *Pools) lost(in *instance, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.dead != nil || in.state == Ending {
		return
	}
	in.dead = orGone(err)
	p.cfg.Log.Warn("an instance was lost", "server", in.server.name, "instance", in.id, "session", in.Session, "err", err)
	if in.state == Warm {
		p.diedLocked(in, in.dead)
	}
}

// diedLocked ends an instance that has ended by itself, or gives no sign of life. One that
// worked for nobody is a start that failed, so that a server that ends as soon as it has
// started is not started for ever without a pause (I6).
func (p *Pools) diedLocked(in *instance, err error) {
	if in.uses == 0 && time.Since(in.ready) < mostPause && in.server.refusal == nil {
		p.failedLocked(in, err)
	}
	p.endLocked(in, gone(in, err))
}

var errGone = errors.New("the instance has ended")

func orGone(err error) error {
	if err == nil {
		return errGone
	}
	return err
}

// news reads again what the instance has, of which a list has changed.
func (p *Pools) news(in *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.unit == nil || in.state == Ending || p.draining {
		return
	}
	unit := in.unit
	p.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.base, probeWait)
		defer cancel()
		known, err := unit.Catalogue(ctx)
		if err != nil {
			return // what was known before stays
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		in.server.learnLocked(known)
	})
}

// learnLocked takes what an instance has. A list that it could not read is as it was (R9).
func (v *server) learnLocked(now *Catalogue) {
	if v.known != nil {
		for k := range now.Failed {
			if l := v.known.Lists[k]; l != nil {
				now.Lists[k] = l
				delete(now.Failed, k)
			}
		}
	}
	v.known = now
}

// returnLocked takes an instance back from its session (I5).
func (p *Pools) returnLocked(in *instance) {
	c := in.server.conf.Instances
	spent := c.MaxUses > 0 && in.uses >= c.MaxUses || c.MaxLifetime > 0 && time.Since(in.created) >= c.MaxLifetime
	switch {
	case in.dead != nil || in.server.refusal != nil || spent || c.OnRelease == config.ReleaseDestroy || c.OnRelease == "":
		p.endLocked(in, unused)
	case c.OnRelease == config.ReleaseKeep:
		in.kept, in.marked = in.Principal, true
		p.restLocked(in)
	default:
		in.Borrower = Borrower{}
		p.setLocked(in, Resetting)
		p.wg.Go(func() { p.reset(in, c) })
	}
	p.drainedLocked()
}

// resetWait is how long an instance may take to be made new.
const resetWait = 30 * time.Second

// reset makes an instance new and probes it; one that fails is ended (I5).
func (p *Pools) reset(in *instance, c config.Instances) {
	ctx, cancel := context.WithTimeout(p.base, resetWait)
	defer cancel()
	err := in.unit.Ask(ctx, c.Reset)
	if err == nil {
		err = in.ask(ctx, c.Probe)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.cfg.Log.Warn("an instance could not be made new", "server", in.server.name, "instance", in.id, "err", err)
		p.endLocked(in, gone(in, err))
		return
	}
	in.marked = false
	p.restLocked(in)
}

// restLocked makes an instance warm, unless it is of no more use.
func (p *Pools) restLocked(in *instance) {
	if in.state == Ending {
		return // the drain was over
	}
	in.Borrower = Borrower{}
	switch {
	case in.server.refusal != nil:
		p.endLocked(in, in.server.refusal)
	case in.dead != nil:
		p.diedLocked(in, in.dead)
	default:
		p.setLocked(in, Warm)
		p.fillLocked(in.server)
	}
}

var unused = fault.New(fault.Interrupted, "the instance has ended because no session uses it")

func gone(in *instance, err error) *fault.Error {
	e := fault.New(fault.Interrupted, "the instance %s of server %q has ended: %w", in.id, in.server.name, orGone(err))
	e.Server = in.server.name
	return e
}

// endLocked ends an instance. It holds its place until nothing of it lives.
func (p *Pools) endLocked(in *instance, why *fault.Error) {
	p.setLocked(in, Ending)
	p.drainedLocked()
	p.wg.Go(func() {
		in.unit.Close(why)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.removeLocked(in)
		p.fillLocked(in.server)
	})
}

// removeLocked forgets an instance of which nothing is left, and with the last one a server
// that was retired. What such a one had may be what others wait for.
func (p *Pools) removeLocked(in *instance) {
	v := in.server
	v.all = slices.DeleteFunc(v.all, func(x *instance) bool { return x == in })
	if _, retired := p.retired[v]; !retired {
		return
	}
	if len(v.all) == 0 {
		delete(p.retired, v)
	}
	for _, now := range p.servers {
		p.fillLocked(now)
	}
}

// overLocked returns when a warm instance has to go because of its age, and when because
// nobody uses it; zero times are never.
func (v *server) overLocked(in *instance) (old, idle time.Time) {
	c := v.conf.Instances
	if c.MaxLifetime > 0 {
		old = in.created.Add(c.MaxLifetime)
	}
	if c.IdleTimeout > 0 {
		idle = in.since.Add(c.IdleTimeout)
	}
	return old, idle
}

// sweepLocked ends warm instances whose time is over: of the idle ones as many as are
// more than are to be kept ready, the longest idle first. So it does with those that are more
// than there may be, of a configuration that allowed more.
func (p *Pools) sweepLocked(v *server) {
	now := time.Now()
	warm := slices.DeleteFunc(slices.Clone(v.all), func(in *instance) bool { return in.state != Warm })
	slices.SortStableFunc(warm, func(a, b *instance) int { return a.since.Compare(b.since) })
	spare := len(warm) - v.conf.Instances.Min
	over := len(v.all) - v.count(Ending) - v.most()
	for _, in := range warm {
		old, idle := v.overLocked(in)
		switch {
		case over > 0:
		case !old.IsZero() && !now.Before(old):
		case spare > 0 && !idle.IsZero() && !now.Before(idle):
		default:
			continue
		}
		spare--
		over--
		p.endLocked(in, unused)
	}
}

// armLocked sets the timer for the next instance that has to go.
func (p *Pools) armLocked(v *server) {
	if v.sweep != nil {
		v.sweep.Stop()
		v.sweep = nil
	}
	var next time.Time
	spare := v.count(Warm) > v.conf.Instances.Min
	for _, in := range v.all {
		if in.state != Warm {
			continue
		}
		old, idle := v.overLocked(in)
		if !spare {
			idle = time.Time{}
		}
		for _, t := range []time.Time{old, idle} {
			if !t.IsZero() && (next.IsZero() || t.Before(next)) {
				next = t
			}
		}
	}
	if !next.IsZero() {
		v.sweep = time.AfterFunc(time.Until(next), func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.fillLocked(v)
		})
	}
}
