// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
)

// createQueuesAtOnce is the number of concurrent requests that create queues.
const createQueuesAtOnce = 64

// NodeQueues is Queues through the client, on nodes that were started for the measurement. load configures publishing:
// its Messages go to one queue and then round n queues. The heap per queue is not measured here; RSS is that of the
// processes. "start" is the time from restarting all nodes until they serve and are in sync.
func NodeQueues(ctx context.Context, t Target, load PublishOptions, n int, report func(Result) error) error {
	if t.Pair == nil {
		return errors.New("many queues can only be measured on nodes that are started for it")
	}
	one := []string{"one"}
	if _, _, err := t.Client.CreateQueue(ctx, one[0], client.CreateQueueOptions{}); err != nil {
		return err
	}
	names := queueNames(n)
	each := load
	each.Messages = n
	var first Result
	for _, phase := range []struct {
		name string
		run  func(*Result) error
	}{
		{"one queue", func(r *Result) error {
			r.Queues = 1
			err := publishRound(ctx, t, one, load, r)
			first = *r
			return err
		}},
		{"create", func(r *Result) error { return createAll(ctx, t.Client, names, r) }},
		{"one each", func(r *Result) error { return publishRound(ctx, t, names, each, r) }},
		{"round robin", func(r *Result) error {
			err := publishRound(ctx, t, names, load, r)
			r.Ratio, r.Note = r.Rate/first.Rate, "ratio to one queue"
			return err
		}},
		{"start", func(r *Result) error { return restartAll(ctx, t, r) }},
	} {
		r := Result{
			Workload: "queues", Phase: phase.name, Setup: t.Setup, Sync: t.Sync, SizeBytes: load.SizeBytes, Queues: n,
			Producers: load.Producers, Publishers: load.Publishers, Window: load.Window,
		}
		m := newMeter(t.Processes, t.Dir)
		if err := phase.run(&r); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
		if phase.name == "start" { // the processes are new
			m = newMeter(t.Processes, t.Dir)
		}
		r.cost(m)
		if err := report(r); err != nil {
			return err
		}
	}
	return nil
}

// publishRound publishes each message to the next queue.
func publishRound(ctx context.Context, t Target, queues []string, o PublishOptions, out *Result) error {
	o.EachToNext = true
	producers, err := newProducers(ctx, t.Client, o.Producers)
	if err != nil {
		return err
	}
	start := time.Now()
	h, err := publishAll(ctx, producers, queues, o)
	if err == nil {
		out.took(time.Since(start), int(h.TotalCount()), h)
	}
	for _, p := range producers {
		err = errors.Join(err, p.Close())
	}
	return err
}

// createAll creates queues concurrently.
func createAll(ctx context.Context, c *client.Client, names []string, out *Result) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	histograms := make([]*hdrhistogram.Histogram, createQueuesAtOnce)
	start := time.Now()
	for i := range histograms {
		histograms[i] = newHistogram()
		all.Go(func() {
			for n := next.Add(1); n <= int64(len(names)); n = next.Add(1) {
				begin := time.Now()
				if _, _, err := c.CreateQueue(ctx, names[n-1], client.CreateQueueOptions{}); err != nil {
					cancel(err)
					return
				}
				record(histograms[i], time.Since(begin))
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
	out.took(time.Since(start), len(names), histograms[0])
	return nil
}

// restartAll restarts all nodes, and measures the time until they are ready.
func restartAll(ctx context.Context, t Target, out *Result) error {
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
