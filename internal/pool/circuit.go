package pool

import (
	"strings"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// circuit remembers how the connections of one identity failed (R4): it outlives the
// entries. Losses and failed starts count alike, but not the attempts of a recovery,
// which keep their distance by themselves, and not a restart by hand, which forgives
// what was, as does a new configuration. It is guarded by Pool.mu.
type circuit struct {
	pardon   uint64      // how often the server's failures had been forgiven when this began
	failures []time.Time // within the window, oldest first
	last     *fault.Error
	opened   time.Time // zero while closed
	up       time.Time // since when a connection lives that was made after that; zero for none
}

// The states of a circuit.
const (
	circuitClosed   = "closed"
	circuitOpen     = "open"      // callers are refused
	circuitHalfOpen = "half-open" // another failure opens it again
)

func (k *circuit) state(c config.Circuit, now time.Time) string {
	switch {
	case k.opened.IsZero(), !k.up.IsZero() && now.Sub(k.up) >= c.Stable:
		return circuitClosed
	case now.Sub(k.opened) < c.Wait:
		return circuitOpen
	}
	return circuitHalfOpen
}

// started notes that a connection came up.
func (k *circuit) started(now time.Time) {
	if !k.opened.IsZero() {
		k.up = now
	}
}

func (k *circuit) failed(c config.Circuit, now time.Time, err *fault.Error) {
	if k.state(c, now) == circuitClosed {
		k.opened = time.Time{}
		k.forget(now.Add(-c.Window))
	}
	k.last, k.up = err, time.Time{}
	k.failures = append(k.failures, now)
	if !k.opened.IsZero() || len(k.failures) >= c.Failures {
		k.forget(now.Add(-c.Window))
		k.opened = now
	}
}

// forget drops what was before a moment.
func (k *circuit) forget(before time.Time) {
	for len(k.failures) > 0 && !k.failures[0].After(before) {
		k.failures = k.failures[1:]
	}
}

// circuitsOf returns where the circuits are that concern an owner's connections, or the
// shared ones: sessions share no blame for what each has for itself.
func (p *Pool) circuitsOf(owner *Holder) map[string]*circuit {
	if owner != nil {
		return owner.circuits
	}
	return p.circuits
}

// circuitLocked returns the circuit of an identity, or nil if nothing failed lately.
func (p *Pool) circuitLocked(identity string, owner *Holder, name string) *circuit {
	k := p.circuitsOf(owner)[identity]
	if k == nil || k.pardon != p.pardonsLocked(name) {
		return nil
	}
	return k
}

// countFailureLocked notes a failure of the entry and reports whether its circuit is
// open now. That a server wants a login is no failure.
func (p *Pool) countFailureLocked(e *entry, err *fault.Error) (open bool) {
	if p.cfg.Circuit.Failures == 0 || err.Reason == fault.NeedsLogin {
		return false
	}
	now := time.Now()
	k := p.circuitLocked(e.identity, e.owner, e.name)
	if k == nil {
		p.sweepLocked(now)
		k = &circuit{pardon: p.pardonsLocked(e.name)}
		p.circuitsOf(e.owner)[e.identity] = k
	}
	k.failed(p.cfg.Circuit, now, err)
	if k.opened != now {
		return false
	}
	n, wait := len(k.failures), p.cfg.Circuit.Wait
	p.tellLocked(e, func() {
		p.cfg.Log.Warn("a server keeps failing and is left alone", "server", e.name, "connection", e.id, "failures", n, "wait", wait)
	})
	return true
}

// sweepLocked drops the circuits that say nothing any more, from time to time.
func (p *Pool) sweepLocked(now time.Time) {
	c := p.cfg.Circuit
	if now.Sub(p.swept) < c.Window {
		return
	}
	p.swept = now
	for identity, k := range p.circuits {
		k.forget(now.Add(-c.Window))
		if len(k.failures) == 0 && (k.state(c, now) == circuitClosed || k.up.IsZero() && now.Sub(k.opened) > c.Wait+c.Stable) {
			delete(p.circuits, identity)
		}
	}
}

// pardonLocked forgives what connections of a server did, whoever has them.
func (p *Pool) pardonLocked(name string) { p.pardons[name]++ }

// pardonsLocked is how often that has happened.
func (p *Pool) pardonsLocked(name string) uint64 { return p.amnesty + p.pardons[name] }

// refusalLocked returns the error for who asks for a connection while its circuit is
// open, else nil.
func (p *Pool) refusalLocked(name, identity string, owner *Holder) error {
	k := p.circuitLocked(identity, owner, name)
	now := time.Now()
	if k == nil || k.state(p.cfg.Circuit, now) != circuitOpen {
		return nil
	}
	p.metrics.refusals.WithLabelValues(name, refusedCircuit).Inc()
	wait := k.opened.Add(p.cfg.Circuit.Wait).Sub(now)
	err := fault.New(fault.CircuitOpen, "server %q keeps failing and is not started again for %s; \"roundhouse restart\" tries at once; its last failure: %s",
		name, wait.Round(time.Second), strings.TrimSuffix(k.last.Message, "; the next call starts it anew"))
	err.Server, err.RetryAfter, err.Err = name, wait, k.last
	err.Data = map[string]any{"failures": len(k.failures)}
	for _, key := range []string{"exit", "stderr"} {
		if v, ok := k.last.Data[key]; ok {
			err.Data[key] = v
		}
	}
	return err
}

// Circuit describes the circuit of a server that failed lately (R4).
type Circuit struct {
	State    string     `json:"state"`             // closed, open or half-open
	Failures int        `json:"failures"`          // within the window
	RetryAt  *time.Time `json:"retryAt,omitempty"` // when an open one lets somebody try
}

// describe returns nil for a circuit that has nothing to say.
func (k *circuit) describe(c config.Circuit, now time.Time) *Circuit {
	if k == nil {
		return nil
	}
	k.forget(now.Add(-c.Window))
	d := &Circuit{State: k.state(c, now), Failures: len(k.failures)}
	switch {
	case d.State == circuitOpen:
		d.RetryAt = new(k.opened.Add(c.Wait))
	case d.State == circuitClosed && d.Failures == 0:
		return nil
	}
	return d
}
