// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	maxFrameSize = 128 << 10
	// idleTimeOut is the idle timeout announced to clients: a client that is silent for twice that time is
	// disconnected, and its unsettled messages are redelivered.
	idleTimeOut  = 10 * time.Second
	writeTimeout = 30 * time.Second // timeout of one write
	finishLimit  = 30 * time.Second // maximum time to process received data when a client ends a link or its connection
	restLimit    = 5 * time.Second  // maximum time to read the remaining data of a connection that is not writable

	maxLinks   = 480     // per connection: each link may need a stream to the node
	maxOutput  = 1 << 20 // bytes of output above which no messages are encoded
	maxPending = 2 << 20 // bytes of messages waiting to be stored above which the connection is not read
	maxUnsent  = 1 << 20 // bytes of messages that may wait for credit or a window
	// The limit of incomplete messages is maxHeld, or the maximum size of a message plus maxPartial if that is higher.
	maxPartial = 16 << 20
)

type conn struct {
	remote  net.Addr
	server  *Server
	raw     net.Conn
	reader  *wire.Reader
	reads   reading
	secured *tls.ConnectionState
	log     *zap.Logger

	ctx       context.Context //nolint:containedctx // canceled with the connection
	cancel    context.CancelFunc
	as        func(context.Context) context.Context
	calls     context.Context //nolint:containedctx // for calls on behalf of the client
	home      *pair
	fleet     Forwarder             // nil without a fleet
	queues    pb.QueueServiceClient // for unary calls and browsers; follows NOT_OWNER
	refused   *wire.Error           // reason for denied access, or nil
	container string                // set by a sole connection of its container; guarded by Server.mu

	wake    chan struct{} // capacity 1: wakes the writer
	running sync.WaitGroup
	tasks   atomic.Int64  // number of running tasks
	noTasks chan struct{} // capacity 1: the last task has ended
	closers sync.WaitGroup

	mu          sync.Mutex // guards the fields below
	room        *sync.Cond // output was written, messages were stored, or the connection ended
	core        *session.Conn
	gathering   bool            // frames are being applied: wakeups are deferred
	wakePending []chan struct{} // deferred wakeups
	pending     int             // bytes of messages not yet stored
	creating    int             // links in creation
	held        int             // bytes of large messages, as counted by the server
	waits       bool            // the connection is not being read
	silent      []*consumer     // consumers with messages that expired since the client's last frame
	ended       bool
	leaving     bool      // no frames are applied; the connection ends when received data is processed
	closing     time.Time // time of termination, after a close by the node
	defect      bool      // after a panic: output may be wrong and is not written
	silenced    bool      // the connection ends without a close; only earlier output is written
	txns        transactions
	nodes       []string // queues to be deleted with the connection
}

func newConn(s *Server, raw net.Conn) *conn {
	c := &conn{
		server: s, raw: raw, remote: raw.RemoteAddr(), wake: make(chan struct{}, 1), noTasks: make(chan struct{}, 1),
	}
	c.log = s.o.Logger.With(zap.Stringer("from", raw.RemoteAddr()))
	c.room = sync.NewCond(&c.mu)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

func (c *conn) serve() {
	defer c.cancel()
	defer func() { _ = c.raw.Close() }() // closing it twice is harmless
	if err := c.begin(); err != nil {
		if !errors.Is(err, errEnded) && !errors.Is(err, io.EOF) {
			c.log.Info("AMQP client rejected", zap.Error(err))
		}
		return
	}
	var leave func()
	c.as, leave = c.server.o.Enter(Client{Address: c.remote, TLS: c.secured})
	defer leave()
	if err := c.handshake(); err != nil {
		if !errors.Is(err, errEnded) && !errors.Is(err, io.EOF) && c.ctx.Err() == nil {
			c.log.Info("AMQP client rejected", zap.Error(err))
		}
		return
	}
	c.connectPairs()
	defer c.closePairs()
	core := session.New(session.Options{
		ContainerID: c.server.o.ContainerID, MaxFrameSize: maxFrameSize, IdleTimeOut: idleTimeOut, MaxLinks: maxLinks,
		MaxMessageSize: uint64(c.server.o.MaxMessageBytes) + maxEnvelope,
		MaxUnsent:      maxUnsent + c.server.o.MaxMessageBytes + maxEnvelope, // accepts one more message while waiting
		MaxPartial:     max(maxHeld, c.server.o.MaxMessageBytes+maxPartial),
	}, time.Now())
	if !c.ready(core) {
		return
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.contain(c.write)
	}()
	c.contain(c.read)
	c.contain(c.finish)
	c.contain(c.end)
	<-written
	c.closers.Wait()
	c.running.Wait()
	c.deleteNodes()
}

// ready sets core. It returns false if the connection was already terminated.
func (c *conn) ready(core *session.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core = core
	return c.ctx.Err() == nil
}

// contain runs a function and recovers from panics: a bug terminates the connection, not the node. Code that locks mu
// must unlock it with defer, so that the other goroutines can end.
func (c *conn) contain(f func()) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		c.log.Error("AMQP connection closed because of a bug; please report it", zap.Any("panic", p),
			zap.Stack("stack"))
		_ = c.raw.Close() // unblocks the reader
		c.cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.defect {
			c.defect = true
			c.server.defects.Add(1)
		}
		c.ended = true
		c.room.Broadcast()
		c.signal()
	}()
	f()
}

func (c *conn) run(task func()) {
	c.tasks.Add(1)
	c.running.Go(func() {
		defer func() {
			if c.tasks.Add(-1) == 0 {
				poke(c.noTasks)
			}
		}()
		c.contain(task)
	})
}

// processed waits until no task runs. It returns false after the limit, or if the connection was terminated.
func (c *conn) processed(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for c.tasks.Load() > 0 {
		select {
		case <-c.noTasks:
		case <-timer.C:
			return false
		case <-c.ctx.Done():
			return false
		}
	}
	poke(c.noTasks) // for other waiters
	return true
}

// maxEnvelope is the maximum size of an encoded message without its body: two sections of 64 KiB, and annotations.
const maxEnvelope = 256 << 10

func (c *conn) begin() error {
	c.reads.from = c.raw
	from := io.Reader(&c.reads)
	if c.server.o.TLS != nil {
		secured := tls.Server(&belowTLS{Conn: c.raw, reads: &c.reads}, c.server.o.TLS)
		if err := secured.HandshakeContext(c.ctx); err != nil {
			return errors.Join(errEnded, err)
		}
		state := secured.ConnectionState()
		c.raw, c.secured, from = secured, &state, secured
	}
	c.reader = wire.NewReader(&applying{from: from, reading: &c.reads}, maxFrameSize)
	return nil
}

func (c *conn) read() {
	var f wire.Frame
	for {
		err := c.reader.Next(&f)
		if c.apply(&f, err) {
			return
		}
		c.waitForRoom()
	}
}

func (c *conn) apply(f *wire.Frame, err error) (done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.broken(err)
		return true
	}
	if _, closes := f.Body.(*wire.Close); c.silenced || c.defect || c.leaving && !closes {
		return c.ended
	}
	err = c.receive(f)
	done = err != nil || c.core.PeerClosed()
	c.count()
	c.waits = true
	for !done && !c.ended && !c.leaving && c.busy() {
		c.room.Wait()
	}
	c.waits = false
	return done || c.ended
}

// receive applies a frame and the frames buffered after it. Wakeups are deferred, because woken goroutines would
// wait for mu, which is held.
func (c *conn) receive(f *wire.Frame) error {
	c.gathering = true
	defer c.notify()
	for {
		err := c.core.Receive(f, time.Now())
		c.handleEvents()
		if c.silent != nil {
			c.resume()
		}
		if err != nil || c.core.PeerClosed() || c.leaving || c.ended || c.busy() || c.held != c.core.Partial() ||
			!c.reader.Whole() {
			return err
		}
		if err := c.reader.Next(f); err != nil {
			c.broken(err)
			return err
		}
	}
}

// busy reports whether reading must pause. mu is held.
func (c *conn) busy() bool {
	return c.pending > maxPending || c.core.Buffered() > 4*maxOutput || c.creating > maxCreating
}

// wakeUp wakes the receiver of a channel. While buffered frames are being applied, it defers the wakeup. mu is held.
func (c *conn) wakeUp(waits chan struct{}) {
	if !c.gathering {
		poke(waits)
		return
	}
	if !slices.Contains(c.wakePending, waits) {
		c.wakePending = append(c.wakePending, waits)
	}
}

// notify sends the deferred wakeups. mu is held.
func (c *conn) notify() {
	c.gathering = false
	for _, waits := range c.wakePending {
		poke(waits)
	}
	clear(c.wakePending)
	c.wakePending = c.wakePending[:0]
	if c.core.Waits() {
		c.signal()
	}
}

// poke sends to a channel of capacity 1 without blocking.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// broken ends the connection after a read error or a protocol violation. mu is held.
func (c *conn) broken(err error) {
	if e, ok := errors.AsType[*wire.Error](err); ok { // a protocol violation
		c.leave() // Close ends the links without events
		c.core.Close(e)
		c.log.Info("AMQP connection closed: protocol violation by the client", zap.Error(e))
	} else {
		c.core.Lost(nil)
	}
	c.handleEvents()
}

func (c *conn) write() {
	defer func() { _ = c.raw.Close() }() // unblocks the reader
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var out []byte
	silent, silentPeer := false, false
	for {
		var over, silenced bool
		var next time.Time
		out, next, silenced, over = c.output(out)
		if len(out) > 0 {
			if !silentPeer {
				err := c.writeRaw(out)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					return
				}
				if silentPeer = err != nil; silentPeer { // data sent earlier by the client is still readable
					_ = c.raw.SetReadDeadline(time.Now().Add(restLimit))
				}
			}
			if cap(out) > 4*maxOutput {
				out = nil
			}
			if !over {
				continue
			}
		}
		if over || silenced && !silent && !c.hangUp() {
			return
		}
		silent = silenced
		if next.IsZero() {
			next = time.Now().Add(time.Hour)
		}
		timer.Reset(time.Until(next))
		select {
		case <-c.wake:
		case <-timer.C:
		}
	}
}

// hangUp closes only the write side, because closing the connection could discard the last output. It returns false if
// this is not possible.
func (c *conn) hangUp() bool {
	half, ok := c.raw.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// output handles expired timers and pending events. It returns the data to write and the time of the next timer. If
// silenced is set, no output follows; if over is set, the connection ends when out is written.
func (c *conn) output(spare []byte) (out []byte, next time.Time, silenced, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.defect {
		return nil, time.Time{}, false, true
	}
	now := time.Now()
	if c.waits {
		c.core.Unread(now)
	}
	next, err := c.core.Tick(now)
	c.handleEvents()
	out = c.core.Output(spare)
	over = c.ended || err != nil || !c.closing.IsZero() && !now.Before(c.closing)
	if !c.closing.IsZero() && (next.IsZero() || c.closing.Before(next)) {
		next = c.closing
	}
	if len(out) > 0 || over {
		c.room.Broadcast() // only with output: waiters also wake the writer, which would loop
	}
	return out, next, c.silenced, over
}

func (c *conn) signal() { poke(c.wake) }

// finish ends the connection when all received data is processed. After a timeout, it ends without a response to the
// close.
func (c *conn) finish() {
	c.server.release(c)
	c.locked(c.leave)
	if !c.processed(finishLimit) {
		return
	}
	c.locked(func() {
		c.core.Close(nil)
		c.handleEvents()
	})
}

// locked calls f with mu held, and unlocks it even if f panics.
func (c *conn) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// leave stops applying frames, and ends all links when their received data is processed. mu is held.
func (c *conn) leave() {
	c.leaving = true
	c.core.Each(func(l *session.Link) {
		if k, ok := l.Data.(link); ok {
			k.finish()
		}
	})
	c.room.Broadcast()
}

func (c *conn) end() {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.server.held.change(c, 0, false)
	c.held = 0
	defer c.signal()
	defer c.room.Broadcast()
	c.core.Lost(nil)
	c.handleEvents()
}

// shut closes the connection with an error, and terminates it if the client does not respond.
func (c *conn) shut(reason *wire.Error) { c.contain(func() { c.shutDown(reason) }) }

func (c *conn) shutDown(reason *wire.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core == nil { // not authenticated yet
		c.cancel()
		_ = c.raw.Close() // unblocks the reader
		return
	}
	c.shutLocked(reason)
}

// shutLocked is like shut; mu is held.
func (c *conn) shutLocked(reason *wire.Error) {
	if c.leaving {
		return
	}
	c.leave()
	c.closers.Go(func() { c.contain(func() { c.sendOff(reason) }) })
}

// sendOff closes the connection when received data is processed, or after a timeout.
func (c *conn) sendOff(reason *wire.Error) {
	c.processed(closeLimit)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = time.Now().Add(closeLimit)
	if peer := c.core.Peer(); peer != nil && (!isRedirect(reason) || understandsRedirect(peer)) {
		c.core.Close(reason)
	} else {
		c.silenced = true
	}
	c.cancel() // the outcome of unprocessed data is unknown to the client
	c.room.Broadcast()
	c.signal()
}

// lost closes the connection, with a redirect if the address of the new active node becomes known within closeLimit.
func (c *conn) lost(reason string) {
	role := c.server.successor()
	if role.Active {
		role.ActiveAddress = "" // this node is about to become active
	}
	c.shut(redirectError(role, reason))
}

func (c *conn) peer() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.Peer().ContainerID
}

// handleEvents handles the events of the session layer. mu is held.
func (c *conn) handleEvents() {
	for {
		e, ok := c.core.Next()
		if !ok {
			return
		}
		switch e := e.(type) {
		case *session.Opened:
			c.opened(e.Open)
		case *session.Attached:
			c.attached(e.Link)
		case *session.Delivery:
			if r, ok := e.Link.Data.(receiver); ok {
				r.deliver(e)
			}
		case *session.Credit:
			if s, ok := e.Link.Data.(sender); ok {
				s.credit(e)
			}
		case *session.Disposed:
			if s, ok := e.Link.Data.(sender); ok {
				s.disposed(e)
			}
		case *session.Detached:
			c.detached(e.Link, e.Closed, e.Ended)
		case *session.Ended:
			c.txns.end(e.Session)
			c.sessionEnded(e.Session)
		case *session.Closed: // finish responds to the event
			c.leave()
		}
	}
}

type unfinished struct { // value of Session.Data
	links int // detached links with unprocessed data
	ended bool
}

func unfinishedOf(s *session.Session) *unfinished {
	u, ok := s.Data.(*unfinished)
	if !ok {
		u = &unfinished{}
		s.Data = u
	}
	return u
}

// detached answers a detach when all earlier data is processed. mu is held.
func (c *conn) detached(l *session.Link, closed, ended bool) {
	k, ok := l.Data.(link)
	if !ok {
		l.Detach(closed, nil)
		return
	}
	wait := k.detached(closed && !ended) // a client may recover a link that was ended with its session
	if wait == nil {
		l.Detach(closed, nil)
		return
	}
	u := unfinishedOf(l.Session())
	u.links++
	c.run(func() {
		wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		l.Detach(closed, nil)
		if u.links--; u.links == 0 && u.ended {
			l.Session().End(nil)
		}
		c.handleEvents()
		c.signal()
	})
}

// sessionEnded answers the end of a session when all earlier data is processed. mu is held.
func (c *conn) sessionEnded(s *session.Session) {
	u := unfinishedOf(s)
	u.ended = true
	if u.links == 0 {
		s.End(nil)
	}
}

// link is the Data of a session.Link. Its methods are called with mu held.
type link interface {
	// detached is called after the last event of the link. closed means that the client discards the state of the link.
	// If wait is nil, the detach is answered immediately. Otherwise, wait is called without mu, and the detach is
	// answered after it has returned.
	detached(closed bool) (wait func())
	// finish is called when the connection ends: received data is processed, and no further messages are sent to the
	// client.
	finish()
}

type receiver interface {
	link
	deliver(d *session.Delivery)
}

type sender interface {
	link
	credit(e *session.Credit)
	disposed(e *session.Disposed)
}

func portNumber(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil && n > 0
}
