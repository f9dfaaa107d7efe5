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
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

const (
	// slotTime is the resolution of slow periods.
	slotTime = 100 * time.Millisecond
	// slowest is the number of slow periods to report.
	slowest = 5
)

// Latencies contains the latencies of a phase.
type Latencies struct {
	Messages int64   `json:"messages"`
	Seconds  float64 `json:"seconds"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	P999     float64 `json:"p999_ms"`
	Max      float64 `json:"max_ms"`
	// Call is the longest time of a publish, without the delay by previous ones.
	Call float64 `json:"max_call_ms"`
	// BySecond contains the maximum of each second of the phase.
	BySecond []float64 `json:"max_ms_by_second"`
	// Steal is the percentage of the processor time that the hypervisor gave to other virtual machines during the phase;
	// 0 if unknown.
	Steal float64 `json:"steal_percent"`
}

// steadyLoad publishes at a constant rate while other operations run, and measures their phases separately.
type steadyLoad struct {
	mu    sync.Mutex // guards the fields below
	phase *hdrhistogram.Histogram
	since time.Time
	total float64 // processorTime at since
	steal float64
	call  time.Duration
	slow  []float64 // longest latency in each second of the phase, in milliseconds
	step  string    // current step of the operation
	slots []Slow    // longest latency in each slotTime
}

// Slow is a period in which messages were slow.
type Slow struct {
	// At is the time of the first acknowledgement of the period, in seconds since the start of the phase.
	At float64 `json:"at_s"`
	// P100 is the longest latency, in milliseconds.
	P100 float64 `json:"max_ms"`
	Step string  `json:"step,omitempty"`
}

func (p *steadyLoad) during(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step = step
}

func (p *steadyLoad) slowMoments() []Slow {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.SortedFunc(slices.Values(p.slots), func(a, b Slow) int { return cmp.Compare(b.P100, a.P100) })
	return all[:min(len(all), slowest)]
}

// next ends the current phase, returns its latencies, and starts another phase.
func (p *steadyLoad) next() Latencies {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, d, slow := p.phase, time.Since(p.since), p.slow
	call := p.call
	total, steal := processorTime()
	stolen := 100 * (steal - p.steal) / max(total-p.total, 1e-3)
	p.total, p.steal = total, steal
	p.phase, p.since, p.call, p.slow, p.slots = bench.NewHistogram(), time.Now(), 0, nil, nil
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return Latencies{
		Messages: h.TotalCount(), Seconds: d.Seconds(), P50: ms(h.ValueAtQuantile(50)), P99: ms(h.ValueAtQuantile(99)),
		P999: ms(h.ValueAtQuantile(99.9)), Max: ms(h.Max()), BySecond: slow,
		Call: ms(call.Microseconds()), Steal: stolen,
	}
}

// Duration records a latency.
func (p *steadyLoad) Duration(d time.Duration) {
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

// called records the time of a publish.
func (p *steadyLoad) called(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.call = max(p.call, d)
}

type steady struct {
	queue                            string
	sizeBytes, perSecond, publishers int
}

// publishSteadily publishes while fn runs. If publishing fails, the context of fn is canceled, and the error is
// returned.
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
		err = cause // the error of the publisher is more specific
	}
	stop(nil)
	running.Wait()
	for _, producer := range producers {
		err = errors.Join(err, producer.Close())
	}
	return err
}

// run publishes a message per interval until ctx ends. If a message is delayed by the previous one, its latency
// includes the delay.
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
		began := time.Now()
		if _, err := producer.Publish(ctx, queue, m); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("publish: %w", err)
		}
		p.called(time.Since(began))
		p.Duration(time.Since(due))
	}
}

const fillBytes = 4096

func elapse(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// fillStore fills the queue, and writes checkpoints on both nodes.
func fillStore(ctx context.Context, t bench.Target, queue string, storeBytes int64) error {
	if _, err := bench.PublishNew(ctx, t.Client, []string{queue}, bench.PublishOptions{
		SizeBytes: fillBytes, Messages: int(storeBytes / fillBytes), Producers: 2, Window: 500, Queues: 1,
	}); err != nil {
		return err
	}
	for _, n := range t.Pair.Nodes {
		node, err := admin.New(t.Client).Node(n.Address)
		if err != nil {
			return err
		}
		if _, err := node.Checkpoint(ctx); err != nil {
			return err
		}
	}
	return nil
}
