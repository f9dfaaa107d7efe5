// SPDX-License-Identifier: Apache-2.0

//go:build deep

package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/test/cluster"
)

// startNet is like start, but with each node in a separate network namespace, in which packets can be dropped.
func startNet(t *testing.T) *cluster.Pair {
	t.Helper()
	network, err := cluster.NewNet(t.Context())
	if errors.Is(err, cluster.ErrNoNet) {
		missingFeature(t, needsNetns, "%v", err)
	}
	require.NoError(t, err)
	return start(t, cluster.Options{Net: network})
}

// Packets are dropped in one direction, so neither end detects a closed connection. The pair continues to
// acknowledge, with either node as the active, and recovers when packets are no longer dropped. By default, some
// random cases run; LOCKSTEP_MATRIX=all runs all.
func TestNetnsOneWayDrops(t *testing.T) {
	s := seed(t)
	p := startNet(t)
	type drop struct {
		name  string
		begin func(ctx context.Context, active, standby *cluster.Node) error
		// mayBlock is true if the active's swap that drops its standby may be applied without a response. Then the standby
		// cannot take over, and the active must not acknowledge (INV-8) until packets are no longer dropped.
		mayBlock bool
	}
	drops := []drop{
		{"active to standby", func(ctx context.Context, active, _ *cluster.Node) error {
			return p.DropBetween(ctx,
				active)
		}, false},
		{"standby to active", func(ctx context.Context, _, standby *cluster.Node) error {
			return p.DropBetween(ctx,
				standby)
		}, false},
		{"between the nodes", func(ctx context.Context, active, standby *cluster.Node) error {
			return errors.Join(p.DropBetween(ctx, active), p.DropBetween(ctx, standby))
		}, false},
		{"active to etcd", func(ctx context.Context, active, _ *cluster.Node) error {
			return p.DropToEtcd(ctx,
				active)
		}, false},
		{"etcd to active", func(ctx context.Context, active, _ *cluster.Node) error {
			return p.DropFromEtcd(ctx,
				active)
		}, false},
		{"standby to etcd", func(ctx context.Context, _, standby *cluster.Node) error {
			return p.DropToEtcd(ctx,
				standby)
		}, false},
		{"etcd to standby", func(ctx context.Context, _, standby *cluster.Node) error {
			return p.DropFromEtcd(ctx,
				standby)
		}, false},
		{"active to all", func(ctx context.Context, active, _ *cluster.Node) error {
			return errors.Join(p.DropBetween(ctx, active), p.DropToEtcd(ctx, active))
		}, false},
		{"all to active", func(ctx context.Context, active, standby *cluster.Node) error {
			return errors.Join(p.DropBetween(ctx, standby), p.DropFromEtcd(ctx, active))
		}, true},
	}
	if os.Getenv("LOCKSTEP_MATRIX") != "all" {
		rng := rand.New(rand.NewPCG(s, 6))
		rng.Shuffle(len(drops), func(i, k int) { drops[i], drops[k] = drops[k], drops[i] })
		drops = drops[:3]
	}
	w := work(t, p, cluster.WorkloadOptions{Seed: s})
	for _, d := range drops {
		t.Run(d.name, func(t *testing.T) {
			active, standby := inSync(t, p)
			acked(t, w)
			require.NoError(t, d.begin(limited(t), active, standby))
			<-time.After(faultTime) // duration of the fault: longer than every timeout
			if !d.mayBlock {
				acked(t, w)
			}
			require.NoError(t, p.HealNet(limited(t)))
			inSync(t, p)
			acked(t, w)
		})
	}
	verify(t, p, w)
}

// All packets sent by the active are dropped, but it receives all packets. The standby takes over, and the old active
// acknowledges nothing.
func TestNetnsActiveUnreachable(t *testing.T) {
	p := startNet(t)
	messages := newQueue(t, p, "stray")
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	old, next := inSync(t, p)
	acked(t, w)
	is := eventsOf(t, next)
	require.NoError(t, p.DropBetween(limited(t), old))
	require.NoError(t, p.DropToEtcd(limited(t), old))
	since := w.History().Now()
	took := ackedSince(t, w, since, old)
	t.Logf("until the next acknowledged publish: %v", took)
	is.takeovers(silent()...)
	err := sideLoad{old, "stray"}.publish(limited(t))
	require.Contains(t, []codes.Code{codes.Unavailable, codes.FailedPrecondition}, status.Code(err),
		"an isolated node acknowledged a write: %v", err)
	require.NoError(t, p.HealNet(limited(t)))
	verify(t, p, w)
	require.Zero(t, messages())
}
