// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
	"github.com/lockstep-mq/lockstep/test/simnet"
	"github.com/lockstep-mq/lockstep/test/simpair"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// Durations that follow from the defaults of failover.timeout and failover.drop-timeout.
const (
	heartbeat = 40 * time.Millisecond
	// dropAfter is the time without messages after which an active drops its standby.
	dropAfter = 1500 * time.Millisecond
	// takeoverAfter is the time without messages after which a standby takes over.
	takeoverAfter = 2 * time.Second
	// roundTrip is the duration of a request and its response in the simulated network.
	roundTrip = 2 * simpair.Latency
)

// pair is a pair of nodes. It implements cluster.Target.
type pair struct {
	t     *testing.T
	w     *simpair.World
	nodes [2]*simpair.Node
	conns [2]*grpc.ClientConn
	disks [2]*faultfs.FS
	away  *outage
	seen  failover.Coordinator // the connection of the test to the coordinator
}

var _ cluster.Target = (*pair)(nil)

// run runs a test in a bubble with a pair in sync. edit changes the settings of the nodes.
func run(t *testing.T, f func(t *testing.T, p *pair), edit ...func(*config.Config)) {
	t.Helper()
	simpair.Test(t, func(t *testing.T, w *simpair.World) {
		p := &pair{t: t, w: w, away: &outage{}}
		w.WrapCoordinator = p.away.wrap
		for i, name := range []string{"a", "b"} {
			c := w.PairConfig(name)
			for _, change := range edit {
				change(&c)
			}
			p.disks[i] = faultfs.New(w.Disk)
			p.nodes[i] = w.Start(c, node.Options{FS: p.disks[i]})
			p.nodes[0].WaitFor([]pb.Role{pb.Role_ROLE_ACTIVE_ALONE, pb.Role_ROLE_ACTIVE}[i])
		}
		for i, address := range p.Addresses() {
			p.conns[i] = w.Connect(address)
		}
		p.seen = w.CoordinatorOf(&p.nodes[0].Config).Connect()
		p.inSync()
		f(t, p)
	})
}

// inSync waits until one node reports that it is active, and the other node that it is the standby.
func (p *pair) inSync() (active, standby *simpair.Node) {
	p.t.Helper()
	p.w.Eventually(func() bool {
		for i, n := range p.nodes {
			if n.Role() == pb.Role_ROLE_ACTIVE && p.nodes[1-i].Role() == pb.Role_ROLE_STANDBY {
				active, standby = n, p.nodes[1-i]
				return true
			}
		}
		return false
	}, "the pair should be in sync")
	return active, standby
}

// restart restarts a node that was killed or stopped.
func (p *pair) restart(n *simpair.Node) *simpair.Node {
	p.t.Helper()
	i := slices.Index(p.nodes[:], n)
	p.nodes[i] = n.Restart()
	return p.nodes[i]
}

// outage blocks requests to the coordinator while on is true.
type outage struct{ on atomic.Bool }

func (s *outage) wrap(c failover.Coordinator) failover.Coordinator {
	return &unresponsiveCoordinator{c, s}
}

// unresponsiveCoordinator is a connection to a coordinator that may be unresponsive.
type unresponsiveCoordinator struct {
	failover.Coordinator
	s *outage
}

func (c *unresponsiveCoordinator) wait(ctx context.Context) {
	if c.s.on.Load() {
		<-ctx.Done()
	}
}

func (c *unresponsiveCoordinator) Load(ctx context.Context) (failover.Record, failover.Revision, error) {
	c.wait(ctx)
	return c.Coordinator.Load(ctx)
}

func (c *unresponsiveCoordinator) Swap(
	ctx context.Context, expect failover.Revision, next failover.Record,
) (failover.Revision, error) {
	c.wait(ctx)
	return c.Coordinator.Swap(ctx, expect, next)
}

func (c *unresponsiveCoordinator) WriteMark(ctx context.Context, m failover.Mark) (failover.Mark, error) {
	c.wait(ctx)
	return c.Coordinator.WriteMark(ctx, m)
}

func (c *unresponsiveCoordinator) LoadMark(ctx context.Context) (failover.Mark, error) {
	c.wait(ctx)
	return c.Coordinator.LoadMark(ctx)
}

// stopCoordinatorResponses blocks requests to the coordinator if silent is true. Otherwise, it restores the
// coordinator.
func (p *pair) stopCoordinatorResponses(silent bool) {
	p.away.on.Store(silent)
	p.w.CoordinatorOf(&p.nodes[0].Config).SetDown(silent)
}

// cut cuts the link between the nodes, or restores it. Clients and the coordinator reach both nodes.
func (p *pair) cut(cut bool) { p.w.Net.SetCut(p.nodes[0].Host(), p.nodes[1].Host(), cut) }

// cutFrom cuts the direction from one node to the other. Net.Heal restores it.
func (p *pair) cutFrom(from, to *simpair.Node) {
	p.w.Net.Change(simnet.Way{From: from.Host(), To: to.Host()}, func(l *simnet.Link) { l.Cut = true })
}

// freeze stops the network traffic of a node, or resumes it.
func (p *pair) freeze(n *simpair.Node, frozen bool) {
	for _, host := range []string{p.nodes[0].Host(), p.nodes[1].Host(), p.w.Host("client")} {
		if host != n.Host() {
			p.w.Net.SetCut(n.Host(), host, frozen)
		}
	}
}

// stallSyncs blocks all further syncs of a node's disk until end is called. stalled returns the number of blocked
// syncs.
func (p *pair) stallSyncs(n *simpair.Node) (stalled func() int64, end func()) {
	disk := p.disks[slices.Index(p.nodes[:], n)]
	var count atomic.Int64
	ended := make(chan struct{})
	disk.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpSync {
			count.Add(1)
			<-ended
		}
		return nil
	})
	return count.Load, func() {
		disk.SetHook(nil)
		close(ended)
	}
}

// fence returns the term and the configuration number of the cluster record. The term changes with each takeover, the
// configuration number with each change of the in-sync set.
func (p *pair) fence() failover.Fence {
	p.t.Helper()
	record, _, err := p.seen.Load(p.t.Context())
	require.NoError(p.t, err)
	return record.Fence()
}

// Addresses implements cluster.Target.
func (p *pair) Addresses() []string {
	return []string{p.nodes[0].Ready.Advertise, p.nodes[1].Ready.Advertise}
}

// client creates a client that is closed at the end of the test.
func (p *pair) client() *client.Client {
	p.t.Helper()
	c, err := p.NewClient(p.t.Context())
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = c.Close() })
	return c
}

// NewClient implements cluster.Target.
func (p *pair) NewClient(ctx context.Context, more ...grpc.DialOption) (*client.Client, error) {
	return client.OpenWith(ctx, client.Options{
		Addresses: p.Addresses(), DialOptions: slices.Concat(more, p.w.ClientOptions()),
	})
}

// NewClientOf implements cluster.Target.
func (p *pair) NewClientOf(ctx context.Context, address string) (*client.Client, error) {
	dial := func(ctx context.Context, to string) (net.Conn, error) {
		if to != address {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}
		}
		return p.w.Dial(ctx, to)
	}
	return client.OpenWith(ctx, client.Options{
		Addresses: []string{address}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)},
	})
}

// ConnTo implements cluster.Target.
func (p *pair) ConnTo(address string) *grpc.ClientConn {
	return p.conns[slices.Index(p.Addresses(), address)]
}

// WaitApplied implements cluster.Target.
func (p *pair) WaitApplied(ctx context.Context) error {
	for ctx.Err() == nil {
		a, b := p.status(p.nodes[0]).GetStore(), p.status(p.nodes[1]).GetStore()
		if end := a.GetLogEnd().GetLsn(); end != 0 && end == b.GetLogEnd().GetLsn() && end == a.GetAppliedLsn() &&
			end == b.GetAppliedLsn() {
			return nil
		}
		sleep(simpair.Poll)
	}
	return ctx.Err()
}

// Digests implements cluster.Target.
func (p *pair) Digests(ctx context.Context) ([]historycheck.Digest, error) {
	for {
		if err := p.WaitApplied(ctx); err != nil {
			return nil, err
		}
		var out []historycheck.Digest
		for _, n := range p.nodes {
			d, err := n.Admin().GetDigest(ctx, &pb.GetDigestRequest{})
			if err != nil {
				return nil, fmt.Errorf("digest of %s: %w", n.Config.Node.Name, err)
			}
			out = append(out, historycheck.Digest{
				Node: n.Config.Node.Name, LSN: d.GetLsn(), Content: d.GetContent(), Messages: d.GetMessages(),
			})
		}
		if out[0].LSN == out[1].LSN {
			return out, nil
		}
	}
}

// status returns the status of a node, or nil if the node does not respond.
func (p *pair) status(n *simpair.Node) *pb.GetStatusResponse {
	st, err := n.Admin().GetStatus(p.t.Context(), &pb.GetStatusRequest{})
	if err != nil {
		return nil
	}
	return st
}

// work starts a workload, which records all responses.
func (p *pair) work() *cluster.Workload {
	p.t.Helper()
	w, err := cluster.StartWorkload(p.t.Context(), p, cluster.WorkloadOptions{
		Seed: 1, PerSecond: 50, InFlight: 8, LargeBytes: 64 << 10, OperationsPerSecond: 3, SideClientsPerSecond: 3,
	})
	require.NoError(p.t, err)
	p.t.Cleanup(w.Abort)
	return w
}

// verify ends a workload and checks its responses.
func (p *pair) verify(w *cluster.Workload) {
	p.t.Helper()
	p.inSync()
	require.NoError(p.t, w.Finish(p.within(time.Minute)))
	require.Empty(p.t, w.History().Check())
}

// within returns a context with a timeout that also ends with the test.
func (p *pair) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(p.t.Context(), d)
	p.t.Cleanup(cancel)
	return ctx
}

// sleep advances simulated time.
func sleep(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the bubble's clock
}
