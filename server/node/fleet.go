// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcdconn"
	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/ops/member"
	"github.com/lockstep-mq/lockstep/server/ops/mover"
	"github.com/lockstep-mq/lockstep/server/peerclient"
	"github.com/lockstep-mq/lockstep/store/query"
)

// newFleet creates the client of the directory, the member of a fleet, and the mover. Without fleet.pair, they are
// nil.
func (n *node) newFleet() (err error) {
	if n.cfg.Fleet.Pair == "" {
		return nil
	}
	if n.fleetClient, err = n.openFleetClient(); err != nil {
		return fmt.Errorf("%w: fleet: %w", config.ErrInvalid, err)
	}
	n.fleet, err = member.New(member.Options{
		Pair: n.cfg.Fleet.Pair, Client: n.fleetClient, Prefix: n.cfg.Fleet.Prefix, Labels: n.cfg.Fleet.Map(),
		Store: n.store, Addresses: n.pairAddresses, Load: (&loadMeter{n: n}).load, Capacity: n.capacity,
		Supported: func() error { return n.supports("fleets") },
		NotActive: func() error { return n.notActive() }, Changed: func() { n.monitor.wake() },
		Logger: n.log.Named("fleet"),
	})
	if err != nil {
		return fmt.Errorf("%w: %w", config.ErrInvalid, err)
	}
	step := n.environment.MoveStep
	if step == nil {
		step = moveStep()
	}
	n.mover = mover.New(mover.Options{
		Pair: n.cfg.Fleet.Pair, Member: n.fleet, Store: n.store, Serving: n.serving,
		Dial:      n.environment.dialOptions(mover.DialOptions(n.secrets.own, n.secrets.fleetToken)),
		Supported: func() error { return n.supports("fleets") }, Step: step, Logger: n.log.Named("mover"),
		Paused: func(d time.Duration) { n.latencies.Paused(d) },
	})
	return nil
}

// runRemoval stops serving clients while the pair is removed from its fleet as lost. It runs until ctx ends.
func (n *node) runRemoval(ctx context.Context) {
	d := n.fleet.AwaitDirectory(ctx)
	for removed := false; ctx.Err() == nil; {
		changed := d.Changed()
		if now := n.fleet.Refusal() != nil; now != removed {
			removed = now
			n.plane.serveByRole() //nolint:contextcheck // a session lives as long as the role
			n.runner.Notify()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

const fleetPrincipal = "fleet"

func (n *node) fleetTokenIdentity(ctx context.Context) (*access.Identity, error) {
	if tokens := n.secrets.fleetToken; tokens != nil && peerclient.Sent(ctx, mover.TokenKey, tokens) {
		return &access.Identity{Principal: fleetPrincipal, Method: access.MethodFleetToken, Fleet: true}, nil
	}
	return nil, nil //nolint:nilnil // another caller
}

func (n *node) openFleetClient() (*clientv3.Client, error) {
	e := n.cfg.Coordinator.Etcd
	o := etcdconn.Options{
		Endpoints: n.cfg.FleetEndpoints(), Username: e.Username, Password: e.Password,
		RequestTimeout: e.DialTimeout.Std(), DialOptions: n.environment.dialOptions(nil), Logger: n.log.Named("fleet"),
	}
	if n.secrets.etcd != nil {
		o.TLS, o.Credentials = n.secrets.etcd.Dial(), n.secrets.etcd.Credentials(nil)
	}
	return etcdconn.New(o)
}

func (n *node) closeFleet() error {
	if n.fleetClient == nil {
		return nil
	}
	if err := n.fleetClient.Close(); err != nil {
		return fmt.Errorf("close the client of the fleet: %w", err)
	}
	return nil
}

// loadMeter measures the load of the pair. The publish rate is the average since the previous call.
type loadMeter struct {
	n         *node
	at        time.Time
	published uint64
}

func (m *loadMeter) load() fleet.Load {
	stats, err := m.n.store.Stats()
	room, roomErr := m.n.store.Room()
	if err != nil || roomErr != nil {
		return fleet.Load{} // failures of the store are reported elsewhere
	}
	mark := uint64(m.n.settings.Live().Disk.LowWatermark.Bytes())
	free := room.FreeBytes + room.PageBytes + room.PendingBytes
	l := fleet.Load{
		Queues: stats.Queues, StoredBytes: stats.MessageBytes, FreeBytes: free - min(free, mark+room.TailBytes),
	}
	now, published := time.Now(), stats.Counts.Published
	if took := now.Sub(m.at).Seconds(); !m.at.IsZero() && took > 0 && published >= m.published {
		l.PublishRate = float64(published-m.published) / took
	}
	m.at, m.published = now, published
	return l
}

// capacity returns the size of the filesystem of the store, in bytes; 0 if it is unknown.
func (n *node) capacity() uint64 {
	stats, err := n.store.Stats()
	if err != nil {
		return 0 // failures of the store are reported elsewhere
	}
	return stats.DiskTotal
}

// fleetStatus returns the membership in a fleet, for the status, the conditions and the metrics. It returns nil if
// the pair belongs to no fleet and fleet.pair is not set.
func (n *node) fleetStatus() *conditions.Fleet {
	if n.fleet == nil {
		st := query.Fleet(n.store)
		if !st.Member() {
			return nil
		}
		return &conditions.Fleet{
			Pair: st.Pair, ID: st.ID.String(),
			Mismatch: fmt.Sprintf("fleet.pair is not set, but the pair is a member as %s", st.Pair),
		}
	}
	st := n.fleet.Status()
	problems := st.Problems()
	out := &conditions.Fleet{
		Pair: cmp.Or(st.Log.Pair, st.Pair), Current: st.Directory.Current, Pairs: st.Pairs, Queues: st.Directory.Queues,
		Unavailable: problems.Unavailable, Lost: problems.Lost, Conflict: problems.Conflict, Mismatch: problems.Mismatch,
	}
	if st.Log.Member() {
		out.ID = st.Log.ID.String()
	}
	moves := n.mover.Stats()
	out.Fenced, out.Stuck = moves.Fenced, moves.Stuck
	out.Moves = &conditions.FleetMoves{
		FencedQueues: moves.FencedQueues, Done: moves.Done, Canceled: moves.NotMoved, CopiedBytes: moves.CopiedBytes,
	}
	if moves.Phases != nil {
		out.Moves.Phases = map[string]int{}
		for phase := mover.PhaseWaiting; phase < mover.PhaseDone; phase++ {
			out.Moves.Phases[phase.String()] = moves.Phases[phase]
		}
	}
	return out
}
