// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// blockedAfter returns the status with which a node that may not acknowledge ends a publish stream.
func blockedAfter(t *testing.T, through uint64) error {
	st, err := status.New(codes.Unavailable, "writes are refused for now").WithDetails(
		&errdetails.ErrorInfo{Reason: "BLOCKED", Domain: "lockstep.v1"}, &pb.Submitted{Through: through})
	require.NoError(t, err)
	return st.Err()
}

func (p *fakePair) setEndStream(with func(*pb.PublishStreamRequest) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endStream = with
}

// A request that a blocked node reports as not submitted has a definite outcome. An older node does not report this,
// so the outcome is unknown.
func TestNotSubmittedOutcomeIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		err     error
		unknown bool
	}{
		"reported":   {blockedAfter(t, 0), false},
		"older node": {refusal(t, codes.Unavailable, "BLOCKED"), true},
	} {
		simulated(t, name, func(t *testing.T) {
			p := newFakePair(t)
			c1 := p.client(client.Options{})
			attempts, want := atomic.Int32{}, []string{"b"}
			if c.unknown {
				want = []string{"a", "b"} // the canceled request is still in flight
			}
			p.setEndStream(func(*pb.PublishStreamRequest) error {
				attempts.Add(1)
				return c.err
			})
			_, err := c1.Publish(briefly(t), "q", message("a"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, c.unknown, errors.Is(err, client.ErrOutcomeUnknown), err)
			require.Positive(t, attempts.Load())
			p.setEndStream(nil)
			_, err = c1.Publish(soon(t), "q", message("b"))
			require.NoError(t, err)
			require.Equal(t, want, p.bodies("q"), "an abandoned message is not stored")
		})
	}
}

// Requests that were not submitted are sent again after the submitted ones, in the order of the calls, and without the
// retry flag.
func TestNotSubmittedKeepsOrder(t *testing.T) { synctest.Test(t, testNotSubmittedKeepsOrder) }

func testNotSubmittedKeepsOrder(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	producer, err := c.NewProducer(t.Context(), client.ProducerOptions{BatchMessages: 2})
	require.NoError(t, err)
	failures := 5
	var retried []uint64
	p.setEndStream(func(r *pb.PublishStreamRequest) error {
		if r.GetPublish().GetProducer().GetRetry() {
			retried = append(retried, r.GetCorrelation())
		}
		if failures > 0 && r.GetCorrelation() > 3 {
			failures--
			return blockedAfter(t, 3)
		}
		return nil
	})
	var want []string
	for i := range 40 {
		m := message("%02d", i)
		want = append(want, string(m.Body))
		producer.PublishAsync(soon(t), "q", m)
	}
	require.NoError(t, producer.Flush(soon(t)))
	require.Equal(t, want, p.bodies("q"))
	require.Empty(t, retried)
}

// A request of an earlier stream may be stored, regardless of the status with which the last stream ended.
func TestEarlierOutcomeStaysUnknown(t *testing.T) { synctest.Test(t, testEarlierOutcomeStaysUnknown) }

func testEarlierOutcomeStaysUnknown(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.mu.Lock()
	p.onPublish = func(*fakeNode, *pb.PublishRequest) bool {
		p.onPublish = nil
		p.endStream = func(*pb.PublishStreamRequest) error { return blockedAfter(t, 0) }
		return false
	}
	p.mu.Unlock()
	_, err := c.Publish(briefly(t), "q", message("a"))
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.Equal(t, []string{"a"}, p.bodies("q"))
}

// With FailFast, calls and publishes do not wait while fewer nodes than MinInSync are in sync.
func TestFailFastWithTooFewNodes(t *testing.T) { synctest.Test(t, testFailFastWithTooFewNodes) }

func testFailFastWithTooFewNodes(t *testing.T) {
	for _, short := range []bool{false, true} {
		p := newFakePair(t)
		if short {
			p.minInSync = 2
		}
		c := p.client(client.Options{FailFast: true})
		p.setEndStream(func(*pb.PublishStreamRequest) error { return blockedAfter(t, 0) })
		p.mu.Lock()
		p.refuseCommit = func(*pb.CommitRequest) error { return refusal(t, codes.Unavailable, "BLOCKED") }
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if !short {
			ctx = briefly(t)
		}
		_, published := c.Publish(ctx, "q", message("a"))
		if !short {
			ctx = briefly(t)
		}
		_, committed := c.Begin().Publish("q", message("b")).Commit(ctx)
		cancel()
		for _, err := range []error{published, committed} {
			require.Equal(t, short, errors.Is(err, client.ErrRefused), err)
			require.Equal(t, !short, errors.Is(err, context.DeadlineExceeded), err)
			if short {
				require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
			}
		}
		require.Empty(t, p.bodies("q"))
	}
}
