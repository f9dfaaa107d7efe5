// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
	"github.com/lockstep-mq/lockstep/server/config"
)

func wipeCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.WipeOptions
	var storeSize string
	cmd := &cobra.Command{
		Use: "wipe", Short: "Measure publish latency while a standby is replaced",
		Long: `Start a pair, fill it, and publish at a steady rate. Then the standby is killed, its data is
deleted, and it is restarted: it copies a snapshot from the active. The latencies before are compared with those
until it is in sync again; the latency of a message that is delayed by the one before it is measured from its due
time. Latencies are measured again afterwards: a disk with a write limit, as in clouds, can be slower after the
snapshot was written. The rate of the snapshot includes the transfer over loopback and the installation, with both
nodes on one disk.`,
		Example: `  lockstep-lab wipe
  lockstep-lab wipe --store 10GiB --per-second 2000 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			size, err := config.ParseSize(storeSize)
			if err != nil {
				return cli.Usage("--store: %v", err)
			}
			if o.PerSecond < 1 || o.Publishers < 1 || o.Before <= 0 || o.Settle < 0 || size < 1 || o.SizeBytes < 0 {
				return cli.Usage("--store, --per-second, --publishers and --before must be positive, and " +
					"--message-size and --settle not negative")
			}
			o.StoreBytes = size.Bytes()
			f.Pair = true
			return benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				r, err := measure.Wipe(cmd.Context(), t, o)
				if err != nil {
					return err
				}
				return printWipe(env, r)
			})
		},
	}
	cmd.Flags().StringVar(&f.Sync, "sync", "always", "sync mode of the nodes: always, interval or off")
	cmd.Flags().StringVar(&f.Dir, "dir", "", "data directory; default: a temporary one")
	cmd.Flags().StringVar(&f.Memory, "memory", "512MiB", "memory budget of the nodes")
	cmd.Flags().StringVar(&f.PageSize, "page-size", "2KiB", "page size of the nodes")
	cmd.Flags().StringVar(&storeSize, "store", "2GiB", "size of the messages in the store at the start")
	cmd.Flags().IntVar(&o.SizeBytes, "message-size", 512, "size of a published message in bytes")
	cmd.Flags().IntVar(&o.PerSecond, "per-second", 1000, "messages published per second")
	cmd.Flags().IntVar(&o.Publishers, "publishers", 16, "publishers, each of which waits for its acknowledgements")
	cmd.Flags().DurationVar(&o.Before, "before", 10*time.Second,
		"measuring time with both nodes, at the start and at the end")
	cmd.Flags().DurationVar(&o.Settle, "settle", 20*time.Second,
		"idle time of the disk after filling the store")
	f.Sizes, f.Messages, f.Rounds, f.Queues = []string{"512"}, 1, 1, 1
	return cmd
}

// printWipe prints a table of the latencies and a sentence with the other figures.
func printWipe(env *cli.Env, r measure.WipeResult) error {
	if err := env.Print.Object(r); err != nil {
		return err
	}
	row := func(name string, l measure.Latencies) []any {
		return []any{
			name, l.Messages, fmt.Sprintf("%.1f", l.Seconds), benchcli.Digits(l.P50), benchcli.Digits(l.P99),
			benchcli.Digits(l.P999),
			benchcli.Digits(l.Max),
		}
	}
	err := env.Print.Table([]string{"Phase", "Messages", "Seconds", "p50 ms", "p99 ms", "p99.9 ms", "Max ms"}, [][]any{
		row("both nodes", r.Before), row("standby wiped", r.While), row("both again", r.After),
	})
	if err != nil {
		return err
	}
	return env.Print.Sentence("p99 × %.2f; snapshot of %.0f MB in %.1f s: %.0f MB/s; in sync %.1f s after the start of "+
		"the empty node", r.P99Ratio,
		r.SnapshotMB, r.SnapshotSeconds, r.SnapshotRate, r.InSyncSeconds)
}
