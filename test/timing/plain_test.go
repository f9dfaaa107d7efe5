// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// plain is a client that uses only grpc-go and the generated code. It publishes synchronously, and retries each message
// until a node acknowledges it. It retries at the address in a NotActive error, or at the other node after a transport
// error.
type plain struct {
	p        *pair
	at       int // index of the current node
	producer string
	sequence uint64
	broken   int // number of errors other than NotActive
}

// publish sends one message and returns when it is acknowledged.
func (c *plain) publish() {
	t := c.p.t
	ctx, cancel := context.WithTimeout(t.Context(), simpair.Timeout)
	defer cancel()
	c.sequence++
	for retry := false; ; retry = true {
		conn := c.p.conns[c.at]
		if conn.GetState() == connectivity.TransientFailure {
			conn.ResetConnectBackoff()
		}
		_, err := pb.NewQueueServiceClient(conn).Publish(ctx, &pb.PublishRequest{
			Queue: "plain", Messages: []*pb.Message{{Body: make([]byte, 512)}},
			Producer: &pb.Producer{Id: c.producer, Epoch: 1, Sequence: c.sequence, Retry: retry},
		})
		if err == nil {
			return
		}
		require.NoError(t, ctx.Err(), "last error: %v", err)
		c.selectNode(err)
	}
}

// selectNode selects the node for the next attempt.
func (c *plain) selectNode(err error) {
	st := status.Convert(err)
	for _, d := range st.Details() {
		if na, ok := d.(*pb.NotActive); ok {
			if i := slices.Index(c.p.Addresses(), na.GetActiveAddress()); i >= 0 {
				c.at = i
				return
			}
			sleep(time.Millisecond)
			return
		}
	}
	c.broken++
	if st.Code() == codes.Unavailable {
		c.at = 1 - c.at
		sleep(time.Millisecond)
	}
}

// pause publishes while trigger runs, and returns the longest interval between two acknowledgements.
func (c *plain) pause(trigger func()) (longest time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		sleep(100 * time.Millisecond)
		trigger()
	}()
	last := time.Now()
	for end := (time.Time{}); end.IsZero() || last.Before(end); {
		c.publish()
		now := time.Now()
		longest = max(longest, now.Sub(last))
		last = now
		select {
		case <-done:
			if end.IsZero() {
				end = now.Add(300 * time.Millisecond)
			}
		default:
		}
	}
	return longest
}

// When the active stops, switches over or is killed, a client that does not use the client package receives the next
// acknowledgement within a limit. A stop and a switchover cause no transport errors.
func TestPublishPauses(t *testing.T) {
	for _, s := range []struct {
		name    string
		longest time.Duration
		errors  bool // the client may receive transport errors
		restart bool
		do      func(active *simpair.Node) error
	}{
		{"stop", 20 * time.Millisecond, false, true, (*simpair.Node).Stop},
		{"switchover", 20 * time.Millisecond, false, false, func(active *simpair.Node) error {
			_, err := active.Admin().Switchover(context.Background(), &pb.SwitchoverRequest{})
			return err
		}},
		{"kill", 30 * time.Millisecond, true, true, func(active *simpair.Node) error { active.Kill(); return nil }},
	} {
		t.Run(s.name, func(t *testing.T) {
			run(t, func(t *testing.T, p *pair) {
				_, _, err := admin.New(p.client()).CreateQueue(t.Context(), "plain", admin.CreateQueueOptions{})
				require.NoError(t, err)
				c := &plain{p: p, producer: uuid.NewString()}
				for range 5 {
					active, _ := p.inSync()
					before := c.broken
					var failed error
					longest := c.pause(func() { failed = s.do(active) })
					require.NoError(t, failed)
					t.Logf("%v without an acknowledgement, %d errors", longest, c.broken-before)
					require.LessOrEqual(t, longest, s.longest)
					if !s.errors {
						require.Zero(t, c.broken)
					}
					if s.restart {
						p.restart(active)
					}
				}
			})
		})
	}
}
