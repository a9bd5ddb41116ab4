package gateway

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/relay"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

const (
	// maxOpen is how many requests of one line may be in flight.
	maxOpen = 1024
	// readOn is how long a frame may take to be on its way before the next one is read:
	// frames that come in a row keep their order, and one that has to wait, for a server
	// that starts, holds up neither others nor its own cancellation.
	readOn = 2 * time.Millisecond
	// writeChunk is how much is written under one deadline, in bytes.
	writeChunk = 256 << 10
)

var errNotInitialized = fault.New(fault.BadRequest, "the first request must be initialize, or say in its _meta which protocol version it is of")

// line is the connection of one shim, and the client on it: one with a handshake, the
// sender of requests of 2026-07-28, or somebody who tries out both. It implements
// mux.Outlet for all requests of the first.
//
// Its handler writes; one goroutine at a time reads. When the line ends, both end,
// and the handler waits for those that still bring a frame on its way.
type line struct {
	// Constant after serve began.
	rl      *Relay
	hello   session.Hello // without Frame and Stream, which initialize sets
	session string        // the id of the session that it enters
	conn    net.Conn
	in      *relay.Lines
	wg      sync.WaitGroup // readers, and with them what leads frames on
	ctx     context.Context
	cancel  context.CancelCauseFunc
	wake    chan struct{} // something waits to be written
	resumed chan struct{} // closed when another line has entered the session
	ended   chan struct{} // closed by end

	mu      sync.Mutex
	client  *session.Client       // that has shaken hands, or nil
	sender  *session.Client       // stands for who sends without a handshake, or nil
	closed  []func()              // tell them that their stream is closed
	visits  map[string]*lineVisit // requests without a handshake, in flight, by id
	leaving []*session.Client     // of those that have ended
	queue   []queued
	bytes   int
	open    int  // requests in flight
	ending  bool // the client has ended: what waits is written, nothing is added
	deaf    bool // nobody writes any more
	dropped bool // notifications were dropped
}

func newLine(rl *Relay, hello session.Hello) *line {
	l := &line{
		rl: rl, hello: hello, session: hello.Session,
		wake: make(chan struct{}, 1), resumed: make(chan struct{}), ended: make(chan struct{}), visits: map[string]*lineVisit{},
	}
	if l.session == "" {
		l.session = cmp.Or(hello.Resumes, hello.ClientID) // what the manager mints
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// serve runs the line to its end and says why it ended. answer is written first; r
// may hold what the shim has sent already.
func (l *line) serve(conn net.Conn, r *bufio.Reader, answer string) error {
	defer l.cancel(nil)
	l.conn = conn
	defer context.AfterFunc(l.ctx, func() {
		if !inOrder(context.Cause(l.ctx)) {
			_ = conn.Close() // the writer, if it is stuck, has nothing to wait for
		}
	})()
	err := conn.SetDeadline(time.Time{}) // that of the request's headers
	if err == nil {
		_, err = io.WriteString(&chunked{conn, l.rl.g.cfg.WriteDeadline}, answer)
	}
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	l.in = relay.NewLines(bufio.NewReaderSize(r, relay.BufferSize/2), wire.MaxFrame)
	l.wg.Go(l.read)
	cause := l.write()
	_ = conn.Close() // the cause says more
	l.leave(cause)
	l.wg.Wait()
	return cause
}

// inOrder reports whether a line ended because its shim did.
func inOrder(cause error) bool { return errors.Is(cause, io.EOF) }

// leave ends the line's client. One whose line broke is kept for a while; requests
// without a handshake are not.
func (l *line) leave(cause error) {
	l.mu.Lock()
	l.deaf = true
	l.queue = nil
	l.count(-l.bytes)
	client, sender, closed := l.client, l.sender, l.closed
	visits := slices.Collect(maps.Values(l.visits))
	l.mu.Unlock()
	for _, x := range visits {
		x.settle(nil)
	}
	l.dismiss()
	if client == nil && sender == nil {
		return
	}
	for _, f := range closed {
		f()
	}
	if !inOrder(cause) {
		l.rl.discharge(l)
		l.rl.wait(l)
	}
	for _, c := range []*session.Client{client, sender} {
		if c != nil {
			c.Delete()
		}
	}
}

// read takes the shim's frames until the line ends, or until another goroutine reads
// on because a frame takes its time.
func (l *line) read() {
	for {
		raw, err := l.in.Next()
		if tooLong, ok := errors.AsType[*relay.TooLong](err); ok {
			l.refuseLong(tooLong)
			continue
		}
		if err != nil {
			l.cancel(err)
			return
		}
		if !l.take(raw) {
			return
		}
	}
}

// take handles one line of text, and reports whether its caller is to read on.
func (l *line) take(raw []byte) bool {
	l.rl.g.metrics.frames.Inc()
	raws, _, err := wire.SplitBatch(raw)
	if err != nil {
		l.malformed(err)
		return true
	}
	mine := true
	for _, raw := range raws { // a batch is answered one by one
		f, err := wire.Parse(raw)
		if err != nil {
			l.malformed(err)
			continue
		}
		meta, modern, err := l.claims(f)
		switch {
		case err != nil:
			l.malformed(err)
		case modern:
			mine = l.visit(f, meta, mine) && mine
		case f.Kind == wire.Request && f.Method == wire.MethodInitialize && l.peer() == nil:
			l.initialize(f)
		default:
			mine = l.frame(f, mine) && mine
		}
	}
	return mine
}

func (l *line) peer() *session.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client
}

// frame leads a frame of the client that has shaken hands on its way. If that takes long
// and the caller is the reader, another goroutine becomes the reader, and the result is
// false.
func (l *line) frame(f wire.Frame, reader bool) bool {
	if f.Kind == wire.Notification && f.Method == wire.Cancelled && l.withdraw(f) {
		return true
	}
	c := l.peer()
	if c == nil {
		switch {
		case f.Kind != wire.Request:
		case f.Method == wire.Ping:
			l.put(mux.Pieces{wire.Result(f.ID(), []byte("{}"))}, true)
		default:
			l.put(failure(f.ID(), errNotInitialized), true)
		}
		return true
	}
	if f.Kind == wire.Request && !l.begin() {
		l.put(failure(f.ID(), errTooManyOpen), true)
		return true
	}
	return l.lead(reader, func() { c.Session().Do(c, f, l) })
}

var errTooManyOpen = fault.New(fault.BadRequest, "%d requests of this client are in flight; wait for their answers", maxOpen)

// lead does the work that brings a frame on its way.
func (l *line) lead(reader bool, work func()) bool {
	if !reader {
		work()
		return true
	}
	l.wg.Add(1)
	next := time.AfterFunc(readOn, func() {
		defer l.wg.Done()
		l.read()
	})
	work()
	if !next.Stop() {
		return false
	}
	l.wg.Done()
	return true
}

// begin counts a request, unless there are too many.
func (l *line) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= maxOpen {
		return false
	}
	l.open++
	return true
}

// initialize makes the line's client. Nothing else is read meanwhile.
func (l *line) initialize(f wire.Frame) {
	hello := l.hello
	hello.Frame = f
	meta, err := f.Routing()
	if err != nil {
		l.malformed(err)
		return
	}
	if err := addMeta(&hello, meta); err != nil {
		l.put(failure(f.ID(), err), true)
		return
	}
	peer := &linePeer{line: l}
	hello.Stream = peer
	c, answer, err := l.rl.g.cfg.Sessions.Initialize(l.ctx, hello)
	if err != nil {
		l.put(failure(f.ID(), err), true)
		return
	}
	if over, ok := l.keep(c, peer, &l.client); ok {
		l.put(answer, true)
		if over {
			l.end()
		}
	}
}

// keep makes c one of the line's clients, at its place. It fails, and c has left, if the
// line has ended or the place is taken. over says that c's session has ended already.
func (l *line) keep(c *session.Client, peer *linePeer, place **session.Client) (over, ok bool) {
	closed := c.StreamOpened()
	l.mu.Lock()
	over, ok = peer.ended, !l.deaf && *place == nil
	if ok {
		*place = c
		l.closed = append(l.closed, closed)
		peer.stays = true
	}
	l.mu.Unlock()
	if !ok {
		closed()
		c.Delete()
		return over, false
	}
	l.rl.resume(l.hello.Principal, l.session)
	return over, true
}

// linePeer is a client's side of its line. It implements session.Stream. Its
// fields below line are guarded by line.mu.
type linePeer struct {
	line  *line
	stays bool // its handshake has succeeded; another one may be tried otherwise
	ended bool
}

// Push implements session.Stream.
func (p *linePeer) Push(f mux.Pieces) { p.line.put(f, false) }

// End implements session.Stream.
func (p *linePeer) End(*fault.Error) {
	p.line.mu.Lock()
	p.ended = true
	stays := p.stays
	p.line.mu.Unlock()
	if stays {
		p.line.end()
	}
}

// addMeta reads what _meta says beside the headers.
func addMeta(hello *session.Hello, meta wire.Routing) error {
	raw := hello.Frame.Raw
	if meta.Session.Present() {
		name, err := wire.Text(meta.Session.Of(raw))
		if err != nil {
			return errMetaSession
		}
		if !wire.ValidSessionID(name) || hello.Session != "" && hello.Session != name {
			return fault.New(fault.BadRequest, `_meta["roundhouse/session"] is malformed, or the shim was started with another --session`)
		}
		hello.Session = name
	}
	dir, err := workspaceOf(hello.Frame, meta)
	if err != nil {
		return err
	}
	if dir != "" {
		hello.Workspace = dir
	}
	hello.Tools, err = toolsOf(hello.Frame, meta)
	return err
}

// failure is the error answer to a request.
func failure(id []byte, err error) mux.Pieces {
	return mux.Pieces{wire.ErrorReply(id, fault.Of(err).RPC())}
}

// malformed answers what is no frame.
func (l *line) malformed(err error) {
	bad, ok := errors.AsType[*wire.ParseFailure](err)
	if !ok {
		bad = &wire.ParseFailure{Code: wire.ParseError, Message: err.Error()}
	}
	l.put(mux.Pieces{wire.ErrorReply(bad.ID, wire.ErrorObject(bad.Code, bad.Message))}, true)
}

// refuseLong settles the call of a frame that was too long to be read (case 11).
func (l *line) refuseLong(e *relay.TooLong) {
	reply := failure(e.ID, fault.New(fault.TooLarge, "%w", e))
	if e.Kind != wire.Response {
		l.put(reply, true)
		return
	}
	if f, err := wire.Parse(reply[0]); err == nil { // the server that asked gets an error
		l.frame(f, false)
	}
}

// Note implements mux.Outlet.
func (l *line) Note(p mux.Pieces) { l.put(p, false) }

// Done implements mux.Outlet.
func (l *line) Done(p mux.Pieces) {
	l.mu.Lock()
	l.open--
	l.mu.Unlock()
	l.put(p, true)
}

// end ends the line when what waits is written. The shim may come back.
func (l *line) end() {
	l.mu.Lock()
	again := l.ending
	l.ending = true
	l.mu.Unlock()
	if !again {
		close(l.ended)
	}
	l.rouse()
}

func (l *line) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// put queues a frame. It never waits.
func (l *line) put(p mux.Pieces, answer bool) {
	l.mu.Lock()
	l.putLocked(p, answer)
	l.mu.Unlock()
	l.rouse()
}

func (l *line) putLocked(p mux.Pieces, answer bool) {
	if p.Empty() || l.deaf || l.ending {
		return
	}
	l.fitLocked(p.Len())
	l.queue = append(l.queue, queued{p, answer})
	l.count(p.Len())
}

func (l *line) count(n int) {
	l.bytes += n
	l.rl.g.queued.Add(int64(n))
}

// fitLocked makes room for n bytes by dropping the oldest notifications (H4). Answers
// and a server's questions stay: their number is limited, and a shim that does not
// take them loses its line at the write deadline. Only a daemon that is full of them
// cuts the line at once.
func (l *line) fitLocked(n int) {
	total := func() bool { return l.rl.g.queued.Load()+int64(n) > maxQueuedTotal }
	full := func() bool {
		return len(l.queue) >= maxQueuedFrames || l.bytes+n > maxQueuedBytes || total()
	}
	for i := 0; i < len(l.queue) && full(); {
		if q := l.queue[i]; q.answer || !isNotification(q.p) {
			i++
			continue
		}
		l.rl.g.metrics.dropped.Inc()
		l.count(-l.queue[i].p.Len())
		l.queue = slices.Delete(l.queue, i, i+1)
		if !l.dropped {
			l.dropped = true
			l.rl.g.cfg.Log.Warn("a shim reads too slowly; notifications for it were dropped", "session", l.session, "client", l.hello.ClientID)
		}
	}
	if total() && len(l.queue) > 0 {
		l.cancel(errStalled)
	}
}

var errStalled = errors.New("the shim reads too slowly, and too much waits for all clients")

func isNotification(p mux.Pieces) bool {
	f, err := wire.Parse(p.AppendTo(nil))
	return err == nil && f.Kind == wire.Notification
}

// write writes what is queued until the line ends, and returns why it did. What was
// there when the shim closed its end is written still.
func (l *line) write() error {
	w := bufio.NewWriter(&chunked{l.conn, l.rl.g.cfg.WriteDeadline})
	for {
		select {
		case <-l.wake:
		case <-l.ctx.Done():
		}
		cause := context.Cause(l.ctx)
		if cause != nil && !inOrder(cause) {
			return cause
		}
		l.mu.Lock()
		items, ending := l.queue, l.ending
		l.queue = nil
		l.count(-l.bytes)
		l.mu.Unlock()
		for _, q := range items {
			for _, part := range q.p {
				_, _ = w.Write(part) // Flush has the error
			}
			_ = w.WriteByte('\n')
		}
		err := w.Flush()
		l.dismiss()
		switch {
		case cause != nil:
			return cause
		case ending:
			err = errClosing
		}
		if err != nil {
			l.cancel(err)
			return err
		}
	}
}

// chunked writes to a connection in pieces, each under a deadline of its own, so that
// a large frame may take as long as it makes progress.
type chunked struct {
	conn     net.Conn
	deadline time.Duration
}

// Write implements io.Writer.
func (c *chunked) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		if err = c.conn.SetWriteDeadline(time.Now().Add(c.deadline)); err == nil {
			var m int
			m, err = c.conn.Write(p[n:min(len(p), n+writeChunk)])
			n += m
		}
	}
	return n, err
}
