// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/bound"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
)

func boundCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var windows []int
	cmd := &cobra.Command{
		Use: "bound", Short: "Compare publishing with plain message relays",
		Long: `Alternately publish to a pair, and send messages of the same size through two relay processes: from the
client to the first relay, to the second, and the responses back. This is measured with gRPC streams and with TCP
connections. The column Reached is the rate of the pair divided by that of the relays.

With --sync always, the relays write the messages to files and sync the files before they respond, and the gRPC relays
are omitted. With other sync modes, the relays store nothing.`,
		Example: `  lockstep-lab bound
  lockstep-lab bound --size 15000 --window 1000 --rounds 5
  lockstep-lab bound --sync always --window 1 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			for _, w := range windows {
				if w < 1 || w > 1_000_000 {
					return cli.Usage("--window %d must be 1 to 1,000,000", w)
				}
			}
			if f.Duration <= 0 {
				return cli.Usage("--duration must be positive")
			}
			f.Pair = true
			return benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				return boundNextTo(cmd.Context(), env, f, p, windows, t)
			})
		},
	}
	f.RegisterStore(cmd)
	benchcli.SetDefaults(cmd, map[string]string{"sync": "off", "size": "512,15000"})
	_ = cmd.Flags().MarkHidden("messages") // --duration determines the number
	cmd.Flags().StringToStringVar(&f.Set, "set", nil, "settings of the pair, such as commit-delay=1ms")
	cmd.Flags().IntSliceVar(&windows, "window", []int{1, 64, 1000},
		"maximum unacknowledged messages; several values are measured in sequence")
	cmd.Flags().DurationVar(&f.Duration, "duration", 3*time.Second, "duration of each measurement")
	cmd.AddCommand(relayCommand(env))
	return cmd
}

// boundNextTo measures the pair and the relays alternately.
func boundNextTo(
	ctx context.Context, env *cli.Env, f benchcli.Flags, p benchcli.Params, windows []int, t bench.Target,
) (err error) {
	transports := []bound.Transport{bound.GRPC, bound.TCP}
	if f.Sync == "always" {
		transports = transports[1:]
	}
	var all []*measure.Bounds
	defer func() {
		for _, b := range all {
			err = errors.Join(err, b.Close())
		}
	}()
	for _, transport := range transports {
		b, err := measure.StartBounds(ctx, transport, f.Sync == "always", func(next string) []string {
			args := []string{"bound", "relay", "--transport", string(transport), "--next", next}
			if f.Sync == "always" {
				args = append(args, "--write-to", t.Dir)
			}
			return args
		})
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	for _, size := range p.Sizes {
		for _, window := range windows {
			if err := boundPoint(ctx, env, f, size, window, t, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// boundPoint measures one size and window in each round, and prints medians and ratios.
func boundPoint(ctx context.Context, env *cli.Env, f benchcli.Flags, size, window int, t bench.Target,
	all []*measure.Bounds,
) error {
	measures := []func() (bench.Result, error){func() (bench.Result, error) {
		return bench.Publish(ctx, t, bench.PublishOptions{
			SizeBytes: size, Producers: 1, Window: window, Queues: 1, Duration: f.Duration,
		})
	}}
	for _, b := range all {
		measures = append(measures, func() (bench.Result, error) { return b.Measure(ctx, size, window, f.Duration) })
	}
	results := make([][]bench.Result, len(measures))
	for round := range f.Rounds {
		for i := range measures {
			i := (i + round) % len(measures)
			r, err := measures[i]()
			if err != nil {
				return err
			}
			r.Round = round + 1
			results[i] = append(results[i], r)
			if err := env.Print.Object(r); err != nil {
				return err
			}
		}
	}
	pair := bench.Median(results[0])
	medians := []bench.Result{pair}
	for _, rs := range results[1:] {
		m := bench.Median(rs)
		m.Ratio, m.Comment = pair.Rate/m.Rate, "fraction reached by the pair"
		medians = append(medians, m)
	}
	if err := output.Objects(env.Print, medians); err != nil {
		return err
	}
	return printBounds(env, medians)
}

func printBounds(env *cli.Env, medians []bench.Result) error {
	rows := make([][]any, 0, len(medians))
	for _, r := range medians {
		name, reached := r.Workload+" "+r.Phase, ""
		if r.Ratio > 0 {
			reached = fmt.Sprintf("%.2f", r.Ratio)
		}
		rows = append(rows, []any{
			name, r.Sync, r.SizeBytes, r.Window, fmt.Sprintf("%.0f", r.Rate), spread(&r), reached, benchcli.Digits(r.P50),
			benchcli.Digits(r.P99), fmt.Sprintf("%.1f", r.CPUPerMessage()),
		})
	}
	return env.Print.Table([]string{
		"Measured", "Sync", ">Bytes", ">Window", ">Rate/s", ">Spread", ">Reached", ">p50 ms", ">p99 ms", ">CPU µs/message",
	}, rows)
}

func relayCommand(env *cli.Env) *cobra.Command {
	var o bound.RelayOptions
	var transport string
	cmd := &cobra.Command{
		Use: "relay", Hidden: true, Short: "Relay messages for the bound benchmark",
		Long:    "Relay messages until standard input ends. The command prints its address.",
		Example: "  lockstep-lab bound relay --transport tcp",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			o.Transport = bound.Transport(transport)
			stop := make(chan struct{})
			go func() {
				_, _ = io.Copy(io.Discard, env.Stdin) // wait until the parent closes standard input
				close(stop)
			}()
			return bound.Serve(o, stop, func(address string) error {
				_, err := fmt.Fprintln(env.Stdout, address)
				return err //nolint:wrapcheck // of standard output
			})
		},
	}
	cmd.Flags().StringVar(&transport, "transport", string(bound.GRPC), "grpc or tcp")
	cmd.Flags().StringVar(&o.Next, "next", "", "host:port of the next relay")
	cmd.Flags().StringVar(&o.Sync, "write-to", "", "directory in which received messages are written and synced")
	return cmd
}
