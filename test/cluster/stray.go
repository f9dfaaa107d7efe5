// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// strayDeadline of one publish to one node.
const strayDeadline = 300 * time.Millisecond

// strays publish to each node directly, whatever its role, with the bare stub: as a client does that does not know of a
// failover, and whose network is another one than that of the nodes. A node that acknowledges one while the other one
// acts is found by it.
type strays struct {
	w       *Workload
	queue   string
	stop    context.CancelFunc
	running sync.WaitGroup
}

func (w *Workload) startStrays(ctx context.Context) (*strays, error) {
	s := &strays{w: w, queue: w.opts.Prefix + "stray"}
	if _, _, err := w.client.CreateQueue(ctx, s.queue,
		client.CreateQueueOptions{Subscriptions: []string{SubAudit}}); err != nil {
		return nil, fmt.Errorf("strays: %w", err)
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	for i, address := range w.pair.Addresses() {
		one := stray{strays: s, id: firstStray + uint32(i), producer: uuid.NewString(), address: address}
		s.running.Go(func() { one.run(ctx) })
	}
	return s, nil
}

// end has each of them wait for its last answer.
func (s *strays) end() {
	s.stop()
	s.running.Wait()
}

// stray publishes to one node.
type stray struct {
	*strays
	id       uint32
	producer string
	address  string
}

// run publishes until ctx ends.
func (s *stray) run(ctx context.Context) {
	every := time.Second / time.Duration(s.w.opts.StraysPerSecond)
	for n := uint64(1); ctx.Err() == nil; n++ {
		id := historycheck.ID{Producer: s.id, N: n}
		p := historycheck.Publish{ID: id, Queue: s.queue, Address: s.address, Unordered: true}
		before := s.term(ctx)
		s.publish(ctx, &p)
		if after := s.term(ctx); before == after {
			p.Term = before // of the answer as well
		}
		s.record(p)
		wait(ctx, every)
	}
}

// term asks a node in which term of the pair it is; 0 when it does not answer.
func (s *stray) term(ctx context.Context) uint64 {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), strayDeadline)
	defer cancel()
	st, err := pb.NewAdminServiceClient(s.w.pair.ConnTo(s.address)).GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return 0
	}
	return st.GetPair().GetTerm()
}

func (s *stray) publish(ctx context.Context, p *historycheck.Publish) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), strayDeadline)
	defer cancel()
	p.Sent = s.w.history.Now()
	r, err := pb.NewQueueServiceClient(s.w.pair.ConnTo(s.address)).Publish(ctx, &pb.PublishRequest{
		Queue: p.Queue, Messages: []*pb.Message{{Body: historycheck.Body(p.ID, 0)}},
		Producer: &pb.Producer{Id: s.producer, Epoch: 1, Sequence: p.ID.N},
	})
	p.Done, p.Sequence, p.LSN = s.w.history.Now(), r.GetFirstSequence(), r.GetLsn()
	switch status.Code(err) {
	case codes.OK:
		p.Outcome = historycheck.Acked
		return
	case codes.FailedPrecondition, codes.ResourceExhausted, codes.NotFound, codes.InvalidArgument:
		p.Outcome = historycheck.Refused
	default:
		p.Outcome = historycheck.Unknown
	}
	p.Error = err.Error()
}

func (s *stray) record(p historycheck.Publish) {
	s.w.history.Edit(func(h *historycheck.History) {
		h.Parts = append(h.Parts, p)
		h.Calls["stray "+string(p.Outcome)]++
	})
}
