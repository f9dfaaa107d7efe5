// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/google/pprof/profile"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

// CapacityOptions configures a capacity measurement.
type CapacityOptions struct {
	SizeBytes int
	// Messages are published to Queues, and then the same number to one queue, which is drained.
	Messages int
	Queues   int
	// Profile is the profiling time. It must exceed the duration of each of the two phases.
	Profile time.Duration
	// Metrics contains the metrics addresses by node name.
	Metrics map[string]string
	// Locks enables recording lock waits, which takes CPU time.
	Locks bool
}

// Capacity is the usage of each kind of goroutine of a pair.
type Capacity struct {
	// Result has the phase "publish" or "consume".
	bench.Result
	// Processors is the value of GOMAXPROCS of the nodes; 0 means unchanged.
	Processors int `json:"processors,omitempty"`
	// Sections are sorted by CPU time in descending order. A node that used no CPU time while it was profiled has no
	// sections.
	Sections []Section `json:"sections"`
	// LockWait is the time that goroutines waited for locks, in µs per message, by node.
	LockWait map[string]float64 `json:"lock_wait_us_per_message"`
	// Locks are the most contended locks, if they were recorded.
	Locks []HeldLock `json:"locks,omitempty"`
	// Sizes are derived from Sections.
	Sizes []Size `json:"sizes"`
}

// MeasureCapacity publishes to many queues, and then drains one queue, while both nodes are profiled.
func MeasureCapacity(ctx context.Context, t bench.Target, o CapacityOptions) (publish, consume Capacity, err error) {
	nodes, err := inspectors(ctx, t, o)
	if err != nil {
		return publish, consume, err
	}
	queues := bench.QueueNames(o.Queues)
	p := bench.PublishOptions{
		SizeBytes: o.SizeBytes, Messages: o.Messages, Producers: o.Queues, Window: 1000, Queues: o.Queues,
	}
	err = bench.WithQueues(ctx, t.Client, queues, func() error {
		publish, err = profiled(ctx, t, o, nodes, func(r *bench.Result) error {
			r.Phase, r.Queues, r.Producers, r.Window = "publish", o.Queues, p.Producers, p.Window
			start := time.Now()
			h, err := bench.PublishNew(ctx, t.Client, queues, p)
			if err == nil {
				r.Duration(time.Since(start), o.Messages, h)
			}
			return err
		})
		return err
	})
	if err != nil {
		return publish, consume, err
	}
	one := bench.QueueNames(1)
	drained := bench.ConsumeOptions{SizeBytes: o.SizeBytes, Messages: o.Messages, Consumers: o.Queues, Prefetch: 1000}
	err = bench.WithQueues(ctx, t.Client, one, func() error {
		if err := bench.Fill(ctx, t.Client, one, drained); err != nil {
			return err
		}
		consume, err = profiled(ctx, t, o, nodes, func(r *bench.Result) error {
			r.Phase, r.Queues, r.Consumers = "consume", 1, o.Queues
			return bench.DrainQueues(ctx, t, one, drained, r)
		})
		return err
	})
	return publish, consume, err
}

// inspectors returns the inspectors by role: "active" and "standby".
func inspectors(ctx context.Context, t bench.Target, o CapacityOptions) (map[string]inspector, error) {
	active, err := t.Client.WaitActive(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]inspector{}
	for _, n := range t.Pair.Nodes {
		role := "standby"
		if n == t.Pair.Find(active.Address) {
			role = "active"
		}
		out[role] = inspector{o.Metrics[n.Name]}
	}
	return out, nil
}

// countInterval is the interval of counting goroutines, which takes CPU time on the nodes.
const countInterval = 500 * time.Millisecond

// countWhile counts goroutines until the load is done, and returns the median counts by node and kind. A single count
// is not representative: at the start not all producers are connected, and at the end some have disconnected.
func countWhile(
	ctx context.Context, nodes map[string]inspector, loaded <-chan error,
) (map[string]map[string]int, error) {
	counts := map[string][]map[string]int{}
	tick := time.NewTicker(countInterval)
	defer tick.Stop()
	for {
		for name, n := range nodes {
			counted, err := n.goroutines(ctx)
			if err != nil {
				return nil, errors.Join(err, <-loaded)
			}
			counts[name] = append(counts[name], counted)
		}
		select {
		case err := <-loaded:
			out := map[string]map[string]int{}
			for name, all := range counts {
				out[name] = usual(all)
			}
			return out, err
		case <-tick.C:
		}
	}
}

func profiled(ctx context.Context, t bench.Target, o CapacityOptions, nodes map[string]inspector,
	load func(*bench.Result) error,
) (c Capacity, err error) {
	c = Capacity{
		Result:   bench.Result{Workload: "capacity", Setup: t.Setup, Sync: t.Sync, SizeBytes: o.SizeBytes},
		Sections: []Section{}, LockWait: map[string]float64{},
	}
	for name, n := range nodes {
		if c.LockWait[name], err = n.waited(ctx); err != nil {
			return c, err
		}
	}
	cpu, waits, counts := map[string]*profile.Profile{}, map[string]*profile.Profile{}, map[string]map[string]int{}
	g, ctx := errgroup.WithContext(ctx)
	results := make(chan func(), 2*len(nodes)+1)
	for name, n := range nodes {
		g.Go(func() error {
			p, err := n.cpu(ctx, o.Profile)
			results <- func() { cpu[name] = p }
			return err
		})
		if !o.Locks {
			continue
		}
		g.Go(func() error {
			p, err := n.contention(ctx, o.Profile)
			results <- func() { waits[name] = p }
			return err
		})
	}
	g.Go(func() error {
		m, start := bench.NewMeter(t.Processes, t.Dir), time.Now()
		loaded := make(chan error, 1)
		go func() { loaded <- load(&c.Result) }()
		counted, err := countWhile(ctx, nodes, loaded)
		results <- func() { counts = counted }
		c.Cost(m)
		if took := time.Since(start); err == nil && took > o.Profile {
			err = fmt.Errorf("the load took %s, longer than the profiling time: raise --duration", took.Round(time.Second))
		}
		return err
	})
	if err := g.Wait(); err != nil {
		return c, err
	}
	close(results)
	for put := range results {
		put()
	}
	ctx = context.WithoutCancel(ctx)
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		c.Sections = append(c.Sections, sections(name, cpu[name], counts[name], c.Messages)...)
		if o.Locks {
			c.Locks = append(c.Locks, locks(name, waits[name])...)
		}
		after, err := nodes[name].waited(ctx)
		if err != nil {
			return c, err
		}
		c.LockWait[name] = (after - c.LockWait[name]) * 1e6 / float64(c.Messages)
	}
	c.Sizes = sizing(c.Sections)
	return c, nil
}
