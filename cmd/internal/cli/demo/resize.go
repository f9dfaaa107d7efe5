// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/store"
	"github.com/lockstep-mq/lockstep/cmd/internal/demo"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
)

func resizeCommand(env *cli.Env) *cobra.Command {
	var o demo.ResizeOptions
	var keep bool
	var fill, pageSize string
	cmd := &cobra.Command{
		Use:   "resize",
		Short: "Resize pages under load and kill the active",
		Long: `Start a pair with pages of 2 KiB on this machine, fill queues, and resize the pages of both nodes while
messages are published and consumed. During the rewrite on the standby, the active is killed with SIGKILL, and
restarted later. The data is in a temporary directory, which is kept only if the demo fails.

The exit code is 0 only if no acknowledged message was lost, duplicated or reordered, both stores are identical and
have the new page size, and both nodes were in sync, except from the kill until the killed node was in sync again.`,
		Example: `  lockstep demo resize
  lockstep demo resize --fill 2GiB --page-size 16KiB
  lockstep demo resize --no-kill --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bytes, err := config.ParseSize(fill)
			if err != nil {
				return cli.Usage("--fill: %v", err)
			}
			o.FillBytes = int64(bytes)
			if o.PageSize, err = cli.ParsePageSize("--page-size", pageSize); err != nil {
				return err
			}
			if o.Rate < 1 || o.Rate > 1_000_000 || o.FillBytes < 1<<20 {
				return cli.Usage("--rate must be 1 to 1000000 and --fill at least 1MiB")
			}
			if keep {
				if err := keepRunning(cmd.Context(), env, &o.Options); err != nil {
					return err
				}
			}
			return demoResize(cmd.Context(), env, o)
		},
	}
	cmd.Flags().StringVar(&fill, "fill", "256MiB", "total size of the messages in the filled queues, at least 1MiB")
	cmd.Flags().StringVar(&pageSize, "page-size", "",
		"new page size; default: recommended by a scan; 16KiB if the scan recommends 2KiB")
	cmd.Flags().IntVar(&o.Rate, "rate", 2000, "messages published per second, 1 to 1000000")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 0, "seed of message contents and of the time of the kill; 0: random")
	cmd.Flags().BoolVar(&o.NoKill, "no-kill", false, "do not kill the active")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the pair running after the checks, until Ctrl-C")
	return cmd
}

func demoResize(ctx context.Context, env *cli.Env, o demo.ResizeOptions) error {
	if err := demoOptions(env, &o.Options); err != nil {
		return err
	}
	o.ShowScan = func(node string, r *pb.ScanResult) { showScan(env, node, r) }
	return keepIfFailed(ctx, o.Options, func() (passed bool, err error) {
		v, err := demo.Resize(ctx, o)
		if err != nil {
			return false, err
		}
		return v.Passed(), printResizeVerdict(env, v)
	})
}

// showScan prints the result of a scan as a table; with --output json, it prints to stderr.
func showScan(env *cli.Env, node string, r *pb.ScanResult) {
	printer := env.Print
	if printer.JSON() {
		var err error
		if printer, err = output.New(env.Stderr, "table"); err != nil {
			return
		}
	}
	// Write errors, as of a closed terminal, do not stop the demo.
	_ = printer.Sentence("")
	_ = store.PrintScan(printer, node, r)
	_ = printer.Sentence("")
}

func printResizeVerdict(env *cli.Env, v demo.ResizeVerdict) error {
	if env.Print.JSON() {
		return env.Print.Object(struct {
			Passed bool `json:"passed"`
			demo.ResizeVerdict
		}{v.Passed(), v})
	}
	verdict := "passed: no message was lost or duplicated, both nodes have the new page size and are identical"
	if !v.Passed() {
		verdict = "FAILED"
	}
	if err := env.Print.Sentence(""); err != nil {
		return err
	}
	sizes := func(s [2]uint32) string {
		return fmt.Sprintf("%s and %s", output.Bytes(uint64(s[0])), output.Bytes(uint64(s[1])))
	}
	rows := [][]any{
		{"page sizes of a and b before", sizes(v.PageSizesBefore)},
		{"page sizes of a and b after", sizes(v.PageSizesAfter)},
		{"plan", fmt.Sprintf("%s, in %.1f s, restarted steps: %d", v.Plan, v.PlanSeconds, v.PlanRetries)},
		{"in the queues before the resize", fmt.Sprintf("%s, %s", output.Plural(v.BacklogMessages, "message"),
			output.Bytes(v.BacklogBytes))},
		{"  of these lost", output.Count(v.BacklogLost)},
		{"  of these duplicated", output.Count(v.BacklogDuplicated)},
		{"published during the resize", output.Count(v.Published)},
		{"  acknowledged", output.Count(v.Acknowledged)},
		{"  delivered", output.Count(v.Delivered)},
		{"  lost", output.Count(v.Lost)},
		{"  duplicated", output.Count(v.Duplicated)},
		{"  out of order", output.Count(v.OutOfOrder)},
		{"time with fewer than two copies", fmt.Sprintf("%.0f ms (%s)", v.OneCopyMS, output.Plural(v.Samples, "sample"))},
		{"longest pause of a publisher", fmt.Sprintf("%.1f ms, at %.1fs", v.PauseMS, v.PauseAt.Seconds())},
	}
	if v.KilledAtPercent > 0 {
		rows = append(rows, [][]any{
			{"kill of the active, with the standby's rewrite at", fmt.Sprintf("%.0f%%", v.KilledAtPercent)},
			{"  from kill to next acknowledged publish", fmt.Sprintf("%.1f ms", v.FailoverMS)},
			{"  longest pause of a publisher", fmt.Sprintf("%.1f ms", v.KillPauseMS)},
			{"  from restart of the killed node to in sync", fmt.Sprintf("%.1f s", v.CatchUp.Seconds())},
			{"  time with fewer than two copies", fmt.Sprintf("%.0f ms", v.KillOneCopyMS)},
		}...)
	}
	for i, n := range []string{"a", "b"} {
		rows = append(rows, []any{"digest of node " + n, fmt.Sprintf("%.16s… at LSN %d", v.Digests[i], v.LSN)})
	}
	return env.Print.Table([]string{"Verdict", verdict}, append(rows, violations(v.Verdict)...))
}
