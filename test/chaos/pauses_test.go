// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// plain is a minimal client that uses only the .proto files and grpc-go. It publishes synchronously, and retries each
// message with the same sequence until a node acknowledges it. After a NotActive error, it retries at the address in
// the error, and after a transport error, at the other node.
type plain struct {
	t        *testing.T
	address  [2]string
	conns    [2]*grpc.ClientConn
	at       int // index of the node assumed to be active
	producer string
	sequence uint64
	// redirects is the number of NotActive responses, which are not counted as errors; broken is the number of other
	// errors.
	redirects, broken int
}

func newPlain(t *testing.T, p *cluster.Pair) *plain {
	t.Helper()
	c := &plain{t: t, producer: uuid.NewString()}
	for i, n := range p.Nodes() {
		conn, err := grpc.NewClient(n.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		c.address[i], c.conns[i] = n.Address, conn
	}
	return c
}

// publish sends one message and returns when it is acknowledged.
func (c *plain) publish(ctx context.Context) {
	c.sequence++
	for retry := false; ; retry = true {
		if c.conns[c.at].GetState() == connectivity.TransientFailure {
			c.conns[c.at].ResetConnectBackoff()
		}
		_, err := pb.NewQueueServiceClient(c.conns[c.at]).Publish(ctx, &pb.PublishRequest{
			Queue: "plain", Messages: []*pb.Message{{Body: make([]byte, 512)}},
			Producer: &pb.Producer{Id: c.producer, Epoch: 1, Sequence: c.sequence, Retry: retry},
		})
		if err == nil {
			return
		}
		require.NoError(c.t, ctx.Err(), "last error: %v", err)
		c.selectNode(err)
	}
}

// selectNode selects the node for the next attempt, depending on the error of the last attempt.
func (c *plain) selectNode(err error) {
	st := status.Convert(err)
	for _, d := range st.Details() {
		if na, ok := d.(*pb.NotActive); ok {
			c.redirects++
			if i := slices.Index(c.address[:], na.GetActiveAddress()); i >= 0 {
				c.at = i
				return
			}
			<-time.After(time.Millisecond)
			return
		}
	}
	c.broken++
	if st.Code() == codes.Unavailable {
		c.at = 1 - c.at
		<-time.After(time.Millisecond)
	}
}

// pause publishes while a role change is triggered. It returns the longest interval between two acknowledgements, and
// the numbers of redirects and errors.
func (c *plain) pause(trigger func()) (longest time.Duration, redirects, broken int) {
	redirects, broken = c.redirects, c.broken
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-time.After(100 * time.Millisecond)
		trigger()
	}()
	ctx, cancel := context.WithTimeout(c.t.Context(), bound)
	defer cancel()
	last := time.Now()
	for end := (time.Time{}); end.IsZero() || last.Before(end); {
		c.publish(ctx)
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
	return longest, c.redirects - redirects, c.broken - broken
}

// pausesAreStrict reports whether a pause above its goal fails the test, which requires an otherwise idle machine.
func pausesAreStrict() bool { return os.Getenv("LOCKSTEP_PAUSES") == "strict" }

// TestPublishPauses measures a client's publish pause when the active is stopped (SIGTERM), hands over its role, or
// is killed, and checks the reason of the takeover. LOCKSTEP_ROUNDS is the number of rounds, default 2. With
// LOCKSTEP_PAUSES=strict, the test fails if a median exceeds its goal, or if the client receives an error during a
// stop or switchover. On a busy machine, the client may detect a stopping node too late. test/timing checks both
// exactly, in simulated time.
func TestPublishPauses(t *testing.T) {
	rounds := roundsOr(t, 2)
	switched := []failover.Code{failover.CodeSwitchover}
	settings := map[string]string{"log.level": "info"}
	if !pausesAreStrict() {
		maps.Copy(settings, steady()) // otherwise a standby without CPU time is dropped, and cannot become active
	}
	for _, coordinator := range []string{"etcd", "raft"} {
		t.Run(coordinator, func(t *testing.T) {
			p := start(t, cluster.Options{Raft: coordinator == "raft", Settings: settings})
			k, err := p.NewClient(t.Context())
			require.NoError(t, err)
			_, _, err = admin.New(k).CreateQueue(limited(t), "plain", admin.CreateQueueOptions{})
			require.NoError(t, err)
			require.NoError(t, k.Close())
			c := newPlain(t, p)
			for _, s := range []struct {
				name    string
				goal    time.Duration
				errors  bool // the client may receive errors
				restart bool
				why     []failover.Code
				do      func(active *cluster.Node) error
			}{
				{"SIGTERM", 20 * time.Millisecond, false, true, switched, (*cluster.Node).Stop},
				{"switchover", 20 * time.Millisecond, false, false, switched, func(active *cluster.Node) error {
					_, err := pb.NewAdminServiceClient(active.Conn()).Switchover(t.Context(), &pb.SwitchoverRequest{})
					return err
				}},
				{"kill", 30 * time.Millisecond, true, true, gone(), (*cluster.Node).Kill},
			} {
				var pauses []time.Duration
				for range rounds {
					active, standby := inSync(t, p)
					is := eventsOf(t, standby)
					var failed error
					longest, redirects, broken := c.pause(func() { failed = s.do(active) })
					require.NoError(t, failed)
					is.role(failover.RoleActivating, s.why...)
					t.Logf("%s: %v without an acknowledgement, redirected %d times, %d errors", s.name, longest,
						redirects, broken)
					if s.restart {
						require.NoError(t, active.Start())
					}
					if !s.errors && pausesAreStrict() {
						require.Zero(t, broken, "%s: the client received errors", s.name)
					}
					pauses = append(pauses, longest)
				}
				slices.Sort(pauses)
				median := pauses[len(pauses)/2]
				t.Logf("%s, %s: %d rounds, median %v, longest %v (goal %v)", coordinator, s.name, rounds, median,
					pauses[len(pauses)-1], s.goal)
				if pausesAreStrict() {
					require.LessOrEqual(t, median, s.goal, s.name)
				}
			}
		})
	}
}
