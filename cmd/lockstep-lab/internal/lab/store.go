// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/serve"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
	"github.com/lockstep-mq/lockstep/server/config"
)

func storeCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.StoreOptions
	var limit string
	cmd := &cobra.Command{
		Use: "store", Short: "Measure the embedded store alone",
		Long: `Measure the store in one goroutine, without network and replication: write a burst of --messages, read it
back, and repeat. Nothing is acknowledged, so the store grows. Write latencies are per transaction of --batch
messages, read latencies per read of up to 1000 messages or 1 MiB.

With --far, opening the store after the bursts is also measured, and reading all messages with an empty page cache.
The read rate is compared with that of a plain read of the page file.

--memory-limit requires Linux, root and a memory cgroup. If the limit cannot be set, the results contain the reason.`,
		Example: `  lockstep-lab store --size 512 --messages 2000000 --bursts 4 --sync off
  lockstep-lab store --sync always --batch 100 --warm
  lockstep-lab store --messages 2000000 --bursts 16 --sync off --memory-limit 2GiB --far --warm --rounds 1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if o.Batch < 1 || o.Batch > 10_000 || o.Bursts < 1 || o.Pause < 0 {
				return cli.Usage("--batch must be 1 to 10000, --bursts at least 1 and --pause not negative")
			}
			if limit != "" {
				bytes, err := config.ParseSize(limit)
				if err != nil {
					return cli.Usage("--memory-limit: %v", err)
				}
				o.MemoryLimit = int64(bytes)
			}
			o.Messages = f.Messages
			return embeddedRounds(env, cmd, f, p, o.Batch, 1, []string{"write", "read", "start", "read far"},
				func(ctx context.Context, e measure.EmbeddedOptions, report func(bench.Result) error) error {
					o := o
					o.EmbeddedOptions = e
					return measure.Store(ctx, o, report)
				})
		},
	}
	f.RegisterStore(cmd)
	describeStore(cmd, "the store", "messages per burst")
	cmd.Flags().IntVar(&o.Batch, "batch", 100, "messages per transaction, 1 to 10000")
	cmd.Flags().IntVar(&o.Bursts, "bursts", 4, "number of bursts, each of --messages")
	cmd.Flags().DurationVar(&o.Pause, "pause", 0, "time between two bursts")
	cmd.Flags().BoolVar(&o.Warm, "warm", false, "write and delete as much data as the store will use, before measuring")
	cmd.Flags().StringVar(&limit, "memory-limit", "",
		"memory limit of this process with its page cache, such as 2GiB; empty: unlimited")
	cmd.Flags().BoolVar(&o.Far, "far", false, "also measure opening the store, and reading all messages")
	return cmd
}

// describeStore replaces the help texts of shared flags that describe nodes, for a benchmark of embedded stores.
func describeStore(cmd *cobra.Command, store, messages string) {
	for name, text := range map[string]string{
		"messages":  messages,
		"sync":      "sync mode of " + store + ": always, interval or off",
		"page-size": "page size of " + store,
		"memory":    "memory budget of a node; " + store + " uses half of it",
	} {
		cmd.Flags().Lookup(name).Usage = text
	}
}

func queuesCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.QueuesOptions
	var batch int
	load := bench.PublishOptions{Producers: 5}
	cmd := &cobra.Command{
		Use: "queues", Short: "Compare many queues with one queue",
		Long: `Measure the cost of many queues: create --queues queues, publish one message to each, publish --messages
round-robin to all of them, and compare this with publishing --messages to a single queue. Finally, measure opening
the store with all queues, or restarting the nodes.

By default, two embedded stores are measured, one with all queues and one with the single queue. They take turns: each
of --slices slices publishes --messages, and ends with a checkpoint. With --pair or --standalone, nodes are measured
instead.`,
		Example: `  lockstep-lab queues
  lockstep-lab queues --standalone --messages 200000
  lockstep-lab queues --queues 100000 --messages 1000000 --sync off --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if batch < 1 || batch > 10_000 || o.Queues < 1 || o.Slices < 1 {
				return cli.Usage("--batch must be 1 to 10000, --queues and --slices at least 1")
			}
			if f.Pair || f.Standalone {
				load.Messages = f.Messages
				return nodeQueues(env, cmd, f, p, load, o.Queues)
			}
			o.Messages = f.Messages
			phases := []string{"create", "one each", "one queue", "round robin", "start"}
			return embeddedRounds(env, cmd, f, p, batch, 2, phases,
				func(ctx context.Context, e measure.EmbeddedOptions, report func(bench.Result) error) error {
					o := o
					o.EmbeddedOptions = e
					return measure.Queues(ctx, o, report)
				})
		},
	}
	f.RegisterNodes(cmd)
	f.RegisterStore(cmd)
	benchcli.SetDefaults(cmd, map[string]string{"sync": "off", "messages": "500000", "rounds": "1"})
	describeStore(cmd, "each store", "messages to all queues, and to the single queue; embedded stores: per slice")
	cmd.Flags().Lookup("pair").Usage = "measure a pair instead of embedded stores"
	cmd.Flags().Lookup("standalone").Usage = "measure a standalone node instead of embedded stores"
	cmd.Flags().Lookup("sync").Usage = "sync mode of the stores or nodes: always, interval or off"
	cmd.Flags().Lookup("page-size").Usage = "page size of the stores or nodes"
	cmd.Flags().IntVar(&load.Publishers, "publishers", 64,
		"with --pair or --standalone: number of publishers, which share 5 producers")
	cmd.Flags().IntVar(&load.Window, "window", 1,
		"with --pair or --standalone: maximum unacknowledged messages of a publisher")
	cmd.Flags().IntVar(&o.Queues, "queues", 100_000, "number of queues")
	cmd.Flags().IntVar(&o.Slices, "slices", 5, "embedded stores: slices, each of --messages")
	cmd.Flags().IntVar(&batch, "batch", 100, "embedded stores: messages per transaction, 1 to 10000")
	return cmd
}

// nodeQueues measures many queues on nodes that it starts for each round.
func nodeQueues(
	env *cli.Env, cmd *cobra.Command, f benchcli.Flags, p benchcli.Params, load bench.PublishOptions, queues int,
) error {
	if load.Window < 1 || load.Publishers < load.Producers {
		return cli.Usage("--window must be at least 1 and --publishers at least %d", load.Producers)
	}
	f.Settings = map[string]string{"limits.queues": strconv.Itoa(queues + 1)}
	for _, size := range p.Sizes {
		var all []bench.Result
		for round := range f.Rounds {
			err := benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				load.SizeBytes = size
				return measure.NodeQueues(cmd.Context(), t, load, queues, func(r bench.Result) error {
					r.Round = round + 1
					all = append(all, r)
					return env.Print.Object(r)
				})
			})
			if err != nil {
				return err
			}
		}
		medians := mediansOf(all, []string{"one queue", "create", "one each", "round robin", "start"})
		if err := output.Objects(env.Print, medians); err != nil {
			return err
		}
		if err := printEmbedded(env, append(all, medians...)); err != nil {
			return err
		}
	}
	return nil
}

// embeddedRounds measures each size in rounds, with the given number of stores open at the same time.
func embeddedRounds(
	env *cli.Env, cmd *cobra.Command, f benchcli.Flags, p benchcli.Params, batch, stores int, phases []string,
	run func(context.Context, measure.EmbeddedOptions, func(bench.Result) error) error,
) error {
	ctx := cmd.Context()
	defer serve.LimitMemory(ctx, p.Memory*config.Size(stores))() // as in the process of a node, which has one store
	for _, size := range p.Sizes {
		var all []bench.Result
		for round := range f.Rounds {
			results, err := embeddedRound(ctx, env, f, measure.EmbeddedOptions{
				SizeBytes: size, Batch: batch, Sync: f.Sync, PageSize: int(p.PageSize), MemoryBudget: int64(p.Memory),
				PageCache: p.PageCache,
			}, round+1, run)
			if err != nil {
				return err
			}
			all = append(all, results...)
			if err := printEmbedded(env, results); err != nil {
				return err
			}
			if err := printTrends(env, results); err != nil {
				return err
			}
		}
		if f.Rounds == 1 && !slices.ContainsFunc(all, func(r bench.Result) bool { return r.Burst > 1 }) {
			continue // a single result has no median
		}
		medians := mediansOf(all, phases)
		if err := output.Objects(env.Print, medians); err != nil {
			return err
		}
		if err := printEmbedded(env, medians); err != nil {
			return err
		}
	}
	return nil
}

func embeddedRound(
	ctx context.Context, env *cli.Env, f benchcli.Flags, o measure.EmbeddedOptions, round int,
	run func(context.Context, measure.EmbeddedOptions, func(bench.Result) error) error,
) (results []bench.Result, err error) {
	dir, remove, err := bench.NewDir(f.Dir)
	if err != nil {
		return nil, err
	}
	defer remove()
	o.Dir = dir
	err = run(ctx, o, func(r bench.Result) error {
		r.Round = round
		results = append(results, r)
		return env.Print.Object(r)
	})
	return results, err
}

// mediansOf returns the median of each phase at each number of stored messages, or over all bursts.
func mediansOf(all []bench.Result, phases []string) (medians []bench.Result) {
	type key struct {
		phase  string
		stored int
	}
	groups := map[key][]bench.Result{}
	var order []key
	for _, r := range all {
		k := key{r.Phase, r.Stored}
		if r.Burst > 0 {
			k.stored = 0
		}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], r)
	}
	slices.SortStableFunc(order, func(a, b key) int {
		return slices.Index(phases, a.phase) - slices.Index(phases,
			b.phase)
	})
	for _, k := range order {
		m := bench.Median(groups[k])
		if m.Rate == 0 { // the phase start has no rate
			slices.SortFunc(groups[k], func(a, b bench.Result) int { return int(a.StartMS*1000) - int(b.StartMS*1000) })
			m = groups[k][len(groups[k])/2]
			m.Median = true
		}
		medians = append(medians, m)
	}
	return medians
}

func printTrends(env *cli.Env, results []bench.Result) error {
	for _, phase := range []string{"write", "read"} {
		var bursts []bench.Result
		for _, r := range results {
			if r.Phase == phase && r.Burst > 0 {
				bursts = append(bursts, r)
			}
		}
		ratio, ok := measure.Trend(bursts)
		if !ok {
			continue
		}
		last := bursts[len(bursts)-1]
		note := fmt.Sprintf("mean rate of the last %d bursts relative to the first 2", len(bursts)-len(bursts)/2)
		if err := env.Print.Object(bench.Result{
			Workload: last.Workload, Phase: phase + " trend", Setup: last.Setup, Sync: last.Sync, Round: last.Round,
			SizeBytes: last.SizeBytes,
			Ratio:     ratio, Comment: note, MemoryLimitMB: last.MemoryLimitMB, BudgetMB: last.BudgetMB,
			PeakRSS: last.PeakRSS,
		}); err != nil {
			return err
		}
		if err := env.Print.Sentence("%s: %s: %.2f; peak %.0f MB resident, memory.budget is %.0f MB", phase, note,
			ratio, peak(bursts), last.BudgetMB); err != nil {
			return err
		}
	}
	return nil
}

func peak(results []bench.Result) (mb float64) {
	for i := range results {
		mb = max(mb, results[i].PeakRSS)
	}
	return mb
}

func printEmbedded(env *cli.Env, results []bench.Result) error {
	rows := make([][]any, 0, len(results))
	for _, r := range results {
		name := fmt.Sprint(r.Round)
		if r.Burst > 0 {
			name = fmt.Sprintf("%d/%d", r.Round, r.Burst)
		}
		if r.Median {
			name = "median"
		}
		rows = append(rows, []any{
			r.Workload + " " + r.Phase, name, r.Sync, r.SizeBytes, stored(&r), r.Messages, number(r.Rate, 0),
			spread(&r), number(r.MB, 1),
			benchcli.Digits(r.P50), benchcli.Digits(r.P99), benchcli.Digits(r.Max), fmt.Sprintf("%.2f", r.CPUPerMessage()),
			fmt.Sprintf("%.0f", r.PeakRSS), r.Remark(),
		})
	}
	return env.Print.Table([]string{
		"Measured", "Round", "Sync", ">Bytes", ">Stored", ">Messages", ">Rate/s", ">Spread", ">MB/s", ">p50 ms",
		">p99 ms", ">max ms", ">CPU µs/message", ">Peak MB", "",
	}, rows)
}

func stored(r *bench.Result) int {
	if r.Queues > 0 {
		return r.Queues
	}
	return r.Stored
}

func number(v float64, decimals int) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}
