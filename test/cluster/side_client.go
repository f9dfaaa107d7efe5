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

	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// sideClientDeadline is the timeout of one publish to one node.
const sideClientDeadline = 300 * time.Millisecond

// sideClients publish to each node directly with the generated stub, regardless of the node's role. They simulate
// clients in a separate network that have not detected a failover. Their responses reveal a node that acknowledges
// while the other node is active.
type sideClients struct {
	w       *Workload
	queue   string
	stop    context.CancelFunc
	running sync.WaitGroup
}

func (w *Workload) startSideClients(ctx context.Context) (*sideClients, error) {
	s := &sideClients{w: w, queue: w.opts.Prefix + "stray"}
	if _, _, err := admin.New(w.client).CreateQueue(ctx, s.queue,
		admin.CreateQueueOptions{Subscriptions: []string{SubAudit}}); err != nil {
		return nil, fmt.Errorf("side clients: %w", err)
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	for i, address := range w.pair.Addresses() {
		one := sideClient{sideClients: s, id: firstSideClient + uint32(i), producer: uuid.NewString(), address: address}
		s.running.Go(func() { one.run(ctx) })
	}
	return s, nil
}

func (s *sideClients) end() {
	s.stop()
	s.running.Wait()
}

type sideClient struct {
	*sideClients
	id       uint32
	producer string
	address  string
}

func (s *sideClient) run(ctx context.Context) {
	every := time.Second / time.Duration(s.w.opts.SideClientsPerSecond)
	for n := uint64(1); ctx.Err() == nil; n++ {
		id := historycheck.ID{Producer: s.id, N: n}
		p := historycheck.Publish{ID: id, Queue: s.queue, Address: s.address, Unordered: true}
		before := s.term(ctx)
		s.publish(ctx, &p)
		if after := s.term(ctx); before == after {
			p.Term = before // the term did not change during the publish
		}
		s.record(p)
		wait(ctx, every)
	}
}

// term returns the current term of a node; 0 if it does not respond.
func (s *sideClient) term(ctx context.Context) uint64 {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sideClientDeadline)
	defer cancel()
	st, err := pb.NewAdminServiceClient(s.w.pair.ConnTo(s.address)).GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return 0
	}
	return st.GetPair().GetTerm()
}

func (s *sideClient) publish(ctx context.Context, p *historycheck.Publish) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sideClientDeadline)
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

func (s *sideClient) record(p historycheck.Publish) {
	s.w.history.Edit(func(h *historycheck.History) {
		h.Parts = append(h.Parts, p)
		h.Calls["side client "+string(p.Outcome)]++
	})
}
