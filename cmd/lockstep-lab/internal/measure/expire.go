// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

const (
	// expireBound is how long the messages may take to be removed.
	expireBound = 15 * time.Minute
	// expireLook is how often it is looked how many are left.
	expireLook = 50 * time.Millisecond
	// checkpointEvery is how often checkpoints are forced in their phase.
	checkpointEvery = time.Second
)

// How messages expire, in ExpireOptions.By.
const (
	ExpireByMessage = "message" // each says when
	ExpireByQueue   = "queue"   // their queue gets a TTL
)

// ExpireOptions say what expires, and what is published meanwhile.
type ExpireOptions struct {
	// Messages that expire, with bodies of ExpiringBytes, and By what.
	Messages, ExpiringBytes int
	By                      string
	// Fill is how long publishing them may take, when each says its time: it is the end of this, and of what is
	// measured before.
	Fill time.Duration
	// SizeBytes of a message that is published meanwhile, PerSecond how many, and Publishers by how many, each of which
	// waits for its answers.
	SizeBytes, PerSecond, Publishers int
	// Phase is for how long it is measured that nothing else happens, before and after, and with checkpoints.
	Phase time.Duration
}

// ExpireResult is what became of it. Latencies are in milliseconds, from the time at which a message was due.
type ExpireResult struct {
	Workload  string `json:"workload"`
	Round     int    `json:"round"`
	Setup     string `json:"setup"`
	Sync      string `json:"sync,omitempty"`
	By        string `json:"by"`
	Messages  int    `json:"messages"`
	SizeBytes int    `json:"size_bytes"`
	PerSecond int    `json:"per_second"`
	// Before and After: nothing else happens. Checkpoints: each node is told to write one each second. Expiring: from
	// when the messages are over until the last of them is removed.
	Before      ExpirePhase `json:"before"`
	Checkpoints ExpirePhase `json:"checkpoints"`
	Expiring    ExpirePhase `json:"expiring"`
	After       ExpirePhase `json:"after"`
	// ExpiredRate is how many messages were removed in a second.
	ExpiredRate float64 `json:"expired_per_s"`
	// P50Ratio and P99Ratio are those while messages expire, in the mean of those before and after; CheckpointP99Ratio
	// is that with checkpoints.
	P50Ratio           float64 `json:"p50_ratio"`
	P99Ratio           float64 `json:"p99_ratio"`
	CheckpointP99Ratio float64 `json:"checkpoint_p99_ratio"`
}

// ExpirePhase is one phase.
type ExpirePhase struct {
	Latencies

	// Written is how many checkpoints the active wrote in it; 0 if it is not known.
	Written int `json:"checkpoints_written"`
	// CPU time of all processes, in seconds; 0 if it is not known.
	CPU float64 `json:"cpu_s"`
}

// expiring is one run.
type expiring struct {
	ExpireOptions
	t      bench.Target
	load   *steadyLoad
	queue  string // of the messages that expire
	result ExpireResult
}

// Expire fills a queue, publishes to another one at a steady rate, and has all that is in the first one expire.
func Expire(ctx context.Context, t bench.Target, o ExpireOptions) (ExpireResult, error) {
	names := bench.QueueNames(2)
	x := &expiring{ExpireOptions: o, t: t, queue: names[1], result: ExpireResult{
		Workload: "expire", Setup: t.Setup, Sync: t.Sync, By: o.By, Messages: o.Messages, SizeBytes: o.SizeBytes,
		PerSecond: o.PerSecond,
	}}
	err := bench.WithQueues(ctx, t.Client, names, func() error {
		over, err := x.fill(ctx)
		if err != nil {
			return err
		}
		return publishSteadily(ctx, t, steady{
			queue: names[0], sizeBytes: o.SizeBytes, perSecond: o.PerSecond, publishers: o.Publishers,
		}, func(ctx context.Context, p *steadyLoad) error {
			x.load = p
			return x.measure(ctx, over)
		})
	})
	return x.result, err
}

// Fill publishes the messages that will expire, and says when they do if each of them says so.
func (x *expiring) fill(ctx context.Context) (over time.Time, err error) {
	if x.By == ExpireByMessage {
		over = time.Now().Add(x.Fill + x.warm() + 2*x.Phase).Truncate(time.Millisecond)
	}
	producers, err := bench.NewProducers(ctx, x.t.Client, 2)
	if err != nil {
		return over, err
	}
	_, err = bench.PublishAll(ctx, producers, []string{x.queue}, bench.PublishOptions{
		Messages: x.Messages, SizeBytes: x.ExpiringBytes, Producers: len(producers), Window: 1000, Queues: 1,
		ExpiresAt: over,
	})
	for _, p := range producers {
		err = errors.Join(err, p.Close())
	}
	if err != nil {
		return over, err
	}
	return over, x.checkpoint(ctx)
}

// warm is how long messages are published until connections and caches are warm.
func (x *expiring) warm() time.Duration { return x.Phase / 4 }

// measure goes through the phases. over is when the messages expire; 0 if their queue is told.
func (x *expiring) measure(ctx context.Context, over time.Time) error {
	if err := letPass(ctx, x.warm()); err != nil {
		return err
	}
	if left := time.Until(over); !over.IsZero() && left < 2*x.Phase {
		return fmt.Errorf("bench: to publish %d messages took %s longer than --fill: it has to be longer", x.Messages,
			(2*x.Phase - left).Round(time.Second))
	}
	if err := x.phase(ctx, &x.result.Before, func() error { return letPass(ctx, x.Phase) }); err != nil {
		return err
	}
	if err := x.phase(ctx, &x.result.Checkpoints, func() error { return x.checkpoints(ctx) }); err != nil {
		return err
	}
	if err := letPass(ctx, time.Until(over)); err != nil {
		return err
	}
	if err := x.phase(ctx, &x.result.Expiring, func() error { return x.expire(ctx) }); err != nil {
		return err
	}
	if err := x.phase(ctx, &x.result.After, func() error { return letPass(ctx, x.Phase) }); err != nil {
		return err
	}
	r := &x.result
	r.ExpiredRate = float64(r.Messages) / max(r.Expiring.Seconds, 1e-3)
	r.P50Ratio = r.Expiring.P50 / max((r.Before.P50+r.After.P50)/2, 1e-3)
	alone := max((r.Before.P99+r.After.P99)/2, 1e-3)
	r.P99Ratio, r.CheckpointP99Ratio = r.Expiring.P99/alone, r.Checkpoints.P99/alone
	return nil
}

// phase measures what is published while fn runs.
func (x *expiring) phase(ctx context.Context, p *ExpirePhase, fn func() error) error {
	before, err := x.checkpointsWritten(ctx)
	if err != nil {
		return err
	}
	m := bench.NewMeter(x.t.Processes, x.t.Dir)
	x.load.next()
	if err := fn(); err != nil {
		return err
	}
	p.Latencies = x.load.next()
	for _, u := range m.Used() {
		p.CPU += u.CPU
	}
	after, err := x.checkpointsWritten(ctx)
	p.Written = int(after - before)
	return err
}

// checkpointsWritten is the number of the active's last checkpoint; 0 of nodes that were not started for this.
func (x *expiring) checkpointsWritten(ctx context.Context) (uint64, error) {
	if x.t.Pair == nil {
		return 0, nil
	}
	s, err := storeStatus(ctx, x.t)
	return s.GetCheckpoint(), err
}

// checkpoints has checkpoints written during a phase.
func (x *expiring) checkpoints(ctx context.Context) error {
	for end := time.Now().Add(x.Phase); time.Now().Before(end); {
		if err := x.checkpoint(ctx); err != nil {
			return err
		}
		if err := letPass(ctx, min(checkpointEvery, time.Until(end))); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint has each node that is known write one: of nodes that run already, the active.
func (x *expiring) checkpoint(ctx context.Context) error {
	var addresses []string
	if x.t.Pair == nil {
		active, err := x.t.Client.WaitActive(ctx)
		if err != nil {
			return err
		}
		addresses = []string{active.Address}
	} else {
		for _, n := range x.t.Pair.Nodes {
			addresses = append(addresses, n.Address)
		}
	}
	for _, address := range addresses {
		node, err := x.t.Client.Node(address)
		if err != nil {
			return err
		}
		if _, err := node.Checkpoint(ctx); err != nil {
			return err
		}
	}
	return nil
}

// expire returns when the last message is removed.
func (x *expiring) expire(ctx context.Context) error {
	if x.By == ExpireByQueue {
		if _, err := x.t.Client.AlterQueue(ctx, x.queue, client.QueueConfig{TTL: time.Millisecond}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, expireBound,
		fmt.Errorf("bench: the messages were not removed in %s", expireBound))
	defer cancel()
	for {
		q, err := x.t.Client.GetQueue(ctx, x.queue)
		if err != nil {
			return err
		}
		if q.Messages == 0 {
			return nil
		}
		if err := letPass(ctx, expireLook); err != nil {
			return err
		}
	}
}
