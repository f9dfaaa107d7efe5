// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/admission"
	"github.com/lockstep-mq/lockstep/server/serving"
	"github.com/lockstep-mq/lockstep/server/wire"
)

const (
	// browseShare is the part of limits.pending-bytes that batches on their way to browsers may take, and minBrowseBytes
	// the least it is. A connection may have half of it.
	browseShare    = 4
	minBrowseBytes = 4 << 20
	// browseCopies is how often a batch is in memory at most: as it was read, as it is sent, and the one before it, which
	// gRPC holds until the client takes it.
	browseCopies = 3
	// queuedBytes is how much of what a stream has sent gRPC holds before Send waits for the client.
	queuedBytes = 64 << 10
	// browsePatience is how long a browser waits for room, and how long a connection may hold some without reading
	// while others wait.
	browsePatience = 5 * time.Second
)

// browsing bounds the memory of all Browse calls: a client that reads nothing keeps its batch in memory for as long as
// it likes, and may have thousands of calls. It is safe for concurrent use.
type browsing struct {
	limit int64
	all   *semaphore.Weighted
	held  atomic.Int64 // of all

	mu    sync.Mutex // guards conns, and uses of each
	conns map[*admission.Conn]*browsingConn
}

// browsingConn is what the calls of one connection share.
type browsingConn struct {
	uses int
	room *semaphore.Weighted
	held atomic.Int64
	read atomic.Int64 // when its client has read something last, in Unix nanoseconds
}

func newBrowsing(pendingBytes int64) *browsing {
	limit := max(pendingBytes/browseShare, minBrowseBytes)
	return &browsing{
		limit: limit, all: semaphore.NewWeighted(limit), conns: make(map[*admission.Conn]*browsingConn),
	}
}

// browser is one call. It holds room for one batch at a time.
type browser struct {
	of   *browsing
	conn *admission.Conn
	own  *browsingConn // nil for a call that came by no connection
	held int64
	// large: gRPC may hold more than queuedBytes of the last batch.
	large bool
	// sent: a batch was, of which the client has taken nearly all before the next one is read.
	sent bool
}

// begin notes a call; end must be called.
func (b *browsing) begin(conn *admission.Conn) *browser {
	c := &browser{of: b, conn: conn}
	if conn == nil {
		return c
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c.own = b.conns[conn]
	if c.own == nil {
		c.own = &browsingConn{room: semaphore.NewWeighted(b.limit / 2)}
		c.own.read.Store(time.Now().UnixNano())
		b.conns[conn] = c.own
	}
	c.own.uses++
	return c
}

// end gives everything back.
func (c *browser) end() {
	c.release(c.held)
	if c.own == nil {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.own.uses--; c.own.uses == 0 {
		delete(c.of.conns, c.conn)
	}
}

// reserve takes room for the next batch, before it is read, and tells how large that may be: small, when others have
// much. It waits for other calls for a while; the error is wire.ErrTooManyBrowsers then.
func (c *browser) reserve(ctx context.Context) (batchBytes int, err error) {
	batchBytes = serving.DeliveryBatchBytes
	if c.of.held.Load()-c.held > c.of.limit/2 {
		batchBytes = queuedBytes
	}
	return batchBytes, c.hold(ctx, browseCopies*int64(batchBytes))
}

// hold has the call hold so much, as far as its connection may have it at all.
func (c *browser) hold(ctx context.Context, bytes int64) error {
	if c.sent && c.own != nil {
		c.own.read.Store(time.Now().UnixNano())
	}
	c.sent = false
	c.release(c.held)
	bytes = min(bytes, c.of.limit/2)
	if c.own != nil {
		if err := acquire(ctx, c.own.room, bytes); err != nil {
			return c.refusal(ctx, "this connection", c.of.limit/2)
		}
	}
	err := acquire(ctx, c.of.all, bytes)
	if err != nil && ctx.Err() == nil && c.of.closeOne() {
		err = acquire(ctx, c.of.all, bytes)
	}
	if err != nil {
		if c.own != nil {
			c.own.room.Release(bytes)
		}
		return c.refusal(ctx, "this node", c.of.limit)
	}
	c.held = bytes
	c.of.held.Add(bytes)
	if c.own != nil {
		c.own.held.Add(bytes)
	}
	return nil
}

// acquire waits for room for a while.
func acquire(ctx context.Context, room *semaphore.Weighted, bytes int64) error {
	waiting, cancel := context.WithTimeout(ctx, browsePatience)
	defer cancel()
	return room.Acquire(waiting, bytes) //nolint:wrapcheck // its only error says that it was not acquired
}

// closeOne closes the connection that holds most of those whose clients have read nothing for a while; false if there
// is none.
func (b *browsing) closeOne() bool {
	var most *admission.Conn
	var held int64
	before := time.Now().Add(-browsePatience).UnixNano()
	b.mu.Lock()
	for conn, own := range b.conns {
		if n := own.held.Load(); n > held && own.read.Load() < before {
			most, held = conn, n
		}
	}
	b.mu.Unlock()
	if most != nil {
		most.Hoards()
	}
	return most != nil
}

// fit has the call hold what a batch takes that was read: less than was reserved, or more for a single large message.
func (c *browser) fit(ctx context.Context, batchBytes int64) error {
	bytes := min(browseCopies*batchBytes, c.of.limit/2)
	c.large = batchBytes > queuedBytes
	defer func() { c.sent = true }()
	if bytes > c.held {
		return c.hold(ctx, bytes)
	}
	c.release(c.held - bytes)
	return nil
}

// taken waits until the client has taken nearly all that was sent, before the room for it is given back: the next
// message after a large one, here an empty one, waits for that.
func (c *browser) taken(stream grpc.ServerStreamingServer[pb.BrowseResponse]) error {
	if !c.large {
		return nil
	}
	if err := stream.Send(&pb.BrowseResponse{}); err != nil {
		return fmt.Errorf("browse: %w", err)
	}
	return nil
}

func (c *browser) release(bytes int64) {
	if bytes == 0 {
		return
	}
	c.of.all.Release(bytes)
	c.of.held.Add(-bytes)
	if c.own != nil {
		c.own.room.Release(bytes)
		c.own.held.Add(-bytes)
	}
	c.held -= bytes
}

func (c *browser) refusal(ctx context.Context, where string, limit int64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("browse: %w", err)
	}
	return fmt.Errorf("%w: those of %s hold %d bytes that their clients do not read, which is the limit; read or cancel "+
		"them, or raise limits.pending-bytes", wire.ErrTooManyBrowsers, where, limit)
}
