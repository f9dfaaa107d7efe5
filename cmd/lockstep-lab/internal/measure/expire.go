// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

const (
	// expireBound is the time limit for the removal of all messages.
	expireBound        = 15 * time.Minute
	expirePollInterval = 50 * time.Millisecond
	checkpointEvery    = time.Second
)

// Values of ExpireOptions.By.
const (
	ExpireByMessage   = "message"    // each message has an expiry time
	ExpireByQueue     = "queue"      // the queue gets a TTL, and all of its messages expire
	ExpireByMessageID = "message-id" // only the message IDs expire, at the end of the queue's dedup window
)

// ExpireOptions configures an expiry measurement.
type ExpireOptions struct {
	// Messages is the number of messages that expire, ExpiringBytes the size of their bodies.
	Messages, ExpiringBytes int
	// By is ExpireByMessage, ExpireByQueue or ExpireByMessageID.
	By string
	// Fill is the maximum time for publishing the messages, except with ExpireByQueue. They expire after Fill and the
	// phases before the expiry.
	Fill time.Duration
	// SizeBytes, PerSecond (in total) and Publishers define the concurrent load. Each publisher waits for its
	// acknowledgements.
	SizeBytes, PerSecond, Publishers int
	// Phase is the duration of each phase without expiry.
	Phase time.Duration
}

// ExpireResult is the result of Expire. Latencies are in milliseconds, from the time at which a message was due.
type ExpireResult struct {
	Workload  string `json:"workload"`
	Round     int    `json:"round"`
	Setup     string `json:"setup"`
	Sync      string `json:"sync,omitempty"`
	By        string `json:"by"`
	Messages  int    `json:"messages"`
	SizeBytes int    `json:"size_bytes"`
	PerSecond int    `json:"per_second"`
	// Before and After contain only the load. During Checkpoints, the nodes repeatedly write checkpoints. Expiring ends
	// when the last expired message is removed.
	Before      ExpirePhase `json:"before"`
	Checkpoints ExpirePhase `json:"checkpoints"`
	Expiring    ExpirePhase `json:"expiring"`
	After       ExpirePhase `json:"after"`
	// ExpiredRate is the number of messages removed per second.
	ExpiredRate float64 `json:"expired_per_s"`
	// Ratios of latencies to the mean of those of Before and After.
	P50Ratio           float64 `json:"p50_ratio"`
	P99Ratio           float64 `json:"p99_ratio"`
	CheckpointP99Ratio float64 `json:"checkpoint_p99_ratio"`
}

// ExpirePhase is the result of one phase.
type ExpirePhase struct {
	Latencies

	// Written is the number of checkpoints written by the active; 0 if unknown.
	Written int `json:"checkpoints_written"`
	// CPU is the CPU time of all processes; 0 if unknown.
	CPU float64 `json:"cpu_s"`
}

type expiring struct {
	ExpireOptions
	t      bench.Target
	load   *steadyLoad
	queue  string // contains the messages that expire
	result ExpireResult
}

// Expire fills a queue, publishes to another queue at a constant rate, and then expires all messages of the first queue
// or, with ExpireByMessageID, their message IDs.
func Expire(ctx context.Context, t bench.Target, o ExpireOptions) (ExpireResult, error) {
	names := bench.QueueNames(2)
	x := &expiring{ExpireOptions: o, t: t, queue: names[1], result: ExpireResult{
		Workload: "expire", Setup: t.Setup, Sync: t.Sync, By: o.By, Messages: o.Messages, SizeBytes: o.SizeBytes,
		PerSecond: o.PerSecond,
	}}
	err := bench.WithQueues(ctx, t.Client, names, func() error {
		expiry, err := x.fill(ctx)
		if err != nil {
			return err
		}
		return publishSteadily(ctx, t, steady{
			queue: names[0], sizeBytes: o.SizeBytes, perSecond: o.PerSecond, publishers: o.Publishers,
		}, func(ctx context.Context, p *steadyLoad) error {
			x.load = p
			return x.measure(ctx, expiry)
		})
	})
	return x.result, err
}

// fill publishes the messages that expire. It returns the expiry time of the messages or of their IDs; zero if their
// queue gets a TTL.
func (x *expiring) fill(ctx context.Context) (expiry time.Time, err error) {
	o := bench.PublishOptions{Messages: x.Messages, SizeBytes: x.ExpiringBytes, Producers: 2, Window: 1000, Queues: 1}
	window := x.Fill + x.warm() + 2*x.Phase
	switch x.By {
	case ExpireByMessage:
		expiry = time.Now().Add(window).Truncate(time.Millisecond)
		o.ExpiresAt = expiry
	case ExpireByMessageID:
		_, err := admin.New(x.t.Client).AlterQueue(ctx, x.queue, admin.QueueConfig{DedupWindow: window})
		if err != nil {
			return expiry, err
		}
		expiry = time.Now().Add(window)
		o.MessageIDs = true
	}
	_, err = bench.PublishNew(ctx, x.t.Client, []string{x.queue}, o)
	if err != nil {
		return expiry, err
	}
	return expiry, x.checkpoint(ctx)
}

// warm returns the time for warming up connections and caches.
func (x *expiring) warm() time.Duration { return x.Phase / 4 }

// measure runs all phases. expiry is the expiry time returned by fill.
func (x *expiring) measure(ctx context.Context, expiry time.Time) error {
	if err := elapse(ctx, x.warm()); err != nil {
		return err
	}
	if left := time.Until(expiry); !expiry.IsZero() && left < 2*x.Phase {
		return fmt.Errorf("bench: publishing %d messages took %s longer than --fill: increase it", x.Messages,
			(2*x.Phase - left).Round(time.Second))
	}
	if err := x.phase(ctx, &x.result.Before, func() error { return elapse(ctx, x.Phase) }); err != nil {
		return err
	}
	if err := x.phase(ctx, &x.result.Checkpoints, func() error { return x.checkpoints(ctx) }); err != nil {
		return err
	}
	if err := elapse(ctx, time.Until(expiry)); err != nil {
		return err
	}
	if err := x.phase(ctx, &x.result.Expiring, func() error { return x.expire(ctx) }); err != nil {
		return err
	}
	if err := x.phase(ctx, &x.result.After, func() error { return elapse(ctx, x.Phase) }); err != nil {
		return err
	}
	r := &x.result
	r.ExpiredRate = float64(r.Messages) / max(r.Expiring.Seconds, 1e-3)
	r.P50Ratio = r.Expiring.P50 / max((r.Before.P50+r.After.P50)/2, 1e-3)
	alone := max((r.Before.P99+r.After.P99)/2, 1e-3)
	r.P99Ratio, r.CheckpointP99Ratio = r.Expiring.P99/alone, r.Checkpoints.P99/alone
	return nil
}

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

// checkpointsWritten returns the number of the active's last checkpoint; 0 if the nodes were already running.
func (x *expiring) checkpointsWritten(ctx context.Context) (uint64, error) {
	if x.t.Pair == nil {
		return 0, nil
	}
	s, err := storeStatus(ctx, x.t)
	return s.GetCheckpoint(), err
}

func (x *expiring) checkpoints(ctx context.Context) error {
	for end := time.Now().Add(x.Phase); time.Now().Before(end); {
		if err := x.checkpoint(ctx); err != nil {
			return err
		}
		if err := elapse(ctx, min(checkpointEvery, time.Until(end))); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint forces a checkpoint on each node, or only on the active if the nodes were already running.
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
		node, err := admin.New(x.t.Client).Node(address)
		if err != nil {
			return err
		}
		if _, err := node.Checkpoint(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (x *expiring) expire(ctx context.Context) error {
	if x.By == ExpireByQueue {
		if _, err := admin.New(x.t.Client).AlterQueue(ctx, x.queue, admin.QueueConfig{TTL: time.Millisecond}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, expireBound,
		fmt.Errorf("bench: the messages were not removed in %s", expireBound))
	defer cancel()
	for {
		q, err := admin.New(x.t.Client).GetQueue(ctx, x.queue)
		if err != nil {
			return err
		}
		if x.By == ExpireByMessageID && q.MessageIDs == 0 || q.Messages == 0 {
			return nil
		}
		if err := elapse(ctx, expirePollInterval); err != nil {
			return err
		}
	}
}
