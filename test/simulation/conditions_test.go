// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// Each condition is reported by the node that can detect it, exactly after the delay in the condition's definition, and
// ends when its cause is repaired. The clock is simulated, so minutes take no real time.
func TestConditions(t *testing.T) {
	for _, c := range []struct {
		name          string
		kind          conditions.Kind
		byStandby     bool // the standby reports the condition
		cause, repair func(ctx context.Context, w *world, active, standby *host)
	}{
		{
			name: "the standby was killed", kind: conditions.StandbyAbsent,
			cause:  func(_ context.Context, _ *world, _, standby *host) { standby.kill(false) },
			repair: func(_ context.Context, _ *world, _, standby *host) { standby.restart() },
		},
		{
			name: "only one node is in sync", kind: conditions.OneCopyOnly,
			cause:  func(_ context.Context, _ *world, _, standby *host) { standby.kill(false) },
			repair: func(_ context.Context, _ *world, _, standby *host) { standby.restart() },
		},
		{
			name: "the standby follows but is not in sync", kind: conditions.StandbyCatchingUp,
			cause: func(ctx context.Context, w *world, active, standby *host) {
				w.isolate(active, standby, true)
				for w.reports(ctx, active, conditions.OneCopyOnly) == nil && ctx.Err() == nil {
					sleep(ctx, poll)
				}
				w.store.stopResponding(active.name, true)
				w.isolate(active, standby, false)
				for w.statuses(ctx)[index(w, active)].GetStandby() == nil && ctx.Err() == nil {
					sleep(ctx, poll)
				}
			},
			repair: func(_ context.Context, w *world, active, _ *host) { w.store.stopResponding(active.name, false) },
		},
		{
			name: "the active is unreachable for the standby", kind: conditions.ActiveUnreachable, byStandby: true,
			cause:  func(_ context.Context, w *world, active, standby *host) { w.isolate(active, standby, true) },
			repair: func(_ context.Context, w *world, active, standby *host) { w.isolate(active, standby, false) },
		},
		{
			name: "the coordinator is down", kind: conditions.CoordinatorLost, byStandby: true,
			cause:  func(_ context.Context, w *world, _, _ *host) { w.store.server.SetDown(true) },
			repair: func(_ context.Context, w *world, _, _ *host) { w.store.server.SetDown(false) },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, err := newWorld(1, zap.NewNop())
				require.NoError(t, err)
				w.options.Sync, w.options.MinInSync = always, 1
				for _, h := range w.hosts {
					h.start()
				}
				defer func() { require.NoError(t, w.end()) }()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				require.NoError(t, w.waitInSync(ctx))
				active := w.serving(ctx)
				standby := w.hosts[1-index(w, active)]
				reporter := active
				if c.byStandby {
					reporter = standby
				}
				require.Nil(t, w.reports(ctx, reporter, c.kind))

				c.cause(ctx, w, active, standby)
				start := w.now()
				w.waitReports(ctx, t, reporter, c.kind, true)
				after := conditions.Find(c.kind).After
				require.GreaterOrEqual(t, w.now()-start, after-time.Second, "reported too early")
				require.LessOrEqual(t, w.now()-start, after+5*time.Second, "reported too late")
				c.repair(ctx, w, active, standby)
				w.waitReports(ctx, t, reporter, c.kind, false)
				require.NoError(t, w.waitInSync(ctx))
			})
		})
	}
}

func index(w *world, h *host) int {
	if h == w.hosts[0] {
		return 0
	}
	return 1
}

// reports returns the condition of the given kind that a node reports, or nil.
func (w *world) reports(ctx context.Context, by *host, kind conditions.Kind) *pb.Condition {
	for _, c := range w.statuses(ctx)[index(w, by)].GetConditions() {
		if c.GetKind() == string(kind) {
			return c
		}
	}
	return nil
}

// waitReports waits until a node reports a condition, or no longer reports it.
func (w *world) waitReports(ctx context.Context, t *testing.T, by *host, kind conditions.Kind,
	reported bool,
) *pb.Condition {
	t.Helper()
	c := w.reports(ctx, by, kind)
	for ; (c != nil) != reported && ctx.Err() == nil; c = w.reports(ctx, by, kind) {
		sleep(ctx, time.Second)
	}
	require.NoError(t, ctx.Err(), "%s: want reported: %v", kind, reported)
	return c
}
