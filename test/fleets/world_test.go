// SPDX-License-Identifier: Apache-2.0

//go:build unix

package fleets

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
	"github.com/lockstep-mq/lockstep/test/simetcd"
	"github.com/lockstep-mq/lockstep/test/simnet"
	"github.com/lockstep-mq/lockstep/test/simpair"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

const (
	port     = 7420
	etcdPort = 2379
	// callLimit is the timeout of requests for the state of nodes, and operatorLimit that of an operator.
	callLimit     = 500 * time.Millisecond
	operatorLimit = 5 * time.Second
	// recoveryLimit is the limit for the time until all pairs are in sync, and all moves have ended.
	recoveryLimit = time.Minute
	poll          = 50 * time.Millisecond
	// lateTxn is the time after which a transaction of the directory with the outcome simetcd.Late is executed.
	lateTxn = 300 * time.Millisecond
	// prefix is the prefix of all queues, with the tag of their placement group.
	prefix, group = "w{work}-", "work"
)

// member is a node of a pair. Only the goroutine of the faults uses node, mem, boot and up.
type member struct {
	name, host, address string
	pair                *pair
	node                *simpair.Node
	mem                 *memfs.FS
	boot                int
	up                  bool
	slow                atomic.Int64 // maximum delay of each write and sync of the log, in nanoseconds
	// local calls the services of the node without a network.
	local atomic.Pointer[grpc.ClientConnInterface]
}

type pair struct {
	name    string
	members [2]*member
}

func (p *pair) other(m *member) *member {
	if m == p.members[0] {
		return p.members[1]
	}
	return p.members[0]
}

// world is one simulation: three pairs, their directory, and their clients.
type world struct {
	*simpair.World

	seed    uint64
	began   time.Time
	pairs   [3]*pair
	etcd    *simetcd.Server
	dirDown bool                        // the process of etcd is stopped; used by the goroutine of the faults
	etcdEnd func()                      // stops the process of etcd
	conns   map[string]*grpc.ClientConn // by address
	running sync.WaitGroup              // requests of operators
	clients atomic.Uint64               // number of clients so far
	// steps receives the steps of moves at which a fault is due.
	steps chan step

	mu    sync.Mutex // guards the fields below
	notes []string
	count map[string]int
	rng   *rand.Rand
	armed []stepFault
	wrong error // the first violation of the ownership
}

// step is a step of a move that waits for a fault. The target continues when done is closed.
type step struct {
	fault  stepFault
	target *pair
	done   chan struct{}
}

func newWorld(sim *simpair.World, seed uint64) *world {
	w := &world{
		World: sim, seed: seed, began: time.Now(), conns: map[string]*grpc.ClientConn{}, count: map[string]int{},
		rng: rand.New(rand.NewPCG(seed, 3)), steps: make(chan step),
	}
	w.etcd = simetcd.New(simetcd.Options{PageKeys: 1 + int64(seed%7), Late: lateTxn})
	for i, name := range []string{"a", "b", "c"} {
		p := &pair{name: name}
		for k := range p.members {
			m := &member{name: fmt.Sprint(name, k+1), pair: p, mem: memfs.New()}
			m.host = w.Host(m.name)
			m.address = net.JoinHostPort(m.host, fmt.Sprint(port))
			p.members[k] = m
			w.conns[m.address] = w.Connect(m.address)
		}
		w.pairs[i] = p
	}
	return w
}

func (w *world) etcdAddress() string { return net.JoinHostPort(w.Host("etcd"), fmt.Sprint(etcdPort)) }

func (w *world) startEtcd() {
	process := w.Net.NewProcess(w.Host("etcd"))
	l, err := process.Listen(w.T.Context(), w.etcdAddress())
	require.NoError(w.T, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.etcd.Serve(l)
	}()
	w.etcdEnd = sync.OnceFunc(func() {
		w.etcd.Stop()
		<-ended
		process.Kill()
	})
}

// start starts the directory and all pairs, and waits until they are members of the fleet.
func (w *world) start() {
	w.T.Helper()
	w.startEtcd()
	w.T.Cleanup(func() { w.etcdEnd() })
	for _, p := range w.pairs {
		for k, m := range p.members {
			w.launch(m)
			if k == 0 {
				m.node.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
			}
		}
		w.WaitInSync(p.members[0].node, p.members[1].node)
	}
	w.Eventually(func() bool { return w.directoryProblem(w.T.Context()) == "" }, "the pairs should join the fleet")
	w.note("started")
}

// launch starts the node of a member.
func (w *world) launch(m *member) {
	w.T.Helper()
	c := w.PairConfig(m.name)
	if m.node != nil {
		c = m.node.Config
	}
	c.Coordinator.Etcd.Prefix = "/" + m.pair.name
	c.Fleet.Pair, c.Fleet.Endpoints = m.pair.name, []string{w.etcdAddress()}
	c.Listen, c.Insecure = m.address, true
	disk := faultfs.New(m.mem)
	disk.SetHook(func(op faultfs.Op) error { return w.delay(m, op) })
	m.node, m.up = w.Start(c, node.Options{FS: disk, Environment: node.Environment{
		BootID:    fmt.Sprint(m.boot),
		InProcess: func(c grpc.ClientConnInterface) { m.local.Store(&c) },
		MoveStep:  func(ctx context.Context, name string) error { return w.beforeStep(ctx, m, name) },
	}}), true
}

// delay delays writes and syncs of the log, because the locks held around them do not stop the clock of the bubble.
func (w *world) delay(m *member, op faultfs.Op) error {
	limit := m.slow.Load()
	if limit > 0 && (op.Kind == faultfs.OpWrite || op.Kind == faultfs.OpSync) &&
		filepath.Base(filepath.Dir(op.Name)) == "log" {
		time.Sleep(time.Duration(w.random(limit))) //nolint:forbidigo // the bubble's clock
	}
	return nil
}

// note records an event.
func (w *world) note(format string, args ...any) {
	text := fmt.Sprintf("%10v  %s", time.Since(w.began).Round(time.Microsecond), fmt.Sprintf(format, args...))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, text)
}

func (w *world) counted(label string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[label]++
}

// random returns a random number below n. The order of concurrent calls is not determined by the seed.
func (w *world) random(n int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.Int64N(n)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (w *world) fleet(m *member) pb.FleetServiceClient {
	return pb.NewFleetServiceClient(w.conns[m.address])
}

// localStatus returns the status of a node without a network; nil if it does not respond.
func localStatus(ctx context.Context, m *member) *pb.GetStatusResponse {
	conn := m.local.Load()
	if conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	st, err := pb.NewAdminServiceClient(*conn).GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return nil
	}
	return st
}

// active returns the active node of a pair with the highest term, or nil.
func (p *pair) active(ctx context.Context) *member {
	var active *member
	term := uint64(0)
	for _, m := range p.members {
		st := localStatus(ctx, m)
		if r := st.GetRole(); (r == pb.Role_ROLE_ACTIVE || r == pb.Role_ROLE_ACTIVE_ALONE) && st.GetPair().GetTerm() >= term {
			active, term = m, st.GetPair().GetTerm()
		}
	}
	return active
}

// serves reports whether a node serves a queue.
func serves(ctx context.Context, m *member, queue string) bool {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := pb.NewQueueServiceClient(*m.local.Load()).GetQueue(ctx, &pb.GetQueueRequest{Name: queue})
	return err == nil
}

// owners returns the active nodes that serve a queue.
func (w *world) owners(ctx context.Context, queue string) (owners []*member) {
	for _, p := range w.pairs {
		if m := p.active(ctx); m != nil && serves(ctx, m, queue) {
			owners = append(owners, m)
		}
	}
	return owners
}

var errNoOwner = errors.New("no pair serves the queue")

// Locate implements cluster.Locator.
func (w *world) Locate(ctx context.Context, queue string) (string, error) {
	for ctx.Err() == nil {
		if owners := w.owners(ctx, queue); len(owners) > 0 {
			return owners[0].address, nil
		}
		sleep(ctx, poll)
	}
	return "", fmt.Errorf("%w: %s: %w", errNoOwner, queue, ctx.Err())
}

var _ cluster.Target = (*world)(nil)

// client creates a client that is configured with the nodes of a pair. It does not reach the node with the address in
// except.
func (w *world) client(
	ctx context.Context, addresses []string, except string, more ...grpc.DialOption,
) (*client.Client, error) {
	return client.OpenWith(ctx, client.Options{
		Addresses: addresses,
		DialOptions: append(more, grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			if to == except {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}
			}
			return w.Dial(ctx, to)
		})),
	})
}

func (p *pair) addresses() []string { return []string{p.members[0].address, p.members[1].address} }

// NewClient implements cluster.Target. Consecutive clients have the addresses of different pairs.
func (w *world) NewClient(ctx context.Context, more ...grpc.DialOption) (*client.Client, error) {
	p := w.pairs[(w.seed+w.clients.Add(1))%uint64(len(w.pairs))]
	return w.client(ctx, p.addresses(), "", more...)
}

// NewClientOf implements cluster.Target. The client does not reach the other node of the pair.
func (w *world) NewClientOf(ctx context.Context, address string) (*client.Client, error) {
	m := w.at(address)
	return w.client(ctx, []string{address}, m.pair.other(m).address)
}

func (w *world) members() (all []*member) {
	for _, p := range w.pairs {
		all = append(all, p.members[:]...)
	}
	return all
}

// at returns the member with an address, or nil.
func (w *world) at(address string) *member {
	all := w.members()
	if i := slices.IndexFunc(all, func(m *member) bool { return m.address == address }); i >= 0 {
		return all[i]
	}
	return nil
}

// Addresses implements cluster.Target. It returns the first node of each pair: the workload starts clients for each
// address.
func (w *world) Addresses() (all []string) {
	for _, p := range w.pairs {
		all = append(all, p.members[0].address)
	}
	return all
}

// ConnTo implements cluster.Target.
func (w *world) ConnTo(address string) *grpc.ClientConn { return w.conns[address] }

// WaitApplied implements cluster.Target.
func (w *world) WaitApplied(ctx context.Context) error { return w.settled(ctx) }

// Digests implements cluster.Target. It compares the nodes of all pairs, and returns the digests of the first pair.
func (w *world) Digests(ctx context.Context) (first []historycheck.Digest, err error) {
	for i, p := range w.pairs {
		both, err := w.digests(ctx, p)
		if err != nil {
			return nil, err
		}
		if a, b := both[0], both[1]; a.Content != b.Content {
			return nil, fmt.Errorf("%v of %s and %v of %s differ", a, a.Node, b, b.Node)
		}
		if i == 0 {
			first = both
		}
	}
	return first, nil
}

// digests returns the digests of the nodes of a pair at the same LSN.
func (w *world) digests(ctx context.Context, p *pair) ([]historycheck.Digest, error) {
	for ; ctx.Err() == nil; sleep(ctx, poll) {
		var out []historycheck.Digest
		for _, m := range p.members {
			d, err := pb.NewAdminServiceClient(*m.local.Load()).GetDigest(ctx, &pb.GetDigestRequest{})
			if err != nil {
				return nil, fmt.Errorf("digest of %s: %w", m.name, err)
			}
			out = append(out, historycheck.Digest{
				Node: m.name, LSN: d.GetLsn(), Content: d.GetContent(), Messages: d.GetMessages(),
			})
		}
		if out[0].LSN == out[1].LSN {
			return out, nil
		}
	}
	return nil, fmt.Errorf("digests of pair %s: %w", p.name, ctx.Err())
}

func (w *world) setDelay(a, b *member, d time.Duration) {
	for _, way := range simnet.Both(a.host, b.host) {
		w.Net.Change(way, func(l *simnet.Link) { l.Delay, l.BytesPerSecond = d, 0 })
	}
}
