// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

// The latency of a healthy link is normalDelay plus up to normalJitter.
const (
	normalDelay  = 100 * time.Microsecond
	normalJitter = 200 * time.Microsecond
)

// poll is the interval at which conditions are checked, in simulated time.
const poll = 100 * time.Millisecond

// always is the default value of the setting sync.
const always = "always"

// options contains everything that is derived from the seed of a simulation, except the faults.
type options struct {
	// Sync is the setting sync. If it is not always, a host may lose power only while the other host has all data. The
	// faults are then executed one by one, each with the pair in sync.
	Sync               string
	MinInSync          int
	PageSize           map[string]int
	CheckpointBytes    int64
	CheckpointInterval time.Duration
	LogKeepBytes       int64
	PerSecond          int
	Length             time.Duration
	// Archive is the directory of the log archive of node a, on the real disk; empty for none. drawOptions leaves it
	// empty.
	Archive string
	// LosesSyncs makes every fsync of a log report success without effect once the pair is in sync, to test the
	// simulation itself.
	LosesSyncs bool
}

func drawOptions(rng *rand.Rand) options {
	pages := []int{2 << 10, 4 << 10, 16 << 10}
	modes := []string{always, always, always, always, always, always, "off", "interval"}
	return options{
		Sync:               modes[rng.IntN(len(modes))],
		MinInSync:          1 + rng.IntN(6)/5,
		PageSize:           map[string]int{"a": pages[rng.IntN(len(pages))], "b": pages[rng.IntN(len(pages))]},
		CheckpointBytes:    1 << 20 << rng.IntN(3),
		CheckpointInterval: time.Second << rng.IntN(4),
		LogKeepBytes:       int64(rng.IntN(3)) * (256 << 10),
		PerSecond:          10 + rng.IntN(30),
		Length:             time.Duration(4+rng.IntN(9)) * time.Second,
	}
}

// world is one simulation: two nodes, a network, a coordinator and clients.
type world struct {
	seed    uint64
	options options
	log     *zap.Logger
	began   time.Time
	net     *simnet.Network
	store   *store
	hosts   [2]*host
	clients *simnet.Process
	conns   map[string]*grpc.ClientConn

	running sync.WaitGroup // processes and their supervisors
	over    chan struct{}  // closed at the end

	identities
	refusable                        []string // queues on which faults may make publishes fail
	recordLost, maintenanceRequested bool     // set by faults of the plan

	mu    sync.Mutex // guards all fields below
	rng   *rand.Rand // source of the seeds of other generators
	notes []string
	done  result
	// searchFailure is the first wrong result of a search.
	searchFailure error
}

var _ cluster.Target = (*world)(nil)

// result contains the results of one simulation, or the totals of several simulations.
type result struct {
	failure                           string
	faults                            [kinds]int
	acked, unknown, deliveries, confs int
	searches                          int // that succeeded
	takeovers                         uint64
	recovery                          time.Duration
	calls                             map[string]int
	moves                             map[string]int // number of disk moves and of their effects, by label
	rules                             map[historycheck.Rule]int
}

// count counts a fault that took effect.
func (w *world) count(k kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done.faults[k]++
}

// countMove counts a disk move that took effect, or an effect that a node reported.
func (w *world) countMove(label string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done.moves == nil {
		w.done.moves = map[string]int{}
	}
	w.done.moves[label]++
}

func newWorld(seed uint64, log *zap.Logger) (*world, error) {
	w := &world{
		seed: seed, log: log, began: time.Now(), rng: rand.New(rand.NewPCG(seed, 1)), over: make(chan struct{}),
		conns: map[string]*grpc.ClientConn{}, identities: identities{known: map[string]uint64{}},
	}
	w.options = drawOptions(w.rand())
	w.net = simnet.New(simnet.Options{Delay: normalDelay, Jitter: normalJitter, Rand: w.rand()})
	w.store = newRecordStore(w.rand())
	w.store.failed = func() { w.count(swapUnsettled) }
	w.clients = w.net.NewProcess(clientHost)
	for i, name := range []string{"a", "b"} {
		h := newHost(w, name)
		w.hosts[i] = h
		conn, err := grpc.NewClient("passthrough:///"+h.address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(w.clients.Dial), grpc.WithIdleTimeout(0))
		if err != nil {
			return nil, fmt.Errorf("connect to %s: %w", name, err)
		}
		w.conns[h.address] = conn
	}
	return w, nil
}

// rand returns a new random generator for a component. Its choices do not depend on other components.
func (w *world) rand() *rand.Rand {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rand.New(rand.NewPCG(w.seed, w.rng.Uint64()))
}

// now returns the simulated time since the start.
func (w *world) now() time.Duration { return time.Since(w.began) }

// record records an event.
func (w *world) record(format string, args ...any) {
	text := fmt.Sprintf("%10v  %s", w.now().Round(time.Millisecond), fmt.Sprintf(format, args...))
	w.log.Info("--- " + text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, text)
}

// NewClient implements cluster.Target.
func (w *world) NewClient(ctx context.Context, more ...grpc.DialOption) (*client.Client, error) {
	return client.OpenWith(ctx, client.Options{
		Addresses: w.Addresses(),
		DialOptions: append(more,
			grpc.WithContextDialer(w.clients.Dial),
			grpc.WithChainUnaryInterceptor(w.removeIdentity)),
	})
}

// NewClientOf implements cluster.Target.
func (w *world) NewClientOf(ctx context.Context, address string) (*client.Client, error) {
	return client.OpenWith(ctx, client.Options{
		Addresses: []string{address},
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
				if to != address {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}
				}
				return w.clients.Dial(ctx, to)
			}),
			grpc.WithChainUnaryInterceptor(w.removeIdentity),
		},
	})
}

// Addresses implements cluster.Target.
func (w *world) Addresses() []string { return []string{w.hosts[0].address, w.hosts[1].address} }

// ConnTo implements cluster.Target.
func (w *world) ConnTo(address string) *grpc.ClientConn { return w.conns[address] }

// statuses returns the statuses of both nodes; nil for a node that does not respond.
func (w *world) statuses(ctx context.Context) (out [2]*pb.GetStatusResponse) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var asked sync.WaitGroup
	for i, h := range w.hosts {
		asked.Go(func() {
			if s, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).GetStatus(ctx,
				&pb.GetStatusRequest{}); err == nil {
				out[i] = s
			}
		})
	}
	asked.Wait()
	return out
}

// wait waits until holds returns true for the statuses of both nodes.
func (w *world) wait(ctx context.Context, label string, holds func(s [2]*pb.GetStatusResponse) bool) error {
	var s [2]*pb.GetStatusResponse
	for {
		if now := w.statuses(ctx); ctx.Err() == nil || s == [2]*pb.GetStatusResponse{} {
			s = now // ignores statuses that are incomplete because ctx ended
		}
		if holds(s) {
			return nil
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; a: %s; b: %s", label, ctx.Err(), describe(s[0]), describe(s[1]))
		}
	}
}

func describe(s *pb.GetStatusResponse) string {
	if s == nil {
		return "no response"
	}
	return fmt.Sprintf("%v (%s), config %d term %d, applied %d, log end %d", s.GetRole(), s.GetReason(),
		s.GetPair().GetConfig(),
		s.GetPair().GetTerm(), s.GetStore().GetAppliedLsn(), s.GetStore().GetLogEnd().GetLsn())
}

// waitInSync waits until one node reports that it is active, and the other node that it is the standby, in the same
// configuration.
func (w *world) waitInSync(ctx context.Context) error {
	return w.wait(ctx, "a pair in sync", func(s [2]*pb.GetStatusResponse) bool {
		return s[0].GetPair().GetConfig() == s[1].GetPair().GetConfig() &&
			(activeWith(s[0], s[1]) || activeWith(s[1], s[0]))
	})
}

// waitMaintained waits until no maintenance plan is running.
func (w *world) waitMaintained(ctx context.Context) error {
	return w.wait(ctx, "the end of a plan", func(s [2]*pb.GetStatusResponse) bool {
		for _, n := range s {
			if n == nil || n.GetMaintenance() != nil || n.GetPlan() != nil && !admin.PlanEnded(n.GetPlan()) {
				return false
			}
		}
		return true
	})
}

func activeWith(a, b *pb.GetStatusResponse) bool {
	return a.GetRole() == pb.Role_ROLE_ACTIVE && b.GetRole() == pb.Role_ROLE_STANDBY
}

// WaitApplied implements cluster.Target.
func (w *world) WaitApplied(ctx context.Context) error {
	return w.wait(ctx, "both nodes at the same LSN", func(s [2]*pb.GetStatusResponse) bool {
		if s[0] == nil || s[1] == nil {
			return false
		}
		a, b := s[0].GetStore(), s[1].GetStore()
		return a.GetAppliedLsn() == b.GetAppliedLsn() && a.GetAppliedLsn() == a.GetLogEnd().GetLsn() &&
			b.GetAppliedLsn() == b.GetLogEnd().GetLsn()
	})
}

// Digests implements cluster.Target.
func (w *world) Digests(ctx context.Context) ([]historycheck.Digest, error) {
	for {
		if err := w.WaitApplied(ctx); err != nil {
			return nil, err
		}
		var out []historycheck.Digest
		for _, h := range w.hosts {
			d, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).GetDigest(ctx, &pb.GetDigestRequest{})
			if err != nil {
				return nil, fmt.Errorf("digest of %s: %w", h.name, err)
			}
			out = append(out, historycheck.Digest{
				Node: h.name, LSN: d.GetLsn(), Content: d.GetContent(),
				Messages: d.GetMessages(),
			})
		}
		if out[0].LSN == out[1].LSN {
			return out, nil
		}
	}
}

// serving returns the host of the node that reports that it serves clients, or nil.
func (w *world) serving(ctx context.Context) *host {
	var found *host
	var term uint64
	for i, s := range w.statuses(ctx) {
		if r := s.GetRole(); (r == pb.Role_ROLE_ACTIVE || r == pb.Role_ROLE_ACTIVE_ALONE) &&
			s.GetPair().GetTerm() >= term {
			found, term = w.hosts[i], s.GetPair().GetTerm()
		}
	}
	return found
}
