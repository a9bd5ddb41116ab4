// Package instance lends exclusive instances of servers: each to one session at a time,
// from a bounded number, to those who wait in the order in which they came.
//
// The properties that it has are those of the sessions specification (I), and tests name
// them.
package instance

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/pool"
)

// Launcher starts instances.
type Launcher interface {
	// Launch starts an instance of a server, the index-th of those that live, and warms
	// it up. lost is called, without waiting for anything, when it ends by itself; news
	// when its lists have changed. ctx bounds the start. After an error nothing is left.
	Launch(ctx context.Context, s *config.Server, index int, lost func(error), news func()) (Unit, error)
}

// Unit is what a Launcher has started.
type Unit interface {
	// Ask makes a call and throws the result away; without a tool it is a ping.
	Ask(ctx context.Context, call config.ToolCall) error
	// Lend attaches a session as pool.Attachment.Lend does.
	Lend(h *pool.Holder, w pool.Want) (*pool.Attachment, error)
	// Catalogue returns what the server said it has; ctx bounds the reading.
	Catalogue(ctx context.Context) (*Catalogue, error)
	// Connection returns the id of the connection.
	Connection() string
	// Close ends it with why for whoever still uses it, and returns when nothing of it
	// is left, or could not be ended in the configured time.
	Close(why *fault.Error)
}

// Catalogue is what instances of a server say of themselves. It is read-only.
type Catalogue struct {
	Handshake *pool.Handshake
	Lists     map[pool.Kind]*pool.Listing // unfiltered; one that the server does not declare is absent
	Failed    map[pool.Kind]error         // of those that could not be read, and never were
}

// Config says how Pools works.
type Config struct {
	Launcher Launcher     // required
	Log      *slog.Logger // nil discards
}

// Pools has a pool of instances for each exclusive server. Its methods may be called at
// any time. Drain ends it for good; one that is not drained leaks its instances.
type Pools struct {
	// Constant after New.
	cfg     Config
	base    context.Context // ends when no start is wanted any more
	giveUp  context.CancelCauseFunc
	wg      sync.WaitGroup // starts, resets and closings; Join joins it
	drained chan struct{}  // closed when nothing is lent any more after Drain

	// Guarded by mu.
	mu       sync.Mutex
	servers  map[string]*server   // by name, of those that are configured
	retired  map[*server]struct{} // whose configuration was replaced, while they have instances
	draining bool
}

// New returns Pools without servers.
func New(cfg Config) *Pools {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Pools{cfg: cfg, servers: map[string]*server{}, retired: map[*server]struct{}{}, drained: make(chan struct{})}
	p.base, p.giveUp = context.WithCancelCause(context.Background())
	return p
}

// Configure makes the exclusive ones among all servers the ones that have instances.
// Where only numbers and times differ, instances stay. Otherwise they end, those that are
// lent when they are given back. Servers that keep warm ones start them, and no start waits
// because others failed before.
func (p *Pools) Configure(all []*config.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining {
		return
	}
	wanted := map[string]*config.Server{}
	for _, s := range all {
		if s.Sharing == config.Exclusive && s.DisabledReason == "" {
			wanted[s.Name] = s
		}
	}
	for name, v := range p.servers {
		if now := wanted[name]; now != nil && pool.SameConnection(v.conf, now) {
			v.conf = now
			v.forgive()
			p.fillLocked(v)
			continue
		}
		p.retireLocked(v)
	}
	for name, s := range wanted {
		if p.servers[name] == nil {
			v := &server{name: name, conf: s, down: map[int]time.Time{}}
			p.servers[name] = v
			p.fillLocked(v)
		}
	}
}

// Pardon forgives failed starts of a server, as a restart by hand does (R4): the next one
// waits no longer.
func (p *Pools) Pardon(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.servers[name]; v != nil {
		v.forgive()
		p.fillLocked(v)
	}
}

// retireLocked ends the pool of a server that is not to be used as it was.
func (p *Pools) retireLocked(v *server) {
	delete(p.servers, v.name)
	v.refusal = changed(v.name)
	p.refuseLocked(v)
	if len(v.all) > 0 {
		p.retired[v] = struct{}{}
	}
}

// refuseLocked lets nobody wait for a server any more, and ends what is not lent.
func (p *Pools) refuseLocked(v *server) {
	v.pauseOver()
	if v.sweep != nil {
		v.sweep.Stop()
	}
	for _, w := range v.waiters {
		w.outcome <- outcome{err: v.refusal}
	}
	v.waiters = nil
	for _, c := range v.curious {
		c <- v.refusal
	}
	v.curious = nil
	for _, in := range slices.Clone(v.all) {
		switch in.state {
		case Warm:
			p.endLocked(in, v.refusal)
		case Starting:
			in.giveUp(v.refusal)
		}
	}
}

func changed(name string) *fault.Error {
	err := fault.New(fault.Interrupted, "the configuration of server %q has changed; try again", name)
	err.Server, err.Sent = name, fault.SentNo
	return err
}

func drainingFault() *fault.Error {
	err := fault.New(fault.Draining, "roundhouse is shutting down")
	err.RetryAfter, err.Sent = 5*time.Second, fault.SentNo
	return err
}

// serverLocked finds the pool of a server.
func (p *Pools) serverLocked(s *config.Server) (*server, error) {
	if p.draining {
		return nil, drainingFault()
	}
	if v := p.servers[s.Name]; v != nil && pool.SameConnection(v.conf, s) {
		return v, nil
	}
	return nil, changed(s.Name)
}

// Borrower is who asks for an instance.
type Borrower struct {
	Principal string
	Session   string
}

// Lease is an instance in the hands of one session. Release it.
type Lease struct {
	p  *Pools
	in *instance
}

// Acquire lends an instance (I3): a warm one that gives a sign of life (I4), else one that
// is started if there may be more, else the first that is free once all who came before
// have one. It waits under ctx, and not longer than instances.maxWait. Errors:
// fault.InstanceWaitTimeout, the error of a start, fault.Interrupted when the
// configuration has changed, fault.Draining, or the cause of ctx.
func (p *Pools) Acquire(ctx context.Context, s *config.Server, b Borrower) (*Lease, error) {
	w := &waiter{Borrower: b, since: time.Now()}
	v, err := p.enqueue(s, w)
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeoutCause(ctx, s.Instances.MaxWait, errWaited)
	defer cancel()
	for {
		in, err := p.wait(waiting, v, w)
		if err != nil {
			return nil, err
		}
		if l, err := p.prove(waiting, in, w); l != nil || err != nil {
			return l, err
		}
	}
}

// Crowded reports whether who asks for an instance of a server now has to wait until a
// session gives one back.
func (p *Pools) Crowded(s *config.Server) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, err := p.serverLocked(s)
	if err != nil {
		return false
	}
	free := len(p.placesLocked(v)) + v.count(Starting, Warm, Resetting, Ending)
	return free <= len(v.waiters)
}

// enqueue puts a waiter into the queue of a server.
func (p *Pools) enqueue(s *config.Server, w *waiter) (*server, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, err := p.serverLocked(s)
	if err != nil {
		return nil, err
	}
	v.queueLocked(w)
	p.fillLocked(v)
	return v, nil
}

// probeWait is how long an instance has to give a sign of life before it is lent.
const probeWait = 5 * time.Second

// prove probes the instance that is reserved for w (I4), without any lock, and lends it. One
// that gives no sign of life is ended; there is no lease then, and w waits again, in its
// place. If w's time is over first, nobody gets the instance before it is known how it is.
func (p *Pools) prove(ctx context.Context, in *instance, w *waiter) (*Lease, error) {
	p.mu.Lock()
	v, probe := in.server, in.server.conf.Instances.Probe
	p.mu.Unlock()
	err := in.ask(ctx, probe)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case in.state == Ending: // the drain was over
		return nil, v.refusal
	case v.refusal != nil:
		p.restLocked(in)
		return nil, v.refusal
	case ctx.Err() != nil: // so that an error says nothing about the instance
		p.unprovenLocked(in, err)
		return nil, p.lateLocked(ctx, v, w)
	case err != nil || in.dead != nil:
		w.failure = cmp.Or(err, in.dead)
		p.silentLocked(in, w.failure)
		v.queueLocked(w) // at once, before anybody else gets what comes next
		p.fillLocked(v)
		return nil, nil
	}
	in.lease = &Lease{p, in}
	in.uses++
	delete(v.down, in.index)
	v.forgive()
	p.fillLocked(v)
	return in.lease, nil
}

// ask asks an instance for a sign of life, for which it has a time of its own beside ctx.
func (in *instance) ask(ctx context.Context, probe config.ToolCall) error {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	return in.unit.Ask(ctx, probe)
}

// unprovenLocked takes an instance back from who left during its probe, of which err is the
// outcome. Unless it is well it is probed again, for nobody: who comes next must not get one
// that hangs.
func (p *Pools) unprovenLocked(in *instance, err error) {
	if err == nil || in.dead != nil {
		p.restLocked(in)
		return
	}
	probe := in.server.conf.Instances.Probe
	in.Borrower = Borrower{}
	p.setLocked(in, Resetting)
	p.wg.Go(func() {
		err := in.ask(p.base, probe)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.silentLocked(in, err)
			return
		}
		p.restLocked(in)
	})
	p.fillLocked(in.server)
}

// silentLocked ends an instance that gave no sign of life.
func (p *Pools) silentLocked(in *instance, err error) {
	p.cfg.Log.Warn("an instance is not lent, since it gives no sign of life", "server", in.server.name, "instance", in.id, "err", err)
	p.diedLocked(in, err)
}

// wait returns an instance that is reserved for w, which is in the queue.
func (p *Pools) wait(ctx context.Context, v *server, w *waiter) (*instance, error) {
	select {
	case got := <-w.outcome:
		return got.in, got.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case got := <-w.outcome: // in the same moment
		if got.err != nil {
			return nil, got.err
		}
		p.restLocked(got.in)
	default:
		v.waiters = slices.DeleteFunc(v.waiters, func(x *waiter) bool { return x == w })
		p.fillLocked(v)
	}
	return nil, p.lateLocked(ctx, v, w)
}

// lateLocked is the error of a waiter whose ctx has ended.
func (p *Pools) lateLocked(ctx context.Context, v *server, w *waiter) error {
	if why := context.Cause(ctx); why != errWaited {
		return why
	}
	return p.fullLocked(v, w)
}

var errWaited = fault.New(fault.InstanceWaitTimeout, "no instance was free in time")

// fullLocked says who has all the instances, endpoints of a configuration before included,
// and, if others could be had, why there are none (I3).
func (p *Pools) fullLocked(v *server, w *waiter) *fault.Error {
	type who struct{ principal, session string }
	holders := map[who]bool{}
	leased, longest := 0, time.Duration(0)
	all := slices.Clone(v.all)
	for index := range v.conf.Instances.Endpoints {
		if in := p.holderLocked(v, index); in != nil && in.server != v {
			all = append(all, in)
		}
	}
	for _, in := range all {
		if in.state == Leased {
			leased++
			holders[who{in.Principal, in.Session}] = true
			longest = max(longest, time.Since(in.since))
		}
	}
	starting, resetting := v.count(Starting), v.count(Resetting)
	todo := "end a session that has one, or raise instances.max"
	switch {
	case leased >= v.most():
	case w.failure != nil:
		todo = "the last one that was tried gave no sign of life (instances.probe): " + w.failure.Error()
	case v.failure != nil:
		todo = "the last start failed: " + v.failure.Error()
	default:
		todo = "try again, or raise instances.maxWait"
	}
	err := fault.New(fault.InstanceWaitTimeout, "no instance of server %q was free within %s (instances.maxWait): %d of %d are lent to %s, the longest for %s, "+
		"%d are starting, %d are being made new or probed, and %d others wait; %s",
		v.name, time.Since(w.since).Round(time.Millisecond), leased, v.most(), sessions(len(holders)), longest.Round(time.Second), starting, resetting, len(v.waiters), todo)
	err.Server, err.Sent, err.RetryAfter = v.name, "", 10*time.Second
	err.Data = map[string]any{
		"leased": leased, "max": v.most(), "sessions": len(holders), "longestMs": longest.Milliseconds(), "starting": starting, "resetting": resetting, "waiting": len(v.waiters),
	}
	return err
}

func sessions(n int) string {
	if n == 1 {
		return "1 session"
	}
	return fmt.Sprintf("%d sessions", n)
}

// Attach attaches the borrower's session, as pool.Attachment.Lend does.
func (l *Lease) Attach(h *pool.Holder, w pool.Want) (*pool.Attachment, error) {
	return l.in.unit.Lend(h, w)
}

// Instance returns the id of the instance.
func (l *Lease) Instance() string { return l.in.id }

// Release gives the instance back, which the session uses no more (I5). It returns at
// once; the second time it does nothing.
func (l *Lease) Release() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.in.lease == l {
		l.in.lease = nil
		l.p.returnLocked(l.in)
	}
}

// Describe returns what the instances of a server say of themselves, without lending one.
// If none was ever started, one is, and stays warm. ctx bounds the waiting.
func (p *Pools) Describe(ctx context.Context, s *config.Server) (*Catalogue, error) {
	for {
		p.mu.Lock()
		v, err := p.serverLocked(s)
		if err != nil || v.known != nil {
			defer p.mu.Unlock()
			if err != nil {
				return nil, err
			}
			return v.known, nil
		}
		if v.pause != nil {
			defer p.mu.Unlock()
			return nil, v.failure
		}
		told := make(chan error, 1)
		v.curious = append(v.curious, told)
		p.fillLocked(v)
		p.mu.Unlock()
		select {
		case err := <-told:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			p.mu.Lock()
			v.curious = slices.DeleteFunc(v.curious, func(c chan error) bool { return c == told })
			p.mu.Unlock()
			return nil, context.Cause(ctx)
		}
	}
}

// Refresh is Describe for who needs a list that could not be read: an instance that lives
// is asked once more (R9).
func (p *Pools) Refresh(ctx context.Context, s *config.Server) (*Catalogue, error) {
	known, err := p.Describe(ctx, s)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	v, err := p.serverLocked(s)
	var unit Unit
	if err == nil {
		if i := slices.IndexFunc(v.all, func(in *instance) bool { return in.unit != nil && in.state != Ending }); i >= 0 {
			unit = v.all[i].unit
		}
	}
	p.mu.Unlock()
	if err != nil || unit == nil {
		return known, err
	}
	brief, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	now, err := unit.Catalogue(brief)
	if err != nil {
		return known, nil // which says of the list why there is none
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v.learnLocked(now)
	return v.known, nil
}

// Report says how a drain went.
type Report struct {
	Ended int    // instances
	Lent  []Lent // those that were still lent when the time was over
}

// Lent is an instance that was not given back in time.
type Lent struct {
	Instance, Principal, Session string
}

// Drain refuses everything from now on, ends what is not lent, and waits until ctx ends
// for the rest to be given back. What is lent then is ended all the same, and named (I9).
// It does not wait for the ends; Join does. It is called once.
func (p *Pools) Drain(ctx context.Context) Report {
	p.mu.Lock()
	p.draining = true
	p.giveUp(drainingFault())
	r := Report{}
	for v := range p.eachLocked() {
		r.Ended += len(v.all)
		v.refusal = drainingFault()
		p.refuseLocked(v)
	}
	p.drainedLocked()
	p.mu.Unlock()
	select {
	case <-p.drained:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for v := range p.eachLocked() {
		for _, in := range slices.Clone(v.all) {
			if in.state == Leased {
				r.Lent = append(r.Lent, Lent{in.id, in.Principal, in.Session})
				in.lease = nil
				p.endLocked(in, drainingFault())
			}
		}
	}
	for _, x := range r.Lent {
		p.cfg.Log.Warn("an instance was still lent at the end", "instance", x.Instance, "session", x.Session, "principal", x.Principal)
	}
	return r
}

// Join returns when everything that Drain has ended is gone.
func (p *Pools) Join() { p.wg.Wait() }

// drainedLocked looks whether a drain has nothing to wait for any more.
func (p *Pools) drainedLocked() {
	if !p.draining {
		return
	}
	for v := range p.eachLocked() {
		if slices.ContainsFunc(v.all, func(in *instance) bool { return in.state == Leased }) {
			return
		}
	}
	select {
	case <-p.drained:
	default:
		close(p.drained)
	}
}

// eachLocked yields every server that has instances or may have.
func (p *Pools) eachLocked() func(yield func(*server) bool) {
	return func(yield func(*server) bool) {
		for _, v := range p.servers {
			if !yield(v) {
				return
			}
		}
		for v := range p.retired {
			if !yield(v) {
				return
			}
		}
	}
}
