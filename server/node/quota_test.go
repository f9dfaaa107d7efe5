// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (n *testNode) quota(q *pb.AccessQuota) {
	n.t.Helper()
	_, err := n.access().PutQuota(as(n.t.Context(), "root"), &pb.PutQuotaRequest{Quota: q})
	require.NoError(n.t, err)
}

// refused publishes messages until one is rejected, and returns the error. The usage is sampled four times per
// second. Requests in progress during a sample are counted in the next sample.
func (n *testNode) refused(queue, body string) (err error) {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		if err = n.publishAs("alice", queue, body); err == nil {
			n.purge(queue)
		}
		return err != nil
	}, 5*time.Second, 20*time.Millisecond, "no publish was refused")
	return err
}

func (n *testNode) purge(queue string) {
	n.t.Helper()
	_, err := n.queues.PurgeQueue(n.t.Context(), &pb.PurgeQueueRequest{Name: queue})
	require.NoError(n.t, err)
}

func exceeded(t *testing.T, err error, reports ...string) {
	t.Helper()
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	for _, s := range reports {
		require.Contains(t, err.Error(), s)
	}
	var failure *errdetails.QuotaFailure
	for _, d := range status.Convert(err).Details() {
		if f, is := d.(*errdetails.QuotaFailure); is {
			failure = f
		}
	}
	require.NotNil(t, failure)
	require.Len(t, failure.GetViolations(), 1)
}

// Requests that exceed a quota are rejected with an error that contains the limit. Other requests are permitted.
func TestQuotas(t *testing.T) { simulated(t, testQuotas) }

func testQuotas(t *testing.T) {
	n := startNamedAlone(t, nil)
	n.quota(&pb.AccessQuota{Queue: "team-a/*", Queues: 2, Bytes: 64 << 10, Connections: 2})
	require.NoError(t, n.createAs("alice", "team-a/1"))
	require.NoError(t, n.createAs("alice", "team-a/2"))
	exceeded(t, n.createAs("alice", "team-a/3"), `"team-a/*": queues`, "used 2")
	require.NoError(t, n.createAs("alice", "team-b/1"))

	big := strings.Repeat("x", 40<<10)
	require.NoError(t, n.publishAs("alice", "team-a/1", big))
	exceeded(t, n.refused("team-a/2", big), `"team-a/*": bytes`, "65536", "consume messages")
	require.NoError(t, n.publishAs("alice", "team-b/1", big))
	_, err := n.queues.Commit(t.Context(), &pb.CommitRequest{Operations: []*pb.Operation{
		{Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{
			Queue: "team-a/2", Messages: []*pb.Message{{Body: []byte(big)}},
		}}},
	}})
	exceeded(t, err, "operation 0", "bytes")
	n.purge("team-a/1")
	require.Eventually(t, func() bool { return n.publishAs("alice", "team-a/2", big) == nil }, 5*time.Second,
		20*time.Millisecond, "consumed messages free space")

	attach := func() (pb.QueueService_ConsumeClient, error) {
		s, err := n.queues.Consume(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "team-a/1"}}))
		_, err = s.Recv()
		return s, err
	}
	first, err := attach()
	require.NoError(t, err)
	_, err = attach()
	require.NoError(t, err)
	_, err = attach()
	exceeded(t, err, `"team-a/*": connections`, "used 2")
	list, err := n.access().ListAccess(t.Context(), &pb.ListAccessRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 2, list.GetUsed()[0].GetConnections())
	require.EqualValues(t, 2, list.GetUsed()[0].GetQueues())
	require.NotZero(t, list.GetUsed()[0].GetBytes())
	require.NoError(t, first.CloseSend())
	_, err = first.Recv()
	require.Error(t, err)
	require.Eventually(t, func() bool { _, err := attach(); return err == nil }, 5*time.Second, 10*time.Millisecond)
}

// A publisher that exceeds its rate quota is delayed. If it exceeds the quota by far, its publishes are rejected.
func TestRateQuota(t *testing.T) { simulated(t, testRateQuota) }

func testRateQuota(t *testing.T) {
	n := startNamedAlone(t, nil)
	require.NoError(t, n.createAs("root", "q"))
	n.quota(&pb.AccessQuota{Queue: "q", MessagesPerSecond: 200})
	batch := make([]string, 100)
	start := time.Now()
	for range 4 { // 200 in the first burst, and 200 in a second
		require.NoError(t, n.publishAs("alice", "q", batch...))
	}
	took(t, time.Second, start)

	s, err := n.queues.PublishStream(t.Context())
	require.NoError(t, err)
	start = time.Now()
	go func() {
		for i := range 4 {
			req := &pb.PublishRequest{Queue: "q"}
			for range 100 {
				req.Messages = append(req.Messages, &pb.Message{})
			}
			if s.Send(&pb.PublishStreamRequest{Correlation: uint64(i + 1), Publish: req}) != nil {
				return
			}
		}
	}()
	for range 4 {
		resp, err := s.Recv()
		require.NoError(t, err)
		require.Nil(t, resp.GetError())
	}
	took(t, 1500*time.Millisecond, start, "publishes of the stream are delayed")

	n.quota(&pb.AccessQuota{Queue: "q", MessagesPerSecond: 10})
	done := make(chan error, 1)
	go func() { done <- n.publishAs("alice", "q", make([]string, 500)...) }() // returns after a long delay
	refusals := make(chan error, 1)
	bob := func() { // called in goroutines, because an accepted publish is delayed
		if err := n.publishAs("bob", "q", "x"); err != nil {
			select {
			case refusals <- err:
			default:
			}
		}
	}
	require.Eventually(t, func() bool {
		go bob()
		return len(refusals) > 0
	}, 5*time.Second, 10*time.Millisecond)
	exceeded(t, <-refusals, "more slowly")
}
