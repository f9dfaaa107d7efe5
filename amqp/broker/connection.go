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
	// maxFrameSize is announced.
	maxFrameSize = 128 << 10
	// idleTimeOut is announced: a client that has sent nothing for twice as long is gone, and its messages go to
	// others.
	idleTimeOut = 10 * time.Second
	// writeTimeout is how long a client may take to read what is written at once.
	writeTimeout = 30 * time.Second
	// maxOutput is how much may wait to be written before nothing more is made of it.
	maxOutput = 1 << 20
	// maxPending is how many bytes of messages of a connection may wait to be stored before nothing more is read.
	maxPending = 2 << 20
	// maxPartial is how many bytes of messages in part a connection may have beyond one of the largest, if that is more
	// than maxHeld.
	maxPartial = 16 << 20
	// maxLinks is how many links a connection has at most: each may be a stream of the node's services.
	maxLinks = 480
	// finishLimit is how long what was received may take to be processed when a client ends its connection.
	finishLimit = 30 * time.Second
	// restLimit is how long what a client has sent may take to be read when nothing can be sent to it.
	restLimit = 5 * time.Second
	// maxUnsent is how many bytes of messages of a connection may wait for credit or a window.
	maxUnsent = 1 << 20
)

// conn is one connection of a client.
type conn struct {
	remote  net.Addr
	server  *Server
	raw     net.Conn
	reader  *wire.Reader
	reads   reading
	secured *tls.ConnectionState
	log     *zap.Logger

	// ctx ends with the connection; calls is the context for calls on behalf of the client.
	ctx       context.Context //nolint:containedctx // the connection is what lives as long
	cancel    context.CancelFunc
	as        func(context.Context) context.Context
	calls     context.Context //nolint:containedctx // that of each call begins with it
	queues    pb.QueueServiceClient
	principal string
	refused   *wire.Error // why it may not do anything; nil if it may
	container string      // set if it is the only connection of its container; guarded by Server.mu

	wake    chan struct{} // capacity 1: something is to be written
	running sync.WaitGroup
	tasks   atomic.Int64  // that run
	noTasks chan struct{} // capacity 1: the last of them has ended
	closers sync.WaitGroup

	mu      sync.Mutex // guards all below
	room    *sync.Cond // something was written, or stored, or has ended
	core    *session.Conn
	gathers bool            // frames are applied: those who are roused are told when that is done
	roused  []chan struct{} // those
	pending int             // bytes of messages that are not stored yet
	making  int             // links that are being made
	held    int             // bytes of large messages, as the server counts them
	waits   bool            // nothing is read at present
	ended   bool
	leaving bool      // no further frame is applied; what was received is processed, and then the connection ends
	closing time.Time // when it is cut off, once it is closed from here
	defect  bool      // what it has to say may be wrong: nothing more is said
	mute    bool      // it is closed from here without a word: what was said already is written, and nothing else
	txns    transactions
	nodes   []string // queues that are to go with it
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

// serve is the whole life of a connection.
func (c *conn) serve() {
	defer c.cancel()
	defer func() { _ = c.raw.Close() }() // once more is no harm
	if err := c.begin(); err != nil {
		if !errors.Is(err, errEnded) && !errors.Is(err, io.EOF) {
			c.log.Info("AMQP client rejected", zap.Error(err))
		}
		return
	}
	var leave func()
	c.as, leave = c.server.o.Enter(Client{Address: c.remote, TLS: c.secured})
	defer leave()
	if err := c.greet(); err != nil {
		if !errors.Is(err, errEnded) && !errors.Is(err, io.EOF) && c.ctx.Err() == nil {
			c.log.Info("AMQP client rejected", zap.Error(err))
		}
		return
	}
	c.queues = pb.NewQueueServiceClient(c.server.o.Services)
	core := session.New(session.Options{
		ContainerID: c.server.o.ContainerID, MaxFrameSize: maxFrameSize, IdleTimeOut: idleTimeOut, MaxLinks: maxLinks,
		MaxMessageSize: uint64(c.server.o.MaxMessageBytes) + maxEnvelope,
		MaxUnsent:      maxUnsent + c.server.o.MaxMessageBytes + maxEnvelope, // one that is waited with is always taken
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

// ready lets the connection have its state; false if it is to be closed already.
func (c *conn) ready(core *session.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core = core
	return c.ctx.Err() == nil
}

// contain runs what belongs to the connection. A defect of it costs the connection and not the node: what several
// connections share is changed in sections that cannot fail half way, and what a client was not told of is in doubt for
// it, as when a connection breaks. Whatever locks mu unlocks it by defer, so that the other goroutines of the
// connection can end.
func (c *conn) contain(what func()) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		c.log.Error("AMQP connection closed because of a bug; please report it", zap.Any("panic", p),
			zap.Stack("stack"))
		_ = c.raw.Close() // the reader comes back
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
	what()
}

// run runs a task of the connection. When the connection ends in an orderly way, its tasks end first.
func (c *conn) run(what func()) {
	c.tasks.Add(1)
	c.running.Go(func() {
		defer func() {
			if c.tasks.Add(-1) == 0 {
				poke(c.noTasks)
			}
		}()
		c.contain(what)
	})
}

// processed waits until no task runs. It returns false if that takes longer than limit, or the connection was cut off.
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
	poke(c.noTasks) // for others that wait
	return true
}

// maxEnvelope is how much larger than its body a message may be as it is transferred: sections beside the body have at
// most 64 KiB of properties twice, and annotations.
const maxEnvelope = 256 << 10

// begin makes the reader, behind TLS if there is some.
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

// read applies what comes, until the connection ends.
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

// apply applies a frame, and waits while too much is under way. It reports whether nothing more is to be read.
func (c *conn) apply(f *wire.Frame, err error) (done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.broken(err)
		return true
	}
	if _, closes := f.Body.(*wire.Close); c.mute || c.defect || c.leaving && !closes {
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

// receive applies a frame, and those behind it that were read with it. What that gives others to do they are told at
// the end, once: they would wait for mu, to find a part of it. mu is held.
func (c *conn) receive(f *wire.Frame) error {
	c.gathers = true
	defer c.tell()
	for {
		err := c.core.Receive(f, time.Now())
		c.handleEvents()
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

// busy tells whether so much is under way that nothing more is to be read. mu is held.
func (c *conn) busy() bool {
	return c.pending > maxPending || c.core.Buffered() > 4*maxOutput || c.making > maxMaking
}

// rouse has what waits for a channel look, at once or when all is applied that was read. mu is held.
func (c *conn) rouse(waits chan struct{}) {
	if !c.gathers {
		poke(waits)
		return
	}
	if !slices.Contains(c.roused, waits) {
		c.roused = append(c.roused, waits)
	}
}

// tell rouses what was gathered. mu is held.
func (c *conn) tell() {
	c.gathers = false
	for _, waits := range c.roused {
		poke(waits)
	}
	clear(c.roused)
	c.roused = c.roused[:0]
	if c.core.Waits() {
		c.signal()
	}
}

// poke sends to a channel of capacity 1 unless something is in it.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// broken ends a connection from which nothing can be read any more. mu is held.
func (c *conn) broken(err error) {
	var e *wire.Error
	if errors.As(err, &e) { // the client hears of what it did wrong
		c.leave() // a close ends the links without events
		c.core.Close(e)
		c.log.Info("AMQP connection closed: protocol violation by the client", zap.Error(e))
	} else {
		c.core.Lost(nil)
	}
	c.handleEvents()
}

// write writes what is to be written, and does what is due by time, until the connection ends.
func (c *conn) write() {
	defer func() { _ = c.raw.Close() }() // the reader comes back
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var out []byte
	silent, deaf := false, false
	for {
		var over, mute bool
		var next time.Time
		out, next, mute, over = c.output(out)
		if len(out) > 0 {
			if !deaf {
				err := c.say(out)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					return
				}
				if deaf = err != nil; deaf { // what it has sent before can still be read
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
		if over || mute && !silent && !c.hangUp() {
			return
		}
		silent = mute
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

// hangUp lets the client see the end of what it can read. It is false if there is no way to say so but by closing the
// connection, which may take what was written last from the client.
func (c *conn) hangUp() bool {
	half, ok := c.raw.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// output does what is due by time, and returns what is to be written, when to look again, whether nothing more will be
// written, and whether the connection is over.
func (c *conn) output(spare []byte) (out []byte, next time.Time, mute, over bool) {
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
		c.room.Broadcast() // otherwise those who wait for room, and had the writer look, would have it look again at once
	}
	return out, next, c.mute, over
}

// signal has the writer look.
func (c *conn) signal() { poke(c.wake) }

// finish ends the connection in an orderly way when no further frame comes: all that was received is processed first,
// and then the client's close is answered. If that takes too long, the connection is cut off without an answer.
func (c *conn) finish() {
	c.server.unclaim(c)
	c.locked(c.leave)
	if !c.processed(finishLimit) {
		return
	}
	c.locked(func() {
		c.core.Close(nil)
		c.handleEvents()
	})
}

// locked calls f with mu, which is unlocked if f panics, too.
func (c *conn) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// leave stops applying frames, and has all links end when what they have received is processed. mu is held.
func (c *conn) leave() {
	c.leaving = true
	c.core.Each(func(l *session.Link) {
		if k, ok := l.Data.(link); ok {
			k.finish()
		}
	})
	c.room.Broadcast()
}

// end ends all that the connection does.
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

// shut closes the connection and tells the client why; it is cut off when it does not answer.
func (c *conn) shut(why *wire.Error) { c.contain(func() { c.shutDown(why) }) }

func (c *conn) shutDown(why *wire.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core == nil { // it has shown nothing yet
		c.cancel()
		_ = c.raw.Close() // the reader comes back
		return
	}
	c.shutLocked(why)
}

// shutLocked is shut for a caller that holds mu.
func (c *conn) shutLocked(why *wire.Error) {
	if c.leaving {
		return
	}
	c.leave()
	c.closers.Go(func() { c.contain(func() { c.sendOff(why) }) })
}

// sendOff closes the connection when what was received is processed, or after a moment.
func (c *conn) sendOff(why *wire.Error) {
	c.processed(closeLimit)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = time.Now().Add(closeLimit)
	if peer := c.core.Peer(); peer != nil && (!isAway(why) || understandsAway(peer)) {
		c.core.Close(why)
	} else {
		c.mute = true
	}
	c.cancel() // what is not processed is in doubt for the client, as it is when a connection breaks
	c.room.Broadcast()
	c.signal()
}

// lost closes the connection because this node does not serve any more, or cannot for a while. Clients that can
// connect again do so, and find the node that serves.
func (c *conn) lost(why string) {
	role := c.server.successor()
	if role.Active {
		role.Elsewhere = "" // here, in a moment
	}
	c.shut(sendAway(role, why))
}

// peer is the name of the client's container.
func (c *conn) peer() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.Peer().ContainerID
}

// handleEvents carries out what the client has asked for. mu is held.
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
		case *session.Closed: // finish answers it
			c.leave()
		}
	}
}

// unanswered is the Data of a session: what it has to do before the client's end is answered.
type unanswered struct {
	links int // that are detached, and process what they have received
	ended bool
}

func unansweredOf(s *session.Session) *unanswered {
	u, ok := s.Data.(*unanswered)
	if !ok {
		u = &unanswered{}
		s.Data = u
	}
	return u
}

// detached answers a detach when all that came before it is processed. mu is held.
func (c *conn) detached(l *session.Link, closed, ended bool) {
	k, ok := l.Data.(link)
	if !ok {
		l.Detach(closed, nil)
		return
	}
	wait := k.detached(closed && !ended) // what was ended here, its client may want to find again
	if wait == nil {
		l.Detach(closed, nil)
		return
	}
	u := unansweredOf(l.Session())
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

// sessionEnded answers the end of a session when all that came before it is processed. mu is held.
func (c *conn) sessionEnded(s *session.Session) {
	u := unansweredOf(s)
	u.ended = true
	if u.links == 0 {
		s.End(nil)
	}
}

// link is what a link has as its Data. Its methods are called with the connection's mu.
type link interface {
	// detached is called when no event follows. closed: the client wants nothing of the link to be kept. The client's
	// detach is answered when the function that it returns has returned, which is called without mu; nil: immediately.
	detached(closed bool) (wait func())
	// finish is called when the connection ends: what the link has received is processed, and nothing more is sent.
	finish()
}

// receiver is a link on which the client sends.
type receiver interface {
	link
	deliver(d *session.Delivery)
}

// sender is a link on which messages are sent to the client.
type sender interface {
	link
	credit(e *session.Credit)
	disposed(e *session.Disposed)
}

// portNumber is a port as AMQP has it.
func portNumber(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil && n > 0
}
