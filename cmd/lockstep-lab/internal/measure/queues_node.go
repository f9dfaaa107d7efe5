// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

const createQueuesAtOnce = 64

// NodeQueues measures the phases of Queues through the client, on nodes that were started for the measurement. It
// publishes load.Messages to one queue, and then round-robin to all n queues. RSS covers all processes. "start" is the
// time from starting the stopped nodes until they are in sync.
func NodeQueues(
	ctx context.Context, t bench.Target, load bench.PublishOptions, n int, report func(bench.Result) error,
) error {
	if t.Pair == nil {
		return errors.New("many queues can only be measured on nodes started by the benchmark")
	}
	one := []string{"one"}
	if _, _, err := admin.New(t.Client).CreateQueue(ctx, one[0], admin.CreateQueueOptions{}); err != nil {
		return err
	}
	names := bench.QueueNames(n)
	each := load
	each.Messages = n
	var first bench.Result
	for _, phase := range []struct {
		name string
		run  func(*bench.Result) error
	}{
		{"one queue", func(r *bench.Result) error {
			r.Queues = 1
			err := publishRound(ctx, t, one, load, r)
			first = *r
			return err
		}},
		{"create", func(r *bench.Result) error { return createAll(ctx, t.Client, names, r) }},
		{"one each", func(r *bench.Result) error { return publishRound(ctx, t, names, each, r) }},
		{"round robin", func(r *bench.Result) error {
			err := publishRound(ctx, t, names, load, r)
			r.Ratio, r.Comment = r.Rate/first.Rate, "ratio to one queue"
			return err
		}},
		{"start", func(r *bench.Result) error { return restartAll(ctx, t, r) }},
	} {
		r := bench.Result{
			Workload: "queues", Phase: phase.name, Setup: t.Setup, Sync: t.Sync, SizeBytes: load.SizeBytes, Queues: n,
			Producers: load.Producers, Publishers: load.Publishers, Window: load.Window,
		}
		m := bench.NewMeter(t.Processes, t.Dir)
		if err := phase.run(&r); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
		if phase.name == "start" { // measure the new processes
			m = bench.NewMeter(t.Processes, t.Dir)
		}
		r.Cost(m)
		if err := report(r); err != nil {
			return err
		}
	}
	return nil
}

func publishRound(
	ctx context.Context, t bench.Target, queues []string, o bench.PublishOptions, out *bench.Result,
) error {
	o.EachToNext = true
	start := time.Now()
	h, err := bench.PublishNew(ctx, t.Client, queues, o)
	if err == nil {
		out.Duration(time.Since(start), int(h.TotalCount()), h)
	}
	return err
}

func createAll(ctx context.Context, c *client.Client, names []string, out *bench.Result) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	histograms := make([]*hdrhistogram.Histogram, createQueuesAtOnce)
	start := time.Now()
	for i := range histograms {
		histograms[i] = bench.NewHistogram()
		all.Go(func() {
			for n := next.Add(1); n <= int64(len(names)); n = next.Add(1) {
				begin := time.Now()
				if _, _, err := admin.New(c).CreateQueue(ctx, names[n-1], admin.CreateQueueOptions{}); err != nil {
					cancel(err)
					return
				}
				bench.Record(histograms[i], time.Since(begin))
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	for _, h := range histograms[1:] {
		histograms[0].Merge(h)
	}
	out.Duration(time.Since(start), len(names), histograms[0])
	return nil
}

func restartAll(ctx context.Context, t bench.Target, out *bench.Result) error {
	for _, n := range t.Pair.Nodes {
		if err := n.Stop(); err != nil {
			return err
		}
	}
	start := time.Now()
	for _, n := range t.Pair.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	if err := t.Pair.WaitReady(ctx, nil); err != nil {
		return err
	}
	out.Seconds = time.Since(start).Seconds()
	out.StartMS = out.Seconds * 1000
	for _, n := range t.Pair.Nodes {
		t.Processes[n.Name] = n.PID()
	}
	return nil
}
