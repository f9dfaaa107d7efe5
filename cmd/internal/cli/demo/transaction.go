// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/demo"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

func transactionCommand(env *cli.Env) *cobra.Command {
	var o demo.ChainOptions
	var keep bool
	var coordinator string
	cmd := &cobra.Command{
		Use:   "transaction",
		Short: "Verify transactions while the active is killed",
		Long: `Start a pair on this machine, and publish orders to a queue. Workers consume each order and publish an
invoice to another queue, in one transaction. In the meantime, the active is repeatedly killed with SIGKILL, and
workers are stopped at any point of their work. The data is in a temporary directory, which is kept only if the demo
fails.

The exit code is 0 only if each acknowledged order has exactly one invoice and both stores are identical.`,
		Example: `  lockstep demo transaction
  lockstep demo transaction --kills 20 --rate 500
  lockstep demo transaction --coordinator raft --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Kills < 0 || o.Kills > 1000 || o.Rate < 1 || o.Rate > 10_000 {
				return cli.Usage("--kills must be 0 to 1000 and --rate 1 to 10000")
			}
			var err error
			if o.Raft, err = cli.WantsRaft(coordinator); err != nil {
				return err
			}
			if keep {
				if err := keepRunning(cmd.Context(), env, &o.Options); err != nil {
					return err
				}
			}
			return demoTransaction(cmd.Context(), env, o)
		},
	}
	cmd.Flags().IntVar(&o.Kills, "kills", 5, "number of kills of the active, 0 to 1000")
	cmd.Flags().IntVar(&o.Rate, "rate", 200, "orders published per second, 1 to 10000")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the pair running after the checks, until Ctrl-C")
	cmd.Flags().StringVar(&coordinator, "coordinator", "etcd",
		"coordinator: etcd, or raft with a witness process")
	return cmd
}

func demoTransaction(ctx context.Context, env *cli.Env, o demo.ChainOptions) error {
	if err := demoOptions(env, &o.Options); err != nil {
		return err
	}
	return keepIfFailed(ctx, o.Options, func() (passed bool, err error) {
		v, err := demo.Chain(ctx, o)
		if err != nil {
			return false, err
		}
		return v.Passed(), printChainVerdict(env, v)
	})
}

func printChainVerdict(env *cli.Env, v demo.ChainVerdict) error {
	if env.Print.JSON() {
		return env.Print.Object(struct {
			Passed bool `json:"passed"`
			demo.ChainVerdict
		}{v.Passed(), v})
	}
	verdict := "passed: each order has exactly one invoice, both stores are identical"
	if !v.Passed() {
		verdict = "FAILED"
	}
	if err := env.Print.Sentence(""); err != nil {
		return err
	}
	rows := [][]any{
		{"orders published", output.Count(v.Published)},
		{"attempts to process an order", output.Count(v.Processed)},
		{"  refused as already processed", output.Count(v.Refused)},
		{"invoices stored", output.Count(v.Stored)},
		{"  missing", output.Count(v.Missing)},
		{"  duplicated", output.Count(v.Doubled)},
		{"orders not processed", output.Count(v.Left)},
		{"kills of the active", output.Count(v.Kills)},
		{"stopped workers", output.Count(v.LostWorkers)},
	}
	for i, n := range []string{"a", "b"} {
		rows = append(rows, []any{"digest of node " + n, fmt.Sprintf("%.16s… at LSN %d", v.Digests[i], v.LSN)})
	}
	return env.Print.Table([]string{"Verdict", verdict}, append(rows, []any{"coordinator", v.Coordinator}))
}
