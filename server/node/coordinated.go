// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/observe/metrics"
)

// measured returns the coordinator for the failover machine. If the node serves metrics, the coordinator is wrapped
// to measure the latency of requests.
func (n *node) measured() failover.Coordinator {
	if n.latencies == nil {
		return n.coordinator
	}
	return &measuredCoordinator{n.coordinator, n.latencies}
}

type measuredCoordinator struct {
	failover.Coordinator

	latencies *metrics.Latencies
}

// took records the latency of a request and whether the request failed. A conflict or a missing record is not a
// failure.
func (c *measuredCoordinator) took(op metrics.Operation, start time.Time, err error) {
	answered := err == nil || errors.Is(err, failover.ErrConflict) || errors.Is(err, failover.ErrNoRecord)
	c.latencies.Coordinated(op, time.Since(start), answered)
}

func (c *measuredCoordinator) Load(ctx context.Context) (failover.Record, failover.Revision, error) {
	start := time.Now()
	r, at, err := c.Coordinator.Load(ctx)
	c.took(metrics.LoadRecord, start, err)
	return r, at, err
}

func (c *measuredCoordinator) Swap(
	ctx context.Context, expect failover.Revision, next failover.Record,
) (failover.Revision, error) {
	start := time.Now()
	at, err := c.Coordinator.Swap(ctx, expect, next)
	c.took(metrics.SwapRecord, start, err)
	return at, err
}

func (c *measuredCoordinator) LoadMark(ctx context.Context) (failover.Mark, error) {
	start := time.Now()
	m, err := c.Coordinator.LoadMark(ctx)
	c.took(metrics.LoadMark, start, err)
	return m, err
}

func (c *measuredCoordinator) WriteMark(ctx context.Context, m failover.Mark) (failover.Mark, error) {
	start := time.Now()
	before, err := c.Coordinator.WriteMark(ctx, m)
	c.took(metrics.WriteMark, start, err)
	return before, err
}
