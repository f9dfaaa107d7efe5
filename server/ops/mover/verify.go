// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// The source returns the live sequences of a part of a queue and the digest of their messages. The target reads the
// same messages from its store. After the fence, it compares only the remaining messages and the state.

// digestBytes is the approximate size of the messages in one request for a digest.
const digestBytes = 8 << 20

// MessageDigests returns the digest of a part of a queue.
func (m *Manager) MessageDigests(
	ctx context.Context, req *pb.DigestMessagesRequest,
) (*pb.DigestMessagesResponse, error) {
	if _, _, err := m.active(); err != nil {
		return nil, err
	}
	d, err := m.o.Store.DigestMessages(ctx, store.DigestRequest{
		Queue: req.GetQueueId(), From: req.GetFrom(), To: req.GetTo(), MaxBytes: digestBytes, Urgent: req.GetUrgent(),
	})
	if errors.Is(err, store.ErrNoQueue) {
		return nil, fmt.Errorf("%w: queue %d", txn.ErrQueueNotFound, req.GetQueueId())
	}
	if err != nil {
		return nil, fmt.Errorf("digest of messages: %w", err)
	}
	return &pb.DigestMessagesResponse{Lengths: d.Lengths, Sha256: d.SHA256[:], Next: d.Next}, nil
}

// Prepare writes a checkpoint if one of the queues that will be fenced has many message IDs that are not in the page
// file yet.
func (m *Manager) Prepare(ctx context.Context, req *pb.PrepareFenceRequest) (*pb.PrepareFenceResponse, error) {
	if _, _, err := m.active(); err != nil {
		return nil, err
	}
	for _, id := range req.GetQueueIds() {
		written, err := m.o.Store.WriteIDs(ctx, id)
		if errors.Is(err, store.ErrNoQueue) {
			return nil, fmt.Errorf("%w: queue %d", txn.ErrQueueNotFound, id)
		}
		if err != nil {
			return nil, fmt.Errorf("prepare the fence: %w", err)
		}
		if written { // a checkpoint contains all queues
			return &pb.PrepareFenceResponse{Written: true}, nil
		}
	}
	return &pb.PrepareFenceResponse{}, nil
}

// prepare requests the source to prepare the fence (Manager.Prepare). It reports whether the source has written a
// checkpoint.
func (t *transfer) prepare(ctx context.Context) (written bool, _ error) {
	logged, err := t.logged()
	if err != nil {
		return false, err
	}
	req := &pb.PrepareFenceRequest{Epoch: t.move.Epoch}
	for _, q := range logged.Queues {
		req.QueueIds = append(req.QueueIds, q.Source)
	}
	resp, err := t.source.PrepareFence(ctx, req)
	if err != nil {
		return false, fmt.Errorf("prepare the fence: %w", fromStatus(err))
	}
	return resp.GetWritten(), nil
}

// copyPass pulls the messages that were published until now, and verifies all imported messages that are not verified
// yet.
func (t *transfer) copyPass(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	pulled := make(chan struct{})
	g.Go(func() error {
		defer close(pulled)
		return t.pullAll(ctx)
	})
	g.Go(func() error {
		for last := false; !last; {
			select {
			case <-pulled:
				last = true
			case <-t.imported:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := t.verifyAll(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

var errDiffer = errors.New("copy of the queue differs from the source")

// verifyAll verifies, in all queues, the imported messages that are not verified yet.
func (t *transfer) verifyAll(ctx context.Context) error {
	logged, err := t.logged()
	if err != nil {
		return err
	}
	for _, q := range logged.Queues {
		if err := t.verify(ctx, q); err != nil {
			return fmt.Errorf("compare messages of %q: %w", q.Name, err)
		}
	}
	return nil
}

// verify verifies the messages of one queue. The source computes a digest while this pair computes the previous one.
func (t *transfer) verify(ctx context.Context, q queue.MovedQueue) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		from uint64
		resp *pb.DigestMessagesResponse
		err  error
	}
	answers := make(chan answer, 1)
	request := func(from uint64) {
		resp, err := t.source.DigestMessages(ctx, &pb.DigestMessagesRequest{
			Epoch: t.move.Epoch, QueueId: q.Source, From: from, To: q.Next, Urgent: t.urgent,
		})
		answers <- answer{from, resp, fromStatus(err)}
	}
	next := max(t.verified[q.ID], 1)
	if next >= q.Next {
		return nil
	}
	go request(next)
	for next < q.Next {
		a := <-answers // ends with the context
		if a.err != nil {
			return a.err
		}
		if next = a.resp.GetNext(); next <= a.from || next > q.Next {
			return fmt.Errorf("%w: digest of the sequences from %d to %d", txn.ErrMalformed, a.from, next)
		}
		if next < q.Next {
			go request(next)
		}
		if err := t.verifyPart(ctx, q, a.from, a.resp); err != nil {
			return err
		}
		t.verified[q.ID] = next
	}
	return nil
}

func (t *transfer) verifyPart(
	ctx context.Context, q queue.MovedQueue, from uint64, theirs *pb.DigestMessagesResponse,
) error {
	lengths, end := theirs.GetLengths(), from
	for _, n := range lengths {
		if n > theirs.GetNext()-end {
			return fmt.Errorf("%w: digest with %d lengths, from %d to %d", txn.ErrMalformed, len(lengths), from,
				theirs.GetNext())
		}
		end += n
	}
	if len(lengths) < 2 {
		return nil // no live messages
	}
	ours, err := t.m.o.Store.DigestMessages(ctx, store.DigestRequest{
		Queue: q.ID, From: from, To: theirs.GetNext(), Only: lengths, Urgent: t.urgent,
	})
	switch {
	case errors.Is(err, store.ErrMissing):
		return fmt.Errorf("%w: %w", errDiffer, err)
	case errors.Is(err, store.ErrNoQueue):
		return txn.ErrMoveChanged
	case err != nil:
		return fmt.Errorf("read the copy: %w", err)
	case !bytes.Equal(ours.SHA256[:], theirs.GetSha256()):
		return fmt.Errorf("%w: messages from %d to %d", errDiffer, from, theirs.GetNext()-1)
	}
	return nil
}
