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
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
)

const (
	// The batches of all Browse calls may use limits.pending-bytes divided by browseFraction, or minBrowseBytes if that
	// is more. One connection may use half of this memory.
	browseFraction = 4
	minBrowseBytes = 4 << 20
	// browseCopies is the maximum number of batches in memory for each call.
	browseCopies = 3
	// queuedBytes is the amount of data that gRPC buffers for a stream before Send blocks.
	queuedBytes = 64 << 10
	// browseTimeout limits each wait of a call for memory. It also limits the time for which a connection may occupy
	// memory without reading while other calls wait.
	browseTimeout = 5 * time.Second
)

// browsing limits the memory of all Browse calls. It is safe for concurrent use.
type browsing struct {
	limit int64
	all   *semaphore.Weighted
	held  atomic.Int64 // bytes reserved by all calls

	mu    sync.Mutex // guards conns, and the uses field of its values
	conns map[*admission.Conn]*browsingConn
}

type browsingConn struct {
	uses int
	room *semaphore.Weighted
	held atomic.Int64
	read atomic.Int64 // time of the client's last read, in Unix nanoseconds
}

func newBrowsing(pendingBytes int64) *browsing {
	limit := max(pendingBytes/browseFraction, minBrowseBytes)
	return &browsing{
		limit: limit, all: semaphore.NewWeighted(limit), conns: make(map[*admission.Conn]*browsingConn),
	}
}

// browser is a Browse call. It reserves memory for one batch at a time.
type browser struct {
	of    *browsing
	conn  *admission.Conn
	own   *browsingConn // nil if the call has no connection
	held  int64
	large bool // gRPC may buffer more than queuedBytes of the last batch
	sent  bool // a batch was sent
}

// begin registers a call. The caller must call end.
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

// reserve reserves memory for the next batch before the batch is read. It returns the maximum size of the batch,
// which is smaller if other calls use more than half of the limit. If it cannot reserve the memory in time, it
// returns apierror.ErrTooManyBrowsers.
func (c *browser) reserve(ctx context.Context) (batchBytes int, err error) {
	batchBytes = session.DeliveryBatchBytes
	if c.of.held.Load()-c.held > c.of.limit/2 {
		batchBytes = queuedBytes
	}
	return batchBytes, c.hold(ctx, browseCopies*int64(batchBytes))
}

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

func acquire(ctx context.Context, room *semaphore.Weighted, bytes int64) error {
	waiting, cancel := context.WithTimeout(ctx, browseTimeout)
	defer cancel()
	return room.Acquire(waiting, bytes) //nolint:wrapcheck // it fails only when waiting has ended
}

// closeOne closes the connection with the largest reservation among the connections that have not read recently.
// It returns false if no connection qualifies.
func (b *browsing) closeOne() bool {
	var most *admission.Conn
	var held int64
	before := time.Now().Add(-browseTimeout).UnixNano()
	b.mu.Lock()
	for conn, own := range b.conns {
		if n := own.held.Load(); n > held && own.read.Load() < before {
			most, held = conn, n
		}
	}
	b.mu.Unlock()
	if most != nil {
		most.CloseForMemory()
	}
	return most != nil
}

// fit adjusts the reservation to the size of the batch that was read. The batch is smaller than reserved, or larger
// if it is a single large message.
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

// waitReceived waits until the client has received nearly all sent data. After that, the memory can be released. To
// wait, it sends an empty message, which blocks until the data is received.
func (c *browser) waitReceived(stream grpc.ServerStreamingServer[pb.BrowseResponse]) error {
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

func (c *browser) refusal(ctx context.Context, location string, limit int64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("browse: %w", err)
	}
	return fmt.Errorf("%w: browsers of %s have reached the limit of %d unread bytes; read from or cancel "+
		"them, or raise limits.pending-bytes", apierror.ErrTooManyBrowsers, location, limit)
}
