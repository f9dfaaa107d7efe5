// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"

	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// rewriteBarrier blocks rewrites. While it is closed, a rewrite waits before its first write to the new page file.
type rewriteBarrier struct {
	fs *faultfs.FS

	mu      sync.Mutex
	open    chan struct{}
	reached chan struct{}
}

func newRewriteBarrier(t *testing.T) *rewriteBarrier {
	t.Helper()
	g := &rewriteBarrier{fs: faultfs.New(diskOf(t)), open: make(chan struct{}), reached: make(chan struct{})}
	close(g.open)
	g.fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite && strings.HasSuffix(op.Name, "page.db_new") {
			g.mu.Lock()
			open := g.open
			select {
			case <-g.reached:
			default:
				close(g.reached)
			}
			g.mu.Unlock()
			<-open
		}
		return nil
	})
	return g
}

// block closes the barrier. The returned channel is closed when a rewrite has reached it.
func (g *rewriteBarrier) block() (reached <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open, g.reached = make(chan struct{}), make(chan struct{})
	return g.reached
}

func (g *rewriteBarrier) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// maintenancePair is a pair that stores messages, with a rewriteBarrier for each node.
type maintenancePair struct {
	t        *testing.T
	nodes    [2]*testNode
	barriers [2]*rewriteBarrier
}

func startMaintenancePair(t *testing.T) *maintenancePair {
	t.Helper()
	etcd := startEtcd(t)
	p := &maintenancePair{t: t, barriers: [2]*rewriteBarrier{newRewriteBarrier(t), newRewriteBarrier(t)}}
	for i, name := range []string{"a", "b"} {
		c := settingsOfPair(t, name, etcd)
		c.Backup.Path = t.TempDir()
		p.nodes[i] = startOn(t, c, p.barriers[i].fs)
		t.Cleanup(p.barriers[i].release) // before the node is stopped
		if i == 0 {
			p.nodes[0].waitFor(pb.Role_ROLE_ACTIVE_ALONE)
		}
	}
	p.nodes[1].waitFor(pb.Role_ROLE_STANDBY)
	p.nodes[0].waitFor(pb.Role_ROLE_ACTIVE)
	require.Eventually(t, func() bool { // the active has received the address of its standby
		for _, n := range p.nodes[0].status().GetPair().GetNodes() {
			if n.GetNodeId() == p.nodes[1].ready.NodeID {
				return n.GetAddress() != ""
			}
		}
		return false
	}, testTimeout, 5*time.Millisecond)
	fill(p.nodes[0])
	return p
}

// restart restarts a node at the same address.
func (p *maintenancePair) restart(i int) {
	p.t.Helper()
	c := p.nodes[i].config
	c.Listen = p.nodes[i].ready.Address
	p.barriers[i].release()
	p.nodes[i].stop()
	p.nodes[i] = startOn(p.t, c, p.barriers[i].fs)
}

// fill publishes messages for which a scan recommends a larger page size.
func fill(n *testNode) {
	n.t.Helper()
	n.createQueue("q")
	for i := range 20 {
		var batch []string
		for k := range 10 {
			batch = append(batch, fmt.Sprintf("%04d-%s", i*10+k, strings.Repeat("x", 3000)))
		}
		n.publish("q", batch...)
	}
}

// same waits until both nodes have the same content, and returns the number of messages.
func (p *maintenancePair) same() (messages uint64) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		x, err := p.nodes[0].admin.GetDigest(p.t.Context(), &pb.GetDigestRequest{})
		require.NoError(p.t, err)
		y, err := p.nodes[1].admin.GetDigest(p.t.Context(), &pb.GetDigestRequest{})
		require.NoError(p.t, err)
		messages = x.GetMessages()
		return x.GetLsn() == y.GetLsn() && x.GetContent() == y.GetContent()
	}, testTimeout, 20*time.Millisecond, "both nodes have the same contents")
	return messages
}

func (n *testNode) pageSize() uint32 {
	n.t.Helper()
	return n.status().GetStore().GetPageSize()
}

// rewrite requests a rewrite on a node and waits for the result. progress is the number of progress reports.
func (n *testNode) rewrite(req *pb.RewriteRequest) (result *pb.RewriteResult, progress int, err error) {
	n.t.Helper()
	s, err := n.maintenance.Rewrite(n.t.Context(), req)
	require.NoError(n.t, err)
	for {
		resp, err := s.Recv()
		if err != nil {
			return nil, progress, err
		}
		if resp.GetResult() != nil {
			return resp.GetResult(), progress, nil
		}
		progress++
	}
}

func (n *testNode) scan() *pb.ScanResult {
	n.t.Helper()
	s, err := n.maintenance.Scan(n.t.Context(), &pb.ScanRequest{})
	require.NoError(n.t, err)
	for {
		resp, err := s.Recv()
		require.NoError(n.t, err)
		if resp.GetResult() != nil {
			return resp.GetResult()
		}
	}
}

// load publishes to the active node until stop is called. stop returns the acknowledged messages.
func (p *maintenancePair) load() (stop func() []string) {
	ctx, cancel := context.WithCancel(p.t.Context())
	acknowledged := make(chan string, 100_000)
	nodes := p.nodes[:]
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := uint64(1); ctx.Err() == nil; i++ {
			publishAnywhere(ctx, nodes, i, acknowledged)
		}
	}()
	var got []string
	var once sync.Once
	stop = func() []string {
		once.Do(func() {
			cancel()
			<-done
			close(acknowledged)
			for b := range acknowledged {
				got = append(got, b)
			}
		})
		return got
	}
	p.t.Cleanup(func() { stop() })
	return stop
}

// publishAnywhere tries both nodes alternately, with the same producer sequence, until one accepts the message.
// One of the nodes may be permanently lost.
func publishAnywhere(ctx context.Context, nodes []*testNode, sequence uint64, acknowledged chan<- string) {
	body := fmt.Sprint(sequence)
	for try := 0; ctx.Err() == nil; try++ {
		_, err := nodes[try%2].queues.Publish(ctx, &pb.PublishRequest{
			Queue: "q", Messages: batch(body), Producer: &pb.Producer{Id: "p", Sequence: sequence},
		})
		if err == nil {
			acknowledged <- body
			return
		}
		if c := status.Code(err); c != codes.FailedPrecondition && c != codes.Unavailable && c != codes.Canceled {
			nodes[0].t.Errorf("publish %d: %v", sequence, err)
			return
		}
	}
}

// checkStored checks that each acknowledged message is stored once, after the messages that fill has published.
func (n *testNode) checkStored(acknowledged []string) {
	n.t.Helper()
	q, err := n.queues.GetQueue(n.t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(n.t, err)
	seen := map[string]int{}
	c := n.consume("q", 100_000)
	for len(seen) < int(q.GetQueue().GetMessages()) {
		resp, err := c.stream.Recv()
		require.NoError(n.t, err)
		for _, b := range bodies(resp.GetMessages()) {
			seen[b]++
			require.Equal(n.t, 1, seen[b], "%.20s is duplicated", b)
		}
	}
	for _, b := range acknowledged {
		require.Equal(n.t, 1, seen[b], "%s was acknowledged and is lost", b)
	}
	require.GreaterOrEqual(n.t, len(seen), 200+len(acknowledged))
}

func ptr[T any](v T) *T { return &v }

// plan returns the plan in a node's status.
func (n *testNode) plan() *pb.Plan { return n.status().GetPlan() }

func (p *maintenancePair) waitForPlan(n int, state pb.PlanState) *pb.Plan {
	p.t.Helper()
	var plan *pb.Plan
	require.Eventually(p.t, func() bool {
		plan = p.nodes[n].plan()
		return plan.GetState() == state
	}, 2*testTimeout, 10*time.Millisecond, "the plan should be %s; it is %s", state, plan)
	return plan
}
