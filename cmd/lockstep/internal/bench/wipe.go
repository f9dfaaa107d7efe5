// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/harness"
)

// wipeBound is how long a wiped standby may take to be in sync again.
const wipeBound = 30 * time.Minute

// fillBytes is the size of the messages that a store is filled with.
const fillBytes = 4096

// WipeOptions say what is in the store, and what is published meanwhile.
type WipeOptions struct {
	// StoreBytes of bodies that are in the store.
	StoreBytes int64
	// SizeBytes of a message that is published meanwhile, PerSecond how many, and Publishers by how many, each of which
	// waits for its answers.
	SizeBytes, PerSecond, Publishers int
	// Before is for how long it is measured with both nodes, first, and again at the end.
	Before time.Duration
	// Settle is how long nothing is done after the store was filled: a disk that is limited in what it may write has to
	// recover.
	Settle time.Duration
}

// WipeResult is what became of it. Latencies are in milliseconds, from the time at which a message was due; MB are 10^6
// bytes.
type WipeResult struct {
	Workload  string  `json:"workload"`
	Sync      string  `json:"sync"`
	StoreMB   float64 `json:"store_mb"`
	SizeBytes int     `json:"size_bytes"`
	PerSecond int     `json:"per_second"`
	// Before, from the end of the standby until it was in sync again, and after that.
	Before Latencies `json:"before"`
	While  Latencies `json:"while"`
	After  Latencies `json:"after"`
	// P99Ratio is the p99 while, in those before.
	P99Ratio float64 `json:"p99_ratio"`
	// SnapshotMB is what was copied, in SnapshotSeconds, with its installation.
	SnapshotMB      float64 `json:"snapshot_mb"`
	SnapshotSeconds float64 `json:"snapshot_s"`
	SnapshotRate    float64 `json:"snapshot_mb_per_s"`
	// InSyncSeconds is the time from the start of the wiped standby until it was in sync.
	InSyncSeconds float64 `json:"in_sync_s"`
}

// Latencies of a phase.
type Latencies struct {
	Messages int64   `json:"messages"`
	Seconds  float64 `json:"seconds"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	P999     float64 `json:"p999_ms"`
	Max      float64 `json:"max_ms"`
	// BySecond has the longest latency of what was answered in each second of the phase.
	BySecond []float64 `json:"max_ms_by_second"`
}

// steadyLoad publishes at a steady rate, and measures the phases apart.
type steadyLoad struct {
	mu    sync.Mutex // guards what follows
	phase *hdrhistogram.Histogram
	since time.Time
	slow  []float64 // the longest latency in each second since then, in milliseconds
}

// next ends a phase and begins another.
func (p *steadyLoad) next() Latencies {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, d, slow := p.phase, time.Since(p.since), p.slow
	p.phase, p.since, p.slow = newHistogram(), time.Now(), nil
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return Latencies{
		Messages: h.TotalCount(), Seconds: d.Seconds(), P50: ms(h.ValueAtQuantile(50)), P99: ms(h.ValueAtQuantile(99)),
		P999: ms(h.ValueAtQuantile(99.9)), Max: ms(h.Max()), BySecond: slow,
	}
}

// took notes a latency.
func (p *steadyLoad) took(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	record(p.phase, d)
	second := int(time.Since(p.since) / time.Second)
	for len(p.slow) <= second {
		p.slow = append(p.slow, 0)
	}
	p.slow[second] = max(p.slow[second], float64(d.Microseconds())/1000)
}

// run publishes one message each interval until ctx ends. A message that is late because the one before it took long
// counts from when it was due.
func (p *steadyLoad) run(
	ctx context.Context, producer *client.Producer, queue string, m client.Message, interval time.Duration,
) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for due := time.Now(); ; due = due.Add(interval) {
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if _, err := producer.Publish(ctx, queue, m); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("publish: %w", err)
		}
		p.took(time.Since(due))
	}
}

// Wipe fills the store, publishes at a steady rate, and takes the standby's disk away: it is killed, its data is
// removed, and it is started again at once.
func Wipe(ctx context.Context, t Target, o WipeOptions) (WipeResult, error) {
	r := WipeResult{Workload: "wipe", Sync: t.Sync, SizeBytes: o.SizeBytes, PerSecond: o.PerSecond}
	names := queueNames(2)
	err := withQueues(ctx, t.Client, names, func() error {
		if err := fillStore(ctx, t, names[0], o.StoreBytes); err != nil {
			return err
		}
		r.StoreMB = float64(o.StoreBytes) / 1e6
		if err := letPass(ctx, o.Settle); err != nil {
			return err
		}
		runCtx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		p := &steadyLoad{phase: newHistogram(), since: time.Now()}
		producers, err := newProducers(ctx, t.Client, o.Publishers)
		if err != nil {
			return err
		}
		var running sync.WaitGroup
		for _, producer := range producers {
			running.Go(func() {
				interval := time.Second * time.Duration(o.Publishers) / time.Duration(o.PerSecond)
				if err := p.run(runCtx, producer, names[1], client.Message{Body: body(o.SizeBytes)},
					interval); err != nil {
					stop(err)
				}
			})
		}
		err = r.wipe(runCtx, t, p, o)
		if cause := context.Cause(runCtx); cause != nil {
			err = cause // why nothing is published any more says more
		}
		stop(nil)
		running.Wait()
		for _, producer := range producers {
			err = errors.Join(err, producer.Close())
		}
		return err
	})
	return r, err
}

// wipe is what is done while messages are published.
func (r *WipeResult) wipe(ctx context.Context, t Target, p *steadyLoad, o WipeOptions) error {
	if err := letPass(ctx, o.Before/4); err != nil { // until connections and caches are warm
		return err
	}
	p.next()
	if err := letPass(ctx, o.Before); err != nil {
		return err
	}
	active, err := activeNode(ctx, t)
	if err != nil {
		return err
	}
	standby := t.Pair.Other(active)
	r.Before = p.next()
	if err := standby.Kill(); err != nil {
		return err
	}
	// To delete gigabytes holds up everything else on the same filesystem for half a second, the coordinator as well:
	// that is not what a lost disk does to the other machines.
	lost := standby.DataDir() + ".lost"
	if err := os.Rename(standby.DataDir(), lost); err != nil {
		return fmt.Errorf("wipe the standby: %w", err)
	}
	defer func() { _ = os.RemoveAll(lost) }() // it is in the benchmark's own directory
	started := time.Now()
	if err := standby.Start(); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, wipeBound)
	defer cancel()
	if err := t.Pair.WaitReady(limit, nil); err != nil {
		return err
	}
	r.InSyncSeconds = time.Since(started).Seconds()
	r.While = p.next()
	if err := letPass(ctx, o.Before); err != nil {
		return err
	}
	r.After = p.next()
	r.P99Ratio = r.While.P99 / max(r.Before.P99, 1e-3)
	return r.readSnapshot(standby, started)
}

// letPass lets time pass.
func letPass(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// fillStore publishes until the store holds so much, and has both nodes write it to pages.
func fillStore(ctx context.Context, t Target, queue string, storeBytes int64) error {
	producers, err := newProducers(ctx, t.Client, 2)
	if err != nil {
		return err
	}
	_, err = publishAll(ctx, producers, []string{queue}, PublishOptions{
		SizeBytes: fillBytes, Messages: int(storeBytes / fillBytes), Producers: len(producers), Window: 500, Queues: 1,
	})
	for _, p := range producers {
		err = errors.Join(err, p.Close())
	}
	if err != nil {
		return err
	}
	for _, n := range t.Pair.Nodes {
		node, err := t.Client.Node(n.Address)
		if err != nil {
			return err
		}
		if _, err := node.Checkpoint(ctx); err != nil {
			return err
		}
	}
	return nil
}

// readSnapshot finds in the standby's own log how much it received, and how long that took.
func (r *WipeResult) readSnapshot(n *harness.Node, since time.Time) error {
	f, err := os.Open(n.LogFile())
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	var began time.Time
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			TS    string `json:"ts"`
			Msg   string `json:"msg"`
			Bytes uint64 `json:"bytes"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue // what a node says to people
		}
		at, err := time.Parse("2006-01-02T15:04:05.000Z0700", line.TS)
		if err != nil || at.Before(since.Add(-time.Second)) {
			continue
		}
		switch line.Msg {
		case "receiving a snapshot":
			began, r.SnapshotMB = at, float64(line.Bytes)/1e6
		case "snapshot installed":
			r.SnapshotSeconds = at.Sub(began).Seconds()
			r.SnapshotRate = r.SnapshotMB / max(r.SnapshotSeconds, 1e-3)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("bench: %s: %w", n.LogFile(), err)
	}
	if r.SnapshotSeconds == 0 {
		return errors.New("bench: the standby came back without a snapshot: the store is so small that the log was " +
			"enough; --store has to be larger")
	}
	return nil
}
