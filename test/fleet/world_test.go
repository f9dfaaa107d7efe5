// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// keptLog is the size of the log that each node retains. It must exceed the log of a round, because the ownership is
// read from the logs after each round.
const keptLog = "1GiB"

// pair is a pair of the fleet.
type pair struct {
	*harness.Pair
	name  string
	amqp  [2]*harness.Port
	steps string // directory of faultdisk.VariableMoves
}

// stop stops moves to the pair before a step, until release is called.
func (p *pair) stop(step string) error {
	if err := os.Remove(filepath.Join(p.steps, step+faultdisk.MoveReached)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.WriteFile(filepath.Join(p.steps, step), nil, 0o600)
}

// reached reports whether a move is stopped before the step.
func (p *pair) reached(step string) bool {
	_, err := os.Stat(filepath.Join(p.steps, step+faultdisk.MoveReached))
	return err == nil
}

func (p *pair) release(step string) error {
	if err := os.Remove(filepath.Join(p.steps, step)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// world is a fleet of three pairs.
type world struct {
	t       *testing.T
	program string // executable of the nodes
	dir     string
	etcd    *etcd
	pairs   []*pair
	round   atomic.Uint32 // is odd during a round: see inRound
}

// inRound reports whether a value of world.round belongs to a round, in which queues move and processes are killed.
func inRound(round uint32) bool { return round%2 == 1 }

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, binary)
}

// newWorldOf is like newWorld, with nodes that run a program.
func newWorldOf(t *testing.T, program string) *world {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv("LOCKSTEP_KEEP"), "lockstep-"+t.Name()+"-")
	require.NoError(t, err)
	w := &world{t: t, program: program, dir: dir}
	t.Cleanup(w.close)
	w.etcd = newEtcd(t, filepath.Join(dir, "etcd"))
	for _, name := range []string{"east", "north", "west"} {
		w.start(name)
	}
	w.inSync()
	for _, p := range w.pairs {
		require.NoError(t, p.Wait(limited(t), p.name+" is a member", func(all []*pb.GetStatusResponse) bool {
			return !slices.ContainsFunc(all, func(s *pb.GetStatusResponse) bool {
				f := s.GetFleet()
				return f.GetFleetId() == "" || !f.GetDirectoryCurrent() || f.GetProblem() != ""
			})
		}))
	}
	return w
}

func (w *world) start(name string) {
	w.t.Helper()
	p := &pair{name: name, steps: filepath.Join(w.dir, "steps-"+name)}
	require.NoError(w.t, os.MkdirAll(p.steps, 0o700))
	var err error
	for i := range p.amqp {
		p.amqp[i], err = harness.ReservePort()
		require.NoError(w.t, err)
	}
	settings := harness.SmallNodes()
	maps.Copy(settings, map[string]string{
		"fleet.pair": name, "coordinator.etcd.prefix": "/lockstep/" + name, "insecure": "true", "wal.keep-bytes": keptLog,
	})
	p.Pair, err = harness.Start(limited(w.t), harness.Options{
		Binary: w.program, Dir: filepath.Join(w.dir, name), Settings: settings, EtcdAddress: w.etcd.port.Address(),
		NodeSettings: map[string]map[string]string{
			"a": {"amqp.listen": p.amqp[0].Address()}, "b": {"amqp.listen": p.amqp[1].Address()},
		},
		Placement: func(string, string) (harness.Placement, error) {
			return harness.Placement{Environment: func() ([]string, error) {
				return []string{faultdisk.VariableMoves + "=" + p.steps}, nil
			}}, nil
		},
	})
	require.NoError(w.t, err, "see %s", w.dir)
	w.pairs = append(w.pairs, p)
}

func (w *world) close() {
	var errs []error
	for _, p := range w.pairs {
		for _, n := range p.Nodes {
			if w.t.Failed() && n.Running() {
				_ = n.Dump()
			}
		}
		errs = append(errs, p.KillAll(), p.amqp[0].Close(), p.amqp[1].Close())
	}
	if w.etcd != nil {
		errs = append(errs, w.etcd.kill(), w.etcd.port.Close())
	}
	if err := errors.Join(errs...); err != nil {
		w.t.Log(err)
	}
	if w.t.Failed() {
		w.t.Logf("kept: %s", w.dir)
		return
	}
	_ = os.RemoveAll(w.dir)
}

// client returns a client with the addresses of one pair.
func (w *world) client(of *pair) *client.Client {
	w.t.Helper()
	c, err := client.OpenWith(w.t.Context(), client.Options{Addresses: of.Addresses()})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// inSync waits until all pairs are in sync.
func (w *world) inSync() {
	w.t.Helper()
	for _, p := range w.pairs {
		_, _, err := p.WaitInSync(limited(w.t))
		require.NoError(w.t, err, "pair %s, see %s", p.name, w.dir)
	}
}

func (w *world) pair(name string) *pair {
	w.t.Helper()
	i := slices.IndexFunc(w.pairs, func(p *pair) bool { return p.name == name })
	require.GreaterOrEqual(w.t, i, 0, name)
	return w.pairs[i]
}

// pairOf returns the name of the pair with a node at this address.
func (w *world) pairOf(address string) string {
	for _, p := range w.pairs {
		if p.Find(address) != nil {
			return p.name
		}
	}
	return ""
}

// others returns the pairs with other names.
func (w *world) others(names ...string) []*pair {
	return slices.DeleteFunc(slices.Clone(w.pairs), func(p *pair) bool { return slices.Contains(names, p.name) })
}

const (
	keptSubscription = "kept" // is not consumed
	dedupWindow      = 24 * time.Hour
)

func (w *world) create(c *client.Client, queues ...string) {
	w.t.Helper()
	for _, q := range queues {
		_, _, err := admin.New(c).CreateQueue(limited(w.t), q, admin.CreateQueueOptions{
			Config: admin.QueueConfig{DedupWindow: dedupWindow}, IfNotExists: true,
			Subscriptions: []string{amqpSubscription, goSubscription, pythonSubscription, keptSubscription},
		})
		require.NoError(w.t, err)
	}
}

func service(n *harness.Node) pb.FleetServiceClient { return pb.NewFleetServiceClient(n.Conn()) }

// owner returns the owner of a queue and its epoch when all nodes have the same entry.
func (w *world) owner(queue string) (owner *pair, epoch uint64) {
	w.t.Helper()
	var entries []string
	var placement *pb.Placement
	defer func() {
		if w.t.Failed() {
			w.t.Logf("entries of %s: %q", queue, entries)
		}
	}()
	eventually(w.t, "owner of "+queue, func(ctx context.Context) bool {
		entries = nil
		for _, p := range w.pairs {
			for _, n := range p.Nodes {
				list, err := service(n).ListPlacements(ctx, &pb.ListPlacementsRequest{Pattern: queue})
				if err != nil || !list.GetCurrent() || len(list.GetPlacements()) != 1 {
					return false
				}
				placement = list.GetPlacements()[0]
				entries = append(entries, fmt.Sprint(placement.GetPair(), " ", placement.GetEpoch()))
			}
		}
		return len(slices.Compact(slices.Clone(entries))) == 1
	})
	return w.pair(placement.GetPair()), placement.GetEpoch()
}

// moves returns the moves that the active of a pair reports; ok is false if it does not respond, or has an outdated
// copy of the directory.
func (p *pair) moves(ctx context.Context) (moves []*pb.FleetMove, active *harness.Node, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	active, err := p.WaitActive(ctx)
	if err != nil {
		return nil, nil, false
	}
	list, err := service(active).ListMoves(ctx, &pb.ListMovesRequest{})
	return list.GetMoves(), active, err == nil && list.GetCurrent()
}

func hasEnded(m *pb.FleetMove) bool {
	return m.GetPhase() == pb.MovePhase_MOVE_PHASE_DONE || m.GetPhase() == pb.MovePhase_MOVE_PHASE_NOT_MOVED
}

// begin begins a move, and returns its epoch. The request is repeated until it succeeds, or the move has begun.
func (w *world) begin(queue string, to *pair) (epoch uint64) {
	w.t.Helper()
	var errs []string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("requests to move %s: %q", queue, slices.Compact(errs))
		}
	}()
	eventually(w.t, "begin of a move of "+queue, func(ctx context.Context) bool {
		moves, active, ok := to.moves(ctx)
		if !ok {
			return false
		}
		for _, m := range moves {
			if m.GetTo() == to.name && slices.Contains(m.GetQueues(), queue) && !hasEnded(m) {
				epoch = m.GetEpoch()
				return true
			}
		}
		resp, err := service(active).MoveQueues(ctx, &pb.MoveQueuesRequest{Queues: []string{queue}})
		if err != nil {
			errs = append(errs, err.Error())
			list, listed := service(active).ListPlacements(ctx, &pb.ListPlacementsRequest{Pattern: queue, Pair: to.name})
			if listed != nil || !list.GetCurrent() || len(list.GetPlacements()) != 1 {
				return false
			}
			epoch = list.GetPlacements()[0].GetEpoch() // an earlier request has succeeded
			return true
		}
		epoch = resp.GetEpoch()
		return true
	})
	return epoch
}

// ended waits until a move has ended. The last state that the target has reported may be nil.
func (w *world) ended(to *pair, epoch uint64) (last *pb.FleetMove) {
	w.t.Helper()
	var all []string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("move %d: %s", epoch, strings.Join(all, "\n"))
		}
	}()
	eventually(w.t, fmt.Sprintf("end of move %d to %s", epoch, to.name), func(ctx context.Context) bool {
		all = nil
		ended := true
		for _, p := range w.pairs {
			moves, _, ok := p.moves(ctx)
			if !ok {
				return false
			}
			for _, m := range moves {
				if m.GetEpoch() != epoch {
					continue
				}
				all = append(all, p.name+": "+m.String())
				ended = ended && hasEnded(m)
				if p == to {
					last = m
				}
			}
		}
		return ended
	})
	return last
}

// equal waits until each queue is stored at its owner only, and both nodes of each pair have the same content. No
// client may use the queues.
func (w *world) equal(owners map[string]string) {
	w.t.Helper()
	var found map[string]string
	eventually(w.t, "queues stored once", func(ctx context.Context) bool {
		found = map[string]string{}
		for _, p := range w.pairs {
			var digests []string
			for _, n := range p.Nodes {
				resp, err := pb.NewAdminServiceClient(n.Conn()).GetQueueDigests(ctx, &pb.GetQueueDigestsRequest{})
				if err != nil {
					return false
				}
				digests = append(digests, fmt.Sprint(resp.GetDigest(), resp.GetQueues()))
				for _, q := range resp.GetQueues() {
					if before := found[q.GetName()]; before != "" && before != p.name {
						return false
					}
					found[q.GetName()] = p.name
				}
			}
			if digests[0] != digests[1] {
				return false
			}
		}
		return true
	})
	require.Equal(w.t, owners, found)
}
