// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

const (
	// pinnedFirst is the number of the first producer that is pinned to a node; a workload uses lower numbers.
	pinnedFirst = 1000
	// pinnedPace is the interval between two messages of one producer, and pinnedTimeout its response timeout.
	pinnedPace, pinnedTimeout = 10 * time.Millisecond, 400 * time.Millisecond
)

// pins publish to each node directly, regardless of its role, like clients that reach only one node, or have not
// detected a failover. Their responses are recorded in the history of a workload, so that the checker compares them
// with the queues.
type pins struct {
	h     *historycheck.History
	queue string
	next  uint32 // number of the next producer

	mu      sync.Mutex // guards next and the two fields below
	acks    []pinnedAck
	unknown int // number of unknown outcomes, which are common
	done    sync.WaitGroup
	once    sync.Once
	stop    context.CancelFunc
	ctx     context.Context
}

// pinnedAck is an acknowledgement and the process that sent it.
type pinnedAck struct {
	process    string
	sent, done time.Duration
}

// pin starts publishing to a queue of a workload, on each of the given nodes.
func pin(t *testing.T, w *cluster.Workload, queue string, nodes ...*cluster.Node) *pins {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s := &pins{h: w.History(), queue: queue, next: pinnedFirst, stop: cancel, ctx: ctx}
	t.Cleanup(s.end)
	for _, n := range nodes {
		s.to(n)
	}
	return s
}

// end stops all producers.
func (s *pins) end() {
	s.once.Do(func() {
		s.stop()
		s.done.Wait()
		// The checker's limit of unknown outcomes applies to clients that retry. The pinned producers do not retry.
		s.h.MaxUnknown += s.unknown
	})
}

// to starts publishing to another node.
func (s *pins) to(n *cluster.Node) {
	s.done.Go(func() {
		pace := time.NewTicker(pinnedPace)
		defer pace.Stop()
		for s.ctx.Err() == nil {
			s.producer(n, pace.C)
		}
	})
}

// producer publishes as one producer until a message is not acknowledged. It does not retry, and the next producer
// continues, so that messages are stored in the order in which they were sent.
func (s *pins) producer(n *cluster.Node, pace <-chan time.Time) {
	s.mu.Lock()
	number := s.next
	s.next++
	s.mu.Unlock()
	id := uuid.NewString()
	for sequence := uint64(1); ; sequence++ {
		select {
		case <-s.ctx.Done():
			return
		case <-pace:
		}
		record := historycheck.Publish{
			ID: historycheck.ID{Producer: number, N: sequence}, Queue: s.queue, Sent: s.h.Now(),
			Address: n.Address,
		}
		process := fmt.Sprintf("%s/%d", n.Address, n.PID())
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), pinnedTimeout)
		resp, err := pb.NewQueueServiceClient(n.Conn()).Publish(ctx, &pb.PublishRequest{
			Queue: s.queue, Messages: []*pb.Message{{Body: historycheck.Body(record.ID, 0)}},
			Producer: &pb.Producer{Id: id, Epoch: 1, Sequence: sequence},
		})
		cancel()
		record.Done, record.Outcome = s.h.Now(), historycheck.Acked
		if err != nil {
			record.Outcome, record.Error = historycheck.Unknown, err.Error()
		}
		record.Sequence, record.LSN = resp.GetFirstSequence(), resp.GetLsn()
		s.h.AddPublish(record)
		s.mu.Lock()
		if err != nil {
			s.unknown++
			s.mu.Unlock()
			return
		}
		s.acks = append(s.acks, pinnedAck{process, record.Sent, record.Done})
		s.mu.Unlock()
	}
}

// acked returns the number of acknowledgements so far.
func (s *pins) acked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.acks)
}

// more waits for more than the given number of acknowledgements.
func (s *pins) more(t *testing.T, than int) {
	t.Helper()
	require.Eventually(t, func() bool { return s.acked() > than }, bound, time.Millisecond,
		"a message must be missing in the copy")
}

// turns returns how often the acknowledging process changed, and the process that acknowledged last. Each change
// requires a new term: more changes than terms mean that two processes acknowledged concurrently.
func (s *pins) turns() (turns int, last string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	acks := slices.Clone(s.acks)
	slices.SortFunc(acks, func(a, b pinnedAck) int { return int(a.done - b.done) })
	var newest pinnedAck // of the process that acknowledged last
	for _, a := range acks {
		switch {
		case newest.process == a.process:
			newest = a
		case a.sent > newest.done: // otherwise the response may only be late
			turns++
			newest = a
		}
	}
	return turns, newest.process
}
