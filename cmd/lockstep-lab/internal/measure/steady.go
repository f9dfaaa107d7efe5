// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

// This file publishes at a steady rate while something else happens, and measures phases of that apart.

// slotTime is how finely slow moments are told apart, and slowest how many of them are told.
const (
	slotTime = 100 * time.Millisecond
	slowest  = 5
)

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
	step  string    // what happens now, as the measurement calls it
	slots []Slow    // the longest latency in each slotTime
}

// Slow is a moment in which messages took long.
type Slow struct {
	// At is when the first of them was answered, in seconds from the begin of the phase, and P100 the longest latency.
	At   float64 `json:"at_s"`
	P100 float64 `json:"max_ms"`
	// Step of what was going on, where it has several.
	Step string `json:"step,omitempty"`
}

// during names what happens from now on.
func (p *steadyLoad) during(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step = step
}

// slowMoments are the slowest ones of the phase that has just ended or goes on, the slowest first.
func (p *steadyLoad) slowMoments() []Slow {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.SortedFunc(slices.Values(p.slots), func(a, b Slow) int { return cmp.Compare(b.P100, a.P100) })
	return all[:min(len(all), slowest)]
}

// next ends a phase and begins another.
func (p *steadyLoad) next() Latencies {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, d, slow := p.phase, time.Since(p.since), p.slow
	p.phase, p.since, p.slow, p.slots = bench.NewHistogram(), time.Now(), nil, nil
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return Latencies{
		Messages: h.TotalCount(), Seconds: d.Seconds(), P50: ms(h.ValueAtQuantile(50)), P99: ms(h.ValueAtQuantile(99)),
		P999: ms(h.ValueAtQuantile(99.9)), Max: ms(h.Max()), BySecond: slow,
	}
}

// Took notes a latency.
func (p *steadyLoad) Took(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	bench.Record(p.phase, d)
	second := int(time.Since(p.since) / time.Second)
	for len(p.slow) <= second {
		p.slow = append(p.slow, 0)
	}
	ms, at := float64(d.Microseconds())/1000, time.Since(p.since).Seconds()
	p.slow[second] = max(p.slow[second], ms)
	last := len(p.slots) - 1
	switch {
	case last < 0 || at-p.slots[last].At > slotTime.Seconds():
		p.slots = append(p.slots, Slow{At: at, P100: ms, Step: p.step})
	case ms > p.slots[last].P100:
		p.slots[last].P100, p.slots[last].Step = ms, p.step
	}
}

// steady says what is published.
type steady struct {
	queue                            string
	sizeBytes, perSecond, publishers int
}

// publishSteadily publishes while fn runs. When publishing fails, the context of fn ends and the error is that.
func publishSteadily(
	ctx context.Context, t bench.Target, o steady, fn func(context.Context, *steadyLoad) error,
) error {
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p := &steadyLoad{phase: bench.NewHistogram(), since: time.Now()}
	producers, err := bench.NewProducers(ctx, t.Client, o.publishers)
	if err != nil {
		return err
	}
	interval := time.Second * time.Duration(o.publishers) / time.Duration(o.perSecond)
	var running sync.WaitGroup
	for i, producer := range producers {
		running.Go(func() {
			m := client.Message{Body: bench.Body(o.sizeBytes)}
			first := time.Now().Add(interval * time.Duration(i) / time.Duration(o.publishers))
			if err := p.run(runCtx, producer, o.queue, m, first, interval); err != nil {
				stop(err)
			}
		})
	}
	err = fn(runCtx, p)
	if cause := context.Cause(runCtx); cause != nil {
		err = cause // why nothing is published any more says more
	}
	stop(nil)
	running.Wait()
	for _, producer := range producers {
		err = errors.Join(err, producer.Close())
	}
	return err
}

// run publishes one message each interval, from first on, until ctx ends. A message that is late because the one before
// it took long counts from when it was due.
func (p *steadyLoad) run(
	ctx context.Context, producer *client.Producer, queue string, m client.Message, first time.Time,
	interval time.Duration,
) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for due := first; ; due = due.Add(interval) {
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
		p.Took(time.Since(due))
	}
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
func fillStore(ctx context.Context, t bench.Target, queue string, storeBytes int64) error {
	producers, err := bench.NewProducers(ctx, t.Client, 2)
	if err != nil {
		return err
	}
	_, err = bench.PublishAll(ctx, producers, []string{queue}, bench.PublishOptions{
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
