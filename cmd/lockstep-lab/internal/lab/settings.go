// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
)

// setting is a setting that is measured with several values.
type setting struct {
	setting string
	values  []string
	also    map[string]string // other settings
	sync    string            // unless --sync is given
	loads   []bench.PublishOptions
}

// settings returns the settings to sweep. The values of each setting span two orders of magnitude.
func settings() []setting {
	return []setting{
		{
			// A delay increases latency and saves syncs, which affects publishers that wait for each acknowledgement.
			setting: "commit-delay", values: []string{"0s", "100us", "300us", "1ms", "3ms", "10ms"}, sync: "always",
			loads: []bench.PublishOptions{
				{Producers: 1, Window: 1, Queues: 1},
				{Producers: 5, Publishers: 64, Window: 1, Queues: 5},
				{Producers: 5, Window: 1000, Queues: 5},
			},
		},
		{
			// A larger value uses log space and saves page writes, which affects a stream of messages. Only the size of the
			// log triggers checkpoints here.
			setting: "checkpoint-bytes", values: []string{"16MiB", "64MiB", "256MiB", "1GiB", "2GiB"}, sync: "off",
			also:  map[string]string{"checkpoint-interval": "24h"},
			loads: []bench.PublishOptions{{Producers: 5, Window: 1000, Queues: 5}},
		},
	}
}

func settingsCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var names, values []string
	var paced bench.PublishOptions
	cmd := &cobra.Command{
		Use: "knobs", Short: "Sweep commit delay and checkpoint size",
		Long: `Start nodes with each value of a setting, and publish for --duration with each load. commit-delay is measured
with three loads: one publisher, 64 publishers and 5 pipelined producers. checkpoint-bytes is measured with 5
pipelined producers. For each value and load, the table has the round with the median rate.

Without --sync, commit-delay is measured with sync=always, and checkpoint-bytes with sync=off.`,
		Example: `  lockstep-lab knobs
  lockstep-lab knobs --knob checkpoint-bytes --values 64MiB,256MiB,1GiB --duration 30s --rounds 3
  lockstep-lab knobs --knob checkpoint-bytes --values 1MiB,16MiB,128MiB --rate 300 --duration 60s
  lockstep-lab knobs --knob commit-delay --standalone --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if f.Duration <= 0 {
				return cli.Usage("--duration must be positive")
			}
			if paced.Rate < 0 {
				return benchcli.ErrRate
			}
			chosen, err := chooseSettings(names, values)
			if err != nil {
				return err
			}
			for i := range chosen {
				if paced.Rate > 0 {
					chosen[i].loads = []bench.PublishOptions{{Producers: 1, Window: 1, Queues: 1, Rate: paced.Rate}}
				}
			}
			if cmd.Flags().Changed("sync") {
				for i := range chosen {
					chosen[i].sync = f.Sync
				}
			}
			f.Pair = !f.Standalone
			for _, size := range p.Sizes {
				for _, k := range chosen {
					if err := varySetting(env, cmd, f, p, k, size); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	f.Register(cmd)
	benchcli.SetDefaults(cmd, map[string]string{"rounds": "1"})
	for _, name := range []string{"messages", "queues"} {
		_ = cmd.Flags().MarkHidden(name) // defined by the loads
	}
	cmd.Flags().Lookup("pair").Usage = "start a pair (default)"
	cmd.Flags().Lookup("sync").Usage = "sync mode of the nodes: always, interval or off; without this flag, off for " +
		"checkpoint-bytes"
	cmd.Flags().DurationVar(&f.Duration, "duration", 10*time.Second, "publishing time per value and load")
	benchcli.RateFlag(cmd, &paced)
	cmd.Flags().Lookup("rate").Usage = "messages per second of one publisher, which replaces the loads; 0: none"
	cmd.Flags().StringSliceVar(&names, "knob", []string{"commit-delay", "checkpoint-bytes"},
		"settings to measure: commit-delay, checkpoint-bytes")
	cmd.Flags().StringSliceVar(&values, "values", nil,
		"values to measure; requires a single --knob")
	return cmd
}

func chooseSettings(names, values []string) ([]setting, error) {
	var chosen []setting
	all := settings()
	for _, name := range names {
		i := slices.IndexFunc(all, func(k setting) bool { return k.setting == name })
		if i < 0 {
			return nil, cli.Usage("--knob %q: must be commit-delay or checkpoint-bytes", name)
		}
		chosen = append(chosen, all[i])
	}
	if len(values) > 0 {
		if len(chosen) != 1 {
			return nil, cli.Usage("--values requires exactly one --knob")
		}
		chosen[0].values = values
	}
	return chosen, nil
}

func varySetting(env *cli.Env, cmd *cobra.Command, f benchcli.Flags, p benchcli.Params, k setting, size int) error {
	results := map[string][]bench.Result{} // by value and load
	key := func(load int, value string) string { return fmt.Sprint(load, " ", value) }
	for round := range f.Rounds {
		for _, value := range k.values {
			for i, load := range k.loads {
				load.SizeBytes, load.Duration = size, f.Duration
				r, err := settingPoint(cmd.Context(), env, cmd, f, p, k, value, load)
				if err != nil {
					return fmt.Errorf("%s=%s: %w", k.setting, value, err)
				}
				r.Round = round + 1
				results[key(i, value)] = append(results[key(i, value)], r)
				if err := env.Print.Object(r); err != nil {
					return err
				}
			}
		}
	}
	var medians []bench.Result
	for i := range k.loads {
		for _, value := range k.values {
			m := bench.Median(results[key(i, value)])
			medians = append(medians, m)
			if err := env.Print.Object(m); err != nil {
				return err
			}
		}
	}
	return printSettings(env, medians)
}

func settingPoint(
	ctx context.Context, env *cli.Env, cmd *cobra.Command, f benchcli.Flags, p benchcli.Params, k setting, value string,
	load bench.PublishOptions,
) (r bench.Result, err error) {
	f.Sync, f.Settings = k.sync, map[string]string{k.setting: value}
	for name, v := range k.also {
		f.Settings[name] = v
	}
	err = benchcli.WithTarget(ctx, env, cmd, f, p, func(t bench.Target) error {
		r, err = measure.SettingVariant(ctx, t, load, k.setting, value)
		return err
	})
	return r, err
}

func printSettings(env *cli.Env, results []bench.Result) error {
	rows := make([][]any, 0, len(results))
	for _, r := range results {
		rows = append(rows, []any{
			r.Setting, r.Value, load(&r), r.Sync, r.SizeBytes, fmt.Sprintf("%.0f", r.Rate), spread(&r), benchcli.Digits(r.P50),
			benchcli.Digits(r.P99), benchcli.Digits(r.Max),
			fmt.Sprintf("%.1f", r.CheckpointsPerMin), fmt.Sprintf("%.0f", r.LogMB), fmt.Sprintf("%.0f", r.PeakRSS),
			fmt.Sprintf("%.0f", r.VirtualMB),
			fmt.Sprintf("%.1f", r.CPUPerMessage()),
			fmt.Sprintf("%.0f", r.DiskWritten),
		})
	}
	return env.Print.Table([]string{
		"Setting", ">Value", "Load", "Sync", ">Bytes", ">Rate/s", ">Spread", ">p50 ms", ">p99 ms", ">max ms",
		">Checkpoints/min", ">Log MB", ">Peak MB", ">Virtual MB",
		">CPU µs/message", ">Disk MB",
	}, rows)
}

func load(r *bench.Result) string {
	switch {
	case r.Window > 1:
		return fmt.Sprintf("%d pipelined", r.Producers)
	case max(r.Publishers, r.Producers) == 1:
		return "1 publisher"
	}
	return fmt.Sprintf("%d publishers", max(r.Publishers, r.Producers))
}

func spread(r *bench.Result) string {
	if r.RateMax == 0 || r.RateMin == r.RateMax {
		return ""
	}
	return fmt.Sprintf("%.0f–%.0f", r.RateMin, r.RateMax)
}
