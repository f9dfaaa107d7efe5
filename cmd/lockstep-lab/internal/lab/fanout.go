// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
)

func fanoutCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.FanoutOptions
	var subscriptions []int
	var filter bool
	cmd := &cobra.Command{
		Use: "fanout", Short: "Measure a queue with many subscriptions",
		Long: `Publish to one queue with many subscriptions, and consume from them, by default at the same time. Deliveries
during publishing ("deliver") and afterwards ("drain") are reported separately. Fairness is the number of deliveries
of the least served subscription divided by that of the most served one, until the last message was published.`,
		Example: `  lockstep-lab fanout --subscriptions 1,10,100
  lockstep-lab fanout --subscriptions 100 --producers 50 --consumers 56 --size 200-500 --memory 64MiB --sync off
  lockstep-lab fanout --subscriptions 100 --consumers 100 --filter`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.SizeMin, o.SizeMax, err = parseSizeRange(f.Sizes); err != nil {
				return err
			}
			f.Sizes = []string{strconv.Itoa(o.SizeMax)}
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if o.Producers < 1 || o.Consumers < 1 || o.Interval < 1 || o.Window < 1 || o.Prefetch < 1 {
				return cli.Usage("--producers, --consumers, --turn, --window and --prefetch must be at least 1")
			}
			for _, n := range subscriptions {
				if n < 1 || n > 10_000 {
					return cli.Usage("--subscriptions %d must be between 1 and 10000", n)
				}
			}
			o.Messages = f.Messages
			if filter {
				o.Parts = filterParts
			}
			return benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				return fanoutOfEach(env, cmd, t, o, f.Rounds, subscriptions)
			})
		},
	}
	f.Register(cmd)
	benchcli.SetDefaults(cmd, map[string]string{"size": "200-500", "messages": "100000", "rounds": "1"})
	cmd.Flags().Lookup("size").Usage = "message size in bytes, or a range"
	_ = cmd.Flags().MarkHidden("queues")
	cmd.Flags().IntSliceVar(&subscriptions, "subscriptions", []int{1, 10, 100},
		"numbers of subscriptions, measured in sequence")
	cmd.Flags().IntVar(&o.Producers, "producers", 50, "number of producers")
	cmd.Flags().IntVar(&o.Window, "window", 16, "maximum unacknowledged messages of a producer")
	cmd.Flags().IntVar(&o.Consumers, "consumers", 56, "number of consumers")
	cmd.Flags().BoolVar(&o.Backlog, "backlog", false, "publish all messages before the consumers start")
	cmd.Flags().IntVar(&o.Interval, "turn", 1000,
		"with fewer consumers than subscriptions: maximum messages before a consumer changes the subscription")
	cmd.Flags().IntVar(&o.Prefetch, "prefetch", 256, "maximum messages in flight per consumer")
	cmd.Flags().BoolVar(&filter, "filter", false,
		"also measure subscriptions with filters, each of which matches 1 % of the messages")
	cmd.Flags().DurationVar(&o.Drain, "drain", 0,
		"time limit for deliveries after the last publish; 0: until all messages are delivered")
	return cmd
}

// fanoutOfEach measures each number of subscriptions, and compares the publish rate with that of the first number. If
// o.Parts is set, it also measures each number with filters.
func fanoutOfEach(
	env *cli.Env, cmd *cobra.Command, t bench.Target, o measure.FanoutOptions, rounds int, subscriptions []int,
) error {
	var first bench.Result
	for i, n := range subscriptions {
		o.Subscriptions = n
		all, err := fanoutRounds(env, cmd, t, o, rounds)
		if err != nil {
			return err
		}
		if o.Parts > 0 {
			o.Filtered = true
			some, err := fanoutRounds(env, cmd, t, o, rounds)
			o.Filtered = false
			if err != nil {
				return err
			}
			if err := compareFilters(env, n, &all, &some); err != nil {
				return err
			}
		}
		published := all.published
		if i == 0 {
			first = published
			continue
		}
		if err := env.Print.Sentence("publishing with %d subscriptions: %.2f × the rate with %d", n,
			published.Rate/first.Rate, first.Subscriptions); err != nil {
			return err
		}
	}
	return nil
}

// filterParts is the number of distinct property values; a filter matches one of them.
const filterParts = 100

// compareFilters prints the publish rate, the processing time and the CPU time with filters (some), relative to those
// without filters (all).
func compareFilters(env *cli.Env, n int, all, some *fanoutMedians) error {
	return env.Print.Sentence("with a filter on each of %s, which matches 1 %% of the messages: publishing at %.2f × the "+
		"rate without, all messages processed in %.2f × the time, with %.2f × the CPU time",
		output.Plural(uint64(n), "subscription"), some.published.Rate/all.published.Rate,
		some.seconds/all.seconds, some.cpu/all.cpu)
}

type fanoutMedians struct {
	published    bench.Result
	seconds, cpu float64 // sums of the phases except "deliver", until all messages are delivered
}

func parseSizeRange(sizes []string) (least, most int, err error) {
	text := strings.Join(sizes, ",")
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	if least, err = strconv.Atoi(from); err == nil {
		most, err = strconv.Atoi(to)
	}
	if err != nil || least < 0 || most < least {
		return 0, 0, cli.Usage("--size %q must be a number of bytes or a range such as 200-500", text)
	}
	return least, most, nil
}

func fanoutRounds(
	env *cli.Env, cmd *cobra.Command, t bench.Target, o measure.FanoutOptions, rounds int,
) (medians fanoutMedians, err error) {
	phases := map[string][]bench.Result{}
	for round := range rounds {
		err := measure.Fanout(cmd.Context(), t, o, func(r bench.Result) error {
			r.Round = round + 1
			phases[r.Phase] = append(phases[r.Phase], r)
			return env.Print.Object(r)
		})
		if err != nil {
			return medians, err
		}
	}
	rows := make([][]any, 0, 3)
	for _, phase := range []string{"publish", "deliver", "drain"} {
		if len(phases[phase]) == 0 {
			continue // with --backlog the phase "deliver" does not exist
		}
		m := bench.Median(phases[phase])
		if err := env.Print.Object(m); err != nil {
			return medians, err
		}
		if phase == "publish" {
			medians.published = m
		}
		if phase != "deliver" { // overlaps with publishing
			medians.seconds += m.Seconds
			medians.cpu += m.CPU
		}
		fair := ""
		if phase == "deliver" {
			fair = fmt.Sprintf("%.2f", m.Fraction)
		}
		rows = append(rows, []any{
			m.Subscriptions, phase, m.Messages, fmt.Sprintf("%.0f", m.Rate), fmt.Sprintf("%.1f", m.MB), benchcli.Digits(m.P50),
			benchcli.Digits(m.P99), benchcli.Digits(m.Max),
			fair, fmt.Sprintf("%.1f", m.CPU), fmt.Sprintf("%.0f", m.RSS), fmt.Sprintf("%.0f", m.DiskWritten),
		})
	}
	return medians, env.Print.Table([]string{
		"Subscriptions", "Phase", "Messages", "Rate/s", "MB/s", "p50 ms", "p99 ms", "max ms", "Fairness", "CPU s",
		"RSS MB", "Disk MB",
	}, rows)
}
