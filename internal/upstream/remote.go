package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"roundhouse/internal/wire"
)

const (
	// notificationSlots is how many notifications and responses are on their way to a
	// server at once, and maxWaiting how many more can wait for that.
	notificationSlots = 16
	maxWaiting        = 1024

	// ackWait is how long a server has to take a notification or a response.
	ackWait = time.Minute

	// initializedWait is how long messages wait for the server to take
	// notifications/initialized, which they must not overtake.
	initializedWait = 5 * time.Second
)

// remote is what the links have in common that send each message by a request of its
// own: who calls the Handler, who owns the goroutines, how messages are ordered, and how
// the link ends.
type remote struct {
	// Constant after newRemote.
	endpoint *endpoint
	maxFrame int
	log      *slog.Logger
	carry    func(*exchange)  // sends a message and delivers what comes back
	shaken   func(wire.Frame) // called with the answer to initialize before it is delivered; may be nil
	ready    func()           // called once the server has taken initialized; may be nil

	ctx    context.Context // ends with the link; its cause says why
	end    context.CancelCauseFunc
	closed chan struct{} // closed by refuseLocked: no more messages are taken
	events chan event    // for the goroutine in Run, which calls the Handler
	slots  chan struct{} // one for each notification or response on its way
	wg     sync.WaitGroup

	mu          sync.Mutex
	running     bool
	modern      string               // see HTTP.Modern
	closing     bool                 // closed is closed
	waiting     int                  // messages of Post that wait for a slot
	calls       map[string]*exchange // in flight, by id
	asking      int                  // messages that were taken and are not answered: see answered
	settled     chan struct{}        // closed when there are none; nil if nobody waits for that
	initialized chan struct{}        // closed when the server has taken that notification, or not; nil before it is sent
	untaken     error                // why it has not taken initialized
}

func newRemote(config HTTPConfig, e *endpoint) *remote {
	r := &remote{
		endpoint: e,
		maxFrame: config.maxFrame(),
		log:      config.logger(),
		closed:   make(chan struct{}),
		events:   make(chan event),
		slots:    make(chan struct{}, notificationSlots),
		calls:    map[string]*exchange{},
	}
	r.ctx, r.end = context.WithCancelCause(context.Background())
	return r
}

// event is one call of the Handler.
type event struct {
	kind  eventKind
	frame wire.Frame
	call  []byte // of an oversize event, the id that was found
	err   error
	sent  bool
	of    wire.Kind
	size  int64
	line  []byte
}

type eventKind uint8

const (
	frameEvent eventKind = iota
	failedEvent
	oversizeEvent
	noiseEvent
)

func (e *event) tell(h Handler) {
	switch e.kind {
	case frameEvent:
		h.Frame(e.frame, e.call)
	case failedEvent:
		h.Failed(e.call, e.err, e.sent)
	case oversizeEvent:
		h.Oversize(e.call, e.of, e.size)
	case noiseEvent:
		h.Noise(e.line)
	}
}

// emit hands e to the goroutine in Run and returns when it is the next to be told.
func (r *remote) emit(e event) {
	select {
	case r.events <- e:
	case <-r.ctx.Done():
	}
}

// run is Run of the links.
func (r *remote) run(h Handler) error {
	r.mu.Lock()
	again := r.running
	r.running = true
	r.mu.Unlock()
	if again {
		panic("upstream: Run was called twice")
	}
	for {
		select {
		case e := <-r.events:
			e.tell(h)
		case <-r.ctx.Done():
			r.lose(nil)
			r.wg.Wait()
			return context.Cause(r.ctx)
		}
	}
}

// lose ends the link with err; the first reason counts.
func (r *remote) lose(err error) {
	r.mu.Lock()
	r.refuseLocked()
	r.mu.Unlock()
	r.end(err)
}

// refuseLocked makes Send refuse from now on; what is on its way goes on.
func (r *remote) refuseLocked() {
	if !r.closing {
		r.closing = true
		close(r.closed)
	}
}

// Abort ends Run with err from elsewhere, promptly. Only the first call counts, and none
// after Run has returned.
func (r *remote) Abort(err error) { r.lose(err) }

// spawn runs f in a goroutine of the link, unless that takes no more messages.
func (r *remote) spawn(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closing {
		r.wg.Go(f)
	}
}

// Send sends m. It never waits for a call; for another message it waits while too many
// of them are on their way. Its error is ErrClosed, or the cause of ctx; m was not sent
// and will not be then. ctx says nothing about the time after Send has returned: a
// notifications/cancelled ends the call that it names.
func (r *remote) Send(ctx context.Context, m *Message) error {
	if ctx.Err() != nil {
		return fmt.Errorf("send message: %w", context.Cause(ctx))
	}
	if !needsSlot(m) {
		return r.launch(m, false)
	}
	select {
	case r.slots <- struct{}{}:
	case <-r.closed:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("wait to send message: %w", context.Cause(ctx))
	}
	err := r.launch(m, true)
	if err != nil {
		<-r.slots
	}
	return err
}

// Post sends m without ever waiting, for a Handler's own answers. It reports whether m
// was taken; it is not when the link has ended, or when a thousand messages wait for the
// server to take them.
func (r *remote) Post(m *Message) bool { return r.launch(m, false) == nil }

// errBusy means that a server takes no notifications.
var errBusy = errors.New("too many messages wait for the server")

func needsSlot(m *Message) bool { return m.ID == nil && m.Method != wire.Cancelled }

// launch starts to send m. slot says that m has one.
func (r *remote) launch(m *Message, slot bool) error {
	withdrawn := ""
	if m.Method == wire.Cancelled {
		withdrawn = cancelledID(m)
	}
	wait := needsSlot(m) && !slot
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return ErrClosed
	}
	if m.withdrawn || r.modern != "" && m.Method == wire.Cancelled {
		return nil // Nobody waits for it, or it means nothing.
	}
	if wait {
		if r.waiting == maxWaiting {
			return errBusy
		}
		r.waiting++
	}
	x := newExchange(r.ctx, m, r.modern)
	r.asking++
	switch {
	case m.Method == wire.Cancelled:
		target := r.calls[withdrawn]
		r.wg.Go(func() { r.withdraw(x, target) })
	case m.Method == wire.Initialized && r.initialized == nil:
		taken := make(chan struct{})
		r.initialized = taken
		r.wg.Go(func() {
			defer r.finish(x)
			r.transmit(x, wait)
			close(taken)
			if r.ready != nil {
				r.ready()
			}
		})
	default:
		var gate <-chan struct{}
		if m.Method != "" {
			gate = r.initialized
		}
		if m.ID != nil {
			r.calls[string(m.ID)] = x
		}
		r.wg.Go(func() {
			defer r.finish(x)
			if pass(x.ctx, gate) {
				r.transmit(x, wait)
			}
		})
	}
	return nil
}

// transmit carries a message, with a slot if it needs one.
func (r *remote) transmit(x *exchange, wait bool) {
	if wait {
		slot := false
		select {
		case r.slots <- struct{}{}:
			slot = true
		case <-x.ctx.Done():
		}
		r.mu.Lock()
		r.waiting--
		r.mu.Unlock()
		if x.ctx.Err() != nil { // with a slot, too, if both came at once
			if slot {
				<-r.slots
			}
			r.fail(x, context.Cause(x.ctx), false)
			return
		}
	}
	if needsSlot(x.message) {
		defer func() { <-r.slots }()
	}
	r.carry(x)
}

// finish is the end of an exchange.
func (r *remote) finish(x *exchange) {
	x.cancel()
	r.answered(x)
	if x.isCall() {
		r.mu.Lock()
		if id := string(x.message.ID); r.calls[id] == x {
			delete(r.calls, id)
		}
		r.mu.Unlock()
	}
	close(x.done)
}

// answered notes that a message was answered, that its answer comes as a stream, which
// may take hours, or that none comes; the second time it does nothing. It is called by the
// goroutine of the exchange.
func (r *remote) answered(x *exchange) {
	if x.answered {
		return
	}
	x.answered = true
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking--
	if r.asking == 0 && r.settled != nil {
		close(r.settled)
		r.settled = nil
	}
}

// pass waits for a gate, but not for ever, and reports whether ctx still lives.
func pass(ctx context.Context, gate <-chan struct{}) bool {
	if gate == nil || isClosed(gate) {
		return true
	}
	timeout := time.NewTimer(initializedWait)
	defer timeout.Stop()
	select {
	case <-gate:
	case <-timeout.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// cancelledID returns the id that a notifications/cancelled names, as it is spelled.
func cancelledID(m *Message) string {
	f, err := wire.Parse(m.Bytes)
	if err != nil {
		return ""
	}
	routing, err := f.Routing()
	if err != nil {
		return ""
	}
	return string(routing.RequestID.Of(f.Raw))
}

// withdraw sends a notifications/cancelled, not before the call that it names, and then
// no longer waits for that call's answer. A call that has not left yet is withdrawn
// without a word.
func (r *remote) withdraw(x, target *exchange) {
	defer r.finish(x)
	if target == nil {
		r.carry(x)
		return
	}
	if !target.message.Sent() {
		target.cancel()
		<-target.done
		if !target.message.Sent() {
			return
		}
	}
	select {
	case <-target.written:
	case <-target.done:
	case <-x.ctx.Done():
	}
	r.carry(x)
	target.cancel()
}

// Taken waits until the server has taken notifications/initialized, which has been
// posted, but not for ever. It returns why the server did not take it, and nil if it did,
// if it has not said anything yet, or if ctx has ended.
func (r *remote) Taken(ctx context.Context) error {
	r.mu.Lock()
	gate := r.initialized
	r.mu.Unlock()
	pass(ctx, gate)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.untaken
}

// Cancel withdraws a call of 2026-07-28, by which the server knows that it is cancelled:
// its stream is closed, or it is not sent if it has not left yet. No answer is to be
// expected any more, but one that was on its way may still be delivered. Of an older
// version's call Cancel does nothing: notifications/cancelled says it there. It never
// waits.
func (r *remote) Cancel(m *Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := r.calls[string(m.ID)]; x != nil && x.message == m {
		if x.modern != "" {
			x.cancel()
		}
		return
	}
	m.withdrawn = r.modern != ""
}

// fail tells that the message was not answered, or not taken. Nobody waits for a
// notification or a response, so that goes to the log only.
func (r *remote) fail(x *exchange, err error, sent bool) {
	if !x.isCall() {
		if x.message.Method == wire.Initialized {
			r.mu.Lock()
			r.untaken = err
			r.mu.Unlock()
		}
		r.log.Warn("the server did not take a message", "method", x.message.Method, "err", err)
		return
	}
	if !sent {
		x.message.sent.Store(false)
	}
	r.emit(event{kind: failedEvent, call: x.message.ID, err: err, sent: sent})
}
