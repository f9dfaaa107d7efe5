// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// publishResult is the client's result for a message.
type publishResult int

const (
	pending publishResult = iota // no result yet
	success                      // stored exactly once
	notDone                      // never stored, now or later
	unknown                      // stored once or not at all
)

// sent is one message of the runner. Its body is unique.
type sent struct {
	queue    string
	order    uint64 // position among all publishes
	producer string
	recorded publishResult
	sequence uint64
	text     string // of the error
}

// oracle contains every published message, by body, and compares the client's results with the queues.
type oracle struct {
	mu       sync.Mutex // guards all fields below
	messages map[string]*sent
	order    uint64
	// unknownStored counts the stored messages with an unknown outcome. duplicates counts the responses that reported
	// a duplicate.
	unknownStored, duplicates int
}

// expect registers messages before they are published, in this order, by one producer.
func (o *oracle) expect(queue, producer string, bodies ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range bodies {
		o.order++
		o.messages[b] = &sent{queue: queue, order: o.order, producer: producer}
	}
}

// recorded records the client's result for messages, which have consecutive sequences.
func (o *oracle) recorded(t *testing.T, a *adapter, got answer, bodies ...string) {
	t.Helper()
	var r result
	if got.Error == nil {
		r = a.success("publish", got)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.Duplicate {
		o.duplicates++
	}
	for i, b := range bodies {
		m := o.messages[b]
		switch {
		case got.Error == nil:
			m.recorded, m.sequence = success, r.Sequence+uint64(i)
		case got.Error.Outcome == "unknown":
			m.recorded, m.text = unknown, got.Error.Message
		default:
			require.Equal(t, "not-done", got.Error.Outcome)
			m.recorded, m.text = notDone, got.Error.Message
		}
	}
}

// verify reads a queue without the client under test, and compares it with the client's results. The queue has a
// subscription that acknowledges nothing, so it contains every message that was ever stored.
func (o *oracle) verify(t *testing.T, conn grpc.ClientConnInterface, queue string) {
	t.Helper()
	stored, err := read(t.Context(), conn, queue)
	require.NoError(t, err)
	o.mu.Lock()
	defer o.mu.Unlock()
	at := map[string][]uint64{}
	last := map[string]uint64{} // order of the last message of each producer
	for _, m := range stored {
		b := strings.TrimRight(string(m.GetMessage().GetBody()), "x")
		at[b] = append(at[b], m.GetSequence())
		s := o.messages[b]
		if s == nil || s.queue != queue {
			t.Errorf("%s has %q, which was not published to it", queue, b)
			continue
		}
		if s.producer != "" && s.order < last[s.producer] {
			t.Errorf("%s: %q is stored after a message that producer %s published later", queue, b, s.producer)
		}
		last[s.producer] = s.order
	}
	for b, s := range o.messages {
		if s.queue != queue {
			continue
		}
		if problem := s.against(at[b]); problem != "" {
			t.Errorf("%s: %q: %s", queue, b, problem)
		}
		if s.recorded == unknown && len(at[b]) == 1 {
			o.unknownStored++
		}
	}
}

// against returns the difference between the result for a message and its stored positions; "" if none.
func (s *sent) against(at []uint64) string {
	switch {
	case len(at) > 1:
		return fmt.Sprintf("stored %d times: %v", len(at), at)
	case s.recorded == pending:
		return "the client reported no result"
	case s.recorded == success && len(at) == 0:
		return "the client reported success, but it is not stored"
	case s.recorded == success && at[0] != s.sequence:
		return fmt.Sprintf("the client reported sequence %d, but it has %d", s.sequence, at[0])
	case s.recorded == notDone && len(at) > 0:
		return "the client reported that it was not done, but it is stored: " + s.text
	}
	return ""
}

// read returns all messages in a queue.
func read(ctx context.Context, conn grpc.ClientConnInterface, queue string) (all []*pb.StoredMessage, err error) {
	stream, err := pb.NewQueueServiceClient(conn).Browse(ctx, &pb.BrowseRequest{Queue: queue},
		grpc.MaxCallRecvMsgSize(128<<20))
	if err != nil {
		return nil, err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, resp.GetMessages()...)
	}
}

// Each kind of incorrect result of a client is detected.
func TestOracleReportsErrors(t *testing.T) {
	for name, c := range map[string]struct {
		recorded publishResult
		at       []uint64
		want     string
	}{
		"lost":                {success, nil, "it is not stored"},
		"duplicated":          {success, []uint64{5, 6}, "stored 2 times"},
		"unknown, duplicated": {unknown, []uint64{5, 6}, "stored 2 times"},
		"other sequence":      {success, []uint64{6}, "reported sequence 5, but it has 6"},
		"failed, stored":      {notDone, []uint64{5}, "reported that it was not done, but it is stored"},
		"no result":           {pending, []uint64{5}, "reported no result"},
		"success, stored":     {success, []uint64{5}, ""},
		"failed, not stored":  {notDone, nil, ""},
		"unknown, stored":     {unknown, []uint64{5}, ""},
		"unknown, not stored": {unknown, nil, ""},
	} {
		s := sent{recorded: c.recorded, sequence: 5}
		if c.want == "" {
			require.Empty(t, s.against(c.at), name)
			continue
		}
		require.Contains(t, s.against(c.at), c.want, name)
	}
}
