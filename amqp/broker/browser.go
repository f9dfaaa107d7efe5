// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/amqp/convert"
	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// browser is a link that receives messages without consuming them.
type browser struct {
	c      *conn
	link   *session.Link
	queue  string
	filter string          // empty: all messages
	ctx    context.Context //nolint:containedctx // context of the Browse call
	cancel context.CancelFunc

	// guarded by conn.mu
	credits uint32
	drains  bool
	over    bool // all available messages were sent
	gone    bool
}

func (c *conn) attachBrowser(
	ctx context.Context, l *session.Link, queue string, source *wire.Source, f *filters,
) (accept func(), err error) {
	b := &browser{c: c, link: l, queue: queue, filter: f.cel}
	if _, err := c.ensureQueue(ctx, queue, false); err != nil {
		return nil, err
	}
	b.ctx, b.cancel = context.WithCancel(c.calls)
	return func() {
		l.Data = b
		if l.Accept(session.Reply{Source: source, Target: l.Peer().Target}) {
			c.run(b.run)
		} else {
			b.cancel()
		}
	}, nil
}

func (b *browser) run() {
	defer b.cancel()
	err := b.browse()
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.gone || c.ended {
		return
	}
	if err != nil {
		b.gone = true
		b.link.Detach(true, refusal(err))
	} else {
		b.over = true
		if b.drains {
			b.link.Drained()
		}
	}
	c.handleEvents()
	c.signal()
}

// browse sends the messages of the queue within the client's credit, and ignores their outcomes. It skips corrupt
// messages and returns an error for them at the end.
func (b *browser) browse() error {
	b.c.catchUp(b.queue)
	limit := b.c.server.o.MaxMessageBytes + 2*maxEnvelope
	req := &pb.BrowseRequest{Queue: b.queue, MaxResponseBytes: uint32(limit), Filter: b.filter}
	stream, err := b.c.queues.Browse(b.ctx, req, grpc.MaxCallRecvMsgSize(limit))
	if err != nil {
		return err
	}
	var buffer []byte
	corrupt := 0
	last := time.Now() // time of the last progress
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if b.filter == "" || req.GetFromSequence() >= req.GetBeforeSequence() {
				return corruptMessages(corrupt)
			}
			// the node ended the stream at a limit of one call
			if stream, err = b.c.queues.Browse(b.ctx, req, grpc.MaxCallRecvMsgSize(limit)); err != nil {
				return err
			}
			continue
		}
		if err != nil && b.follows(err, last) {
			if stream, err = b.c.queues.Browse(b.ctx, req, grpc.MaxCallRecvMsgSize(limit)); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		last = time.Now()
		if p := resp.GetProgress(); p != nil {
			req.FromSequence, req.BeforeSequence = p.GetFromSequence(), p.GetBeforeSequence()
		}
		corrupt += len(resp.GetDamaged())
		for _, m := range resp.GetMessages() {
			buffer = convert.Append(buffer[:0], m, time.Now())
			if !b.send(m.GetSequence(), buffer) {
				return nil
			}
			req.FromSequence = max(req.GetFromSequence(), m.GetSequence()+1)
		}
	}
}

// follows reports whether the browser continues after an error, because the queue has moved to another pair, or its
// pair had a failover. It waits before it returns true.
func (b *browser) follows(err error, last time.Time) bool {
	f := failed(err)
	return b.c.fleet != nil && (f.owner != nil || f.again()) && time.Since(last) < callLimit && rest(b.ctx, longestPause)
}

func corruptMessages(n int) error {
	if n == 0 {
		return nil
	}
	return &failure{
		code: codes.DataLoss, reason: "DATA_LOSS", text: fmt.Sprintf("%d corrupt messages were not sent", n),
	}
}

// send waits until the client has credit, and sends a message. It returns false if the link is closed.
func (b *browser) send(sequence uint64, payload []byte) bool {
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for !b.gone && !c.ended && (b.credits == 0 || c.core.Buffered() > maxOutput || c.core.Unsent() > maxUnsent) {
		c.signal()
		c.room.Wait()
	}
	if b.gone || c.ended {
		return false
	}
	b.credits--
	if b.link.Send(&session.Message{Ref: sequence, Payload: payload}) != nil {
		return false
	}
	c.handleEvents()
	c.signal()
	return true
}

func (b *browser) credit(e *session.Credit) {
	b.credits, b.drains = e.Credit, e.Drain
	if b.drains && b.over {
		b.link.Drained()
	}
	b.c.room.Broadcast()
}

// disposed settles the deliveries; outcomes have no effect. mu is held.
func (b *browser) disposed(e *session.Disposed) {
	if e.Settled || e.State == nil {
		return
	}
	for i := range e.Refs {
		b.link.Settle(e.First+uint32(i), e.State)
	}
}

func (b *browser) detached(bool) (wait func()) {
	b.finish()
	return nil
}

func (b *browser) finish() {
	b.gone = true
	b.cancel()
	b.c.room.Broadcast()
}
