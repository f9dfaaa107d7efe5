// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

const (
	phaseOldest = "from oldest"
	phaseNewest = "from newest"
	// searchParts is the number of values of the property that the filter compares: one message of searchParts matches.
	searchParts = 10_000
)

// SearchOptions configures a search measurement.
type SearchOptions struct {
	// Messages is the number of messages in the queue, SizeBytes the size of their bodies.
	Messages, SizeBytes int
	Rounds              int
}

// Search fills a queue, and searches it with a filter on a property: in each round once from the oldest message, and
// once from the newest. The rate is the number of messages that the node has evaluated per second. Search calls report
// with each result and, after the last round, with the medians.
func Search(ctx context.Context, t bench.Target, o SearchOptions, report func(bench.Result) error) error {
	names := bench.QueueNames(1)
	order := bench.Order{Parts: searchParts}
	return bench.WithQueues(ctx, t.Client, names, func() error {
		publish := bench.PublishOptions{
			Messages: o.Messages, SizeBytes: o.SizeBytes, Producers: 2, Window: 1000, Queues: 1, Order: order,
		}
		if _, err := bench.PublishNew(ctx, t.Client, names, publish); err != nil {
			return err
		}
		results := make(map[string][]bench.Result)
		for round := range o.Rounds {
			for _, phase := range []string{phaseOldest, phaseNewest} {
				r := bench.Result{
					Workload: "search", Phase: phase, Setup: t.Setup, Sync: t.Sync, Round: round + 1, SizeBytes: o.SizeBytes,
				}
				browse := client.BrowseOptions{Filter: order.PartFilter(0), Newest: phase == phaseNewest}
				if err := search(ctx, t, names[0], browse, o.Messages, &r); err != nil {
					return err
				}
				results[phase] = append(results[phase], r)
				if err := report(r); err != nil {
					return err
				}
			}
		}
		for _, phase := range []string{phaseOldest, phaseNewest} {
			if err := report(bench.Median(results[phase])); err != nil {
				return err
			}
		}
		return nil
	})
}

// search browses a queue that contains the given number of messages. It returns an error unless all of them were
// scanned, and 1/searchParts of them matched.
func search(
	ctx context.Context, t bench.Target, queue string, o client.BrowseOptions, messages int, r *bench.Result,
) error {
	var scanned uint64
	o.Progress = func(p client.SearchProgress) { scanned = p.Scanned }
	latencies := bench.NewHistogram()
	m, start := bench.NewMeter(t.Processes, t.Dir), time.Now()
	found, last := 0, start
	for _, err := range t.Client.Browse(ctx, queue, o) {
		if err != nil {
			return err
		}
		now := time.Now()
		bench.Record(latencies, now.Sub(last))
		last = now
		found++
	}
	r.Duration(time.Since(start), messages, latencies)
	r.Cost(m)
	if want := messages / searchParts; found != want || scanned != uint64(messages) {
		return fmt.Errorf("search: found %d of %d messages, expected %d of %d", found, scanned, want, messages)
	}
	r.Comment = fmt.Sprintf("%d found", found)
	return nil
}
