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
		Use: "wipe", Short: "Measure what a publisher notices when the standby loses its disk and is replaced",
		Long: `Starts a pair, fills it, and publishes at a steady rate. Then the standby is killed, its data is removed, and it is started again: it
fetches a snapshot from the active. The latencies before are compared with those until it is in sync again; a message that is
late because the one before it took long counts from the time at which it was due. They are measured once more after that: a disk
that is limited in what it may write (those of clouds are) can be slower for what was written, and the store before took a lot.
The rate of the snapshot is that of its transfer over loopback and its installation, with both nodes on one disk.`,
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
				return cli.Usage("--store, --per-second, --publishers and --before must be above 0, and " +
					"--message-size and --settle not below")
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
	cmd.Flags().StringVar(&f.Dir, "dir", "", "directory for the data; default: a temporary one")
	cmd.Flags().StringVar(&f.Memory, "memory", "512MiB", "memory budget of the nodes")
	cmd.Flags().StringVar(&f.PageSize, "page-size", "2KiB", "page size of the nodes")
	cmd.Flags().StringVar(&storeSize, "store", "2GiB", "messages that are in the store before")
	cmd.Flags().IntVar(&o.SizeBytes, "message-size", 512, "bytes of a message that is published meanwhile")
	cmd.Flags().IntVar(&o.PerSecond, "per-second", 1000, "messages published each second")
	cmd.Flags().IntVar(&o.Publishers, "publishers", 16, "publishers, each of which waits for its acknowledgements")
	cmd.Flags().DurationVar(&o.Before, "before", 10*time.Second,
		"for how long it is measured with both nodes, first and at the end")
	cmd.Flags().DurationVar(&o.Settle, "settle", 20*time.Second,
		"how long the disk is left alone after the store was filled")
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
