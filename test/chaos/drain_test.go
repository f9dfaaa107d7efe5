// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// drainQueue is the queue that all clients of a drain test use.
const drainQueue = "drain"

// drainClients are clients that publish and consume while a node is stopped. They record every error that an
// application would receive.
type drainClients struct {
	t    *testing.T
	stop context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex // guards all fields below
	acks   map[string][]time.Time
	errors []string
}

// startDrainClients starts a synchronous publisher, a pipelining publisher, and two consumers that confirm
// acknowledgements.
func startDrainClients(t *testing.T, open func(context.Context) (*client.Client, error)) *drainClients {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &drainClients{t: t, stop: stop, acks: map[string][]time.Time{}}
	k, err := open(ctx)
	require.NoError(t, err)
	t.Cleanup(func() {
		stop()
		c.work.Wait()
		_ = k.Close()
	})
	c.work.Go(func() { c.publish(ctx, k) })
	c.work.Go(func() { c.pipeline(ctx, k) })
	for i := range 2 {
		c.work.Go(func() { c.consume(ctx, k, fmt.Sprint("consumer ", i)) })
	}
	return c
}

// acked records a response; failed records an error, unless the test is finished.
func (c *drainClients) acked(principal string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acks[principal] = append(c.acks[principal], time.Now())
}

func (c *drainClients) failed(ctx context.Context, principal string, err error) {
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errors = append(c.errors, fmt.Sprintf("%s: %v", principal, err))
}

func (c *drainClients) publish(ctx context.Context, k *client.Client) {
	const who = "publisher, one by one"
	for ctx.Err() == nil {
		if _, err := k.Publish(ctx, drainQueue, client.Message{Body: make([]byte, 512)}); err != nil {
			c.failed(ctx, who, err)
			continue
		}
		c.acked(who)
	}
}

func (c *drainClients) pipeline(ctx context.Context, k *client.Client) {
	const who = "publisher, pipelined"
	p, err := k.NewProducer(ctx, client.ProducerOptions{})
	if err != nil {
		c.failed(ctx, who, err)
		return
	}
	defer func() { _ = p.Close() }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		pending := p.PublishAsync(ctx, drainQueue, client.Message{Body: make([]byte, 512)})
		go func() {
			if _, err := pending.Wait(ctx); err != nil {
				c.failed(ctx, who, err)
				return
			}
			c.acked(who)
		}()
		<-tick.C
	}
}

func (c *drainClients) consume(ctx context.Context, k *client.Client, principal string) {
	co, err := k.Consume(ctx, drainQueue, client.ConsumerOptions{})
	if err != nil {
		c.failed(ctx, principal, err)
		return
	}
	defer func() { _ = co.Close() }()
	for ctx.Err() == nil {
		d, err := co.Receive(ctx)
		if err == nil {
			err = d.AckSync(ctx)
		}
		if err != nil {
			c.failed(ctx, principal, err)
			return
		}
		c.acked(principal)
	}
}

// waitUntilAll waits until each client has the given number of responses after a time, or a client has received an
// error.
func (c *drainClients) waitUntilAll(since time.Time, responses int) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, times := range c.acks {
			i, _ := slices.BinarySearchFunc(times, since, time.Time.Compare)
			if len(times)-i < responses {
				return false
			}
		}
		return len(c.acks) == 4 || len(c.errors) > 0
	}, bound, time.Millisecond, "not all clients receive responses")
}

// longest returns, by client, the longest interval without a response that overlaps the given range.
func (c *drainClients) longest(from, to time.Time) map[string]time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	gaps := map[string]time.Duration{}
	for principal, times := range c.acks {
		for i := 1; i < len(times); i++ {
			if times[i].After(from) && times[i-1].Before(to) {
				gaps[principal] = max(gaps[principal], times[i].Sub(times[i-1]))
			}
		}
	}
	return gaps
}

func (c *drainClients) noErrors(label string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(c.t, c.errors, label)
}

// drainCase is a state of the pair and a node to stop in it.
type drainCase struct {
	name string
	// prepare sets up the state and returns the node that receives SIGTERM.
	prepare func(t *testing.T, p *cluster.Pair) (victim *cluster.Node)
	// handedOver is true if a switchover moves the role to the other node.
	handedOver bool
	// pause limits the median time without a publish response. 0 means no limit.
	pause time.Duration
	// after undoes prepare.
	after func(t *testing.T, p *cluster.Pair)
}

// stopWithin returns the limit of the time from SIGTERM to exit: shutdown.handover-timeout (5 s), the end of open
// calls, and the last checkpoint, which depends on the speed of the disk.
func stopWithin() time.Duration {
	if pausesAreStrict() {
		return 10 * time.Second
	}
	return bound
}

func drainCases() []drainCase {
	pausing := func(t *testing.T, p *cluster.Pair, paused bool) {
		active, err := p.WaitActive(limited(t))
		require.NoError(t, err)
		_, err = pb.NewAdminServiceClient(active.Conn()).
			SetPaused(limited(t), &pb.SetPausedRequest{Paused: paused, Reason: "test"})
		require.NoError(t, err)
	}
	return []drainCase{
		{name: "active", pause: 50 * time.Millisecond, prepare: func(t *testing.T, p *cluster.Pair) *cluster.Node {
			active, _ := inSync(t, p)
			return active
		}, handedOver: true},
		{name: "standby", pause: 50 * time.Millisecond, prepare: func(t *testing.T, p *cluster.Pair) *cluster.Node {
			_, standby := inSync(t, p)
			return standby
		}},
		{name: "paused", prepare: func(t *testing.T, p *cluster.Pair) *cluster.Node {
			active, _ := inSync(t, p)
			pausing(t, p, true)
			return active
		}, after: func(t *testing.T, p *cluster.Pair) { pausing(t, p, false) }},
		{name: "without a standby", prepare: func(t *testing.T, p *cluster.Pair) *cluster.Node {
			active, standby := inSync(t, p)
			require.NoError(t, standby.Kill())
			require.NoError(t, p.WaitRole(limited(t), active, pb.Role_ROLE_ACTIVE_ALONE))
			return active
		}, after: func(t *testing.T, p *cluster.Pair) {
			for _, n := range p.Nodes() {
				if !n.Running() {
					require.NoError(t, n.Start())
				}
			}
		}},
	}
}

// A node of a pair drains on SIGTERM while clients publish and consume. No client receives an error, regardless of
// the stopped node and of the state of the pair. If the other node is in sync, the median wait of publishers over
// all rounds is less than 50 ms, and the node stops in bounded time. LOCKSTEP_ROUNDS sets the number of rounds
// (default 3).
func TestDrain(t *testing.T) {
	rounds := roundsOr(t, 3)
	for _, coordinator := range []string{"etcd", "raft"} {
		t.Run(coordinator, func(t *testing.T) {
			p := start(t, cluster.Options{
				Raft: coordinator == "raft", Settings: map[string]string{"log.level": "info"},
			})
			k, err := p.NewClient(t.Context())
			require.NoError(t, err)
			_, _, err = admin.New(k).CreateQueue(limited(t), drainQueue, admin.CreateQueueOptions{})
			require.NoError(t, err)
			require.NoError(t, k.Close())
			c := startDrainClients(t, func(ctx context.Context) (*client.Client, error) { return p.NewClient(ctx) })
			for _, s := range drainCases() {
				drainRepeatedly(t, p, c, s, rounds)
			}
		})
	}
}

// drainRepeatedly stops the victim of a case in each round, and checks the duration, the pauses and the errors.
func drainRepeatedly(t *testing.T, p *cluster.Pair, c *drainClients, s drainCase, rounds int) {
	t.Helper()
	var pauses []time.Duration
	for range rounds {
		victim := s.prepare(t, p)
		c.waitUntilAll(time.Now(), 20)
		other := eventsOf(t, p.Other(victim))
		from := time.Now()
		require.NoError(t, victim.Stop())
		to := time.Now()
		require.Less(t, to.Sub(from), stopWithin(), "%s: from SIGTERM to the end of the process", s.name)
		if s.handedOver {
			other.role(failover.RoleActivating, failover.CodeSwitchover)
		}
		if s.pause == 0 {
			require.NoError(t, victim.Start())
		}
		c.waitUntilAll(time.Now(), 20)
		gaps := c.longest(from, to)
		t.Logf("%s: stopped in %v, longest time without a response: %v", s.name, to.Sub(from), gaps)
		pauses = append(pauses, max(gaps["publisher, one by one"], gaps["publisher, pipelined"]))
		if s.pause != 0 {
			require.NoError(t, victim.Start())
		}
		if s.after != nil {
			s.after(t, p)
		}
		inSync(t, p)
		c.noErrors(s.name)
	}
	slices.Sort(pauses)
	t.Logf("%s: %d rounds, publish outage: median %v, longest %v", s.name, rounds,
		pauses[len(pauses)/2], pauses[len(pauses)-1])
	if s.pause != 0 && pausesAreStrict() {
		require.Less(t, pauses[len(pauses)/2], s.pause, s.name)
	}
}

// standalone starts one node without a pair, with the queue of the drain tests.
func standalone(t *testing.T, settings map[string]string) (*harness.Pair, *harness.Node) {
	t.Helper()
	all := map[string]string{"disk.low-watermark": "16MiB", "wal.segment-bytes": "8MiB"}
	maps.Copy(all, settings)
	p, err := harness.Start(t.Context(), harness.Options{
		Binary: binary, Dir: t.TempDir(), Standalone: true, Settings: all,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	serving(t, p.Nodes[0])
	_, err = pb.NewQueueServiceClient(p.Nodes[0].Conn()).CreateQueue(limited(t), &pb.CreateQueueRequest{Name: drainQueue})
	require.NoError(t, err)
	return p, p.Nodes[0]
}

// serving waits until a standalone node serves.
func serving(t *testing.T, n *harness.Node) {
	t.Helper()
	require.Eventually(t, func() bool {
		st, err := n.Status(t.Context())
		return err == nil && (st.GetRole() == pb.Role_ROLE_ACTIVE || st.GetRole() == pb.Role_ROLE_ACTIVE_ALONE)
	}, bound, 2*time.Millisecond, "the node does not serve: %s", n.LogTail())
}

// While a standalone node restarts, clients that publish and consume wait, and receive no error.
func TestDrainStandalone(t *testing.T) {
	p, n := standalone(t, nil)
	c := startDrainClients(t, func(ctx context.Context) (*client.Client, error) {
		return client.OpenWith(ctx, client.Options{Addresses: p.Addresses()})
	})
	for range roundsOr(t, 3) {
		c.waitUntilAll(time.Now(), 20)
		from := time.Now()
		require.NoError(t, n.Stop())
		to := time.Now()
		require.Less(t, to.Sub(from), stopWithin(), "from SIGTERM to the end of the process")
		require.NoError(t, n.Start())
		c.waitUntilAll(time.Now(), 20)
		t.Logf("stopped in %v, longest time without a response: %v", to.Sub(from), c.longest(from, to))
		c.noErrors("standalone")
	}
}

// A draining node without a successor stores and acknowledges all publishes that it accepted before the stop,
// pipelined or not. Later publishes are rejected and not stored, so the number of messages equals the number of
// acknowledgements.
func TestDrainAcknowledgesAcceptedPublishes(t *testing.T) {
	_, n := standalone(t, nil)
	var acknowledged atomic.Int64
	rejections := []codes.Code{codes.Unavailable, codes.FailedPrecondition}
	request := &pb.PublishRequest{Queue: drainQueue, Messages: []*pb.Message{{Body: make([]byte, 512)}}}
	for round := range roundsOr(t, 3) {
		var clients sync.WaitGroup
		publishes := pb.NewQueueServiceClient(n.Conn())
		before := acknowledged.Load()
		for range 4 {
			stream, err := publishes.PublishStream(t.Context())
			require.NoError(t, err)
			clients.Go(func() {
				for i := uint64(1); ; i++ {
					if stream.Send(&pb.PublishStreamRequest{Correlation: i, Publish: request}) != nil {
						return
					}
				}
			})
			clients.Go(func() {
				for {
					resp, err := stream.Recv()
					if err != nil {
						assert.Contains(t, rejections, status.Code(err), "%v", err)
						return
					}
					assert.NotNil(t, resp.GetPublished(), "%v", resp)
					acknowledged.Add(1)
				}
			})
			clients.Go(func() {
				for {
					if _, err := publishes.Publish(t.Context(), request); err != nil {
						assert.Contains(t, rejections, status.Code(err), "%v", err)
						return
					}
					acknowledged.Add(1)
				}
			})
		}
		require.Eventually(t, func() bool { return acknowledged.Load() > before+1000 }, bound, time.Millisecond)
		require.NoError(t, n.Stop())
		clients.Wait()
		require.NoError(t, n.Start())
		serving(t, n)
		got, err := pb.NewQueueServiceClient(n.Conn()).GetQueue(limited(t), &pb.GetQueueRequest{Name: drainQueue})
		require.NoError(t, err)
		t.Logf("round %d: %d responses, %d messages", round, acknowledged.Load(), got.GetQueue().GetMessages())
		require.EqualValues(t, acknowledged.Load(), got.GetQueue().GetMessages(), "stored messages and responses")
	}
}
