// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/fleet/balance"
)

var errMovesFailed = cli.WithHint(errors.New("not all queues were moved"),
	"the command again when the reasons are resolved: the other queues remain on their pairs")

type rebalanceFlags struct {
	threshold   float64
	maxMoves    int
	dryRun, yes bool
}

func rebalanceCommand(env *cli.Env) *cobra.Command {
	var f rebalanceFlags
	cmd := &cobra.Command{
		Use: "rebalance", Short: "Move queues from loaded to other pairs",
		Long: `Move queues between the open and live pairs, until their loads differ by at most --threshold percentage
points, or no move reduces the difference. Two loads are compared: the used fraction of the space, and the share of
the messages that are published in the fleet. The second one is ignored if fewer than 1,000 messages per second are
published.

The command prints a plan, and asks for confirmation; scripts use --yes. Placement rules apply, and each target keeps
10 % of its space free. The exit code is 1 if queues of the plan could not be moved. After an interruption, run the
command again: it computes a new plan. Schedules, policies, access rules and quotas are not moved with the queues: see
lockstep fleet move.`,
		Example: `  lockstep fleet rebalance
  lockstep fleet rebalance --threshold 20 --max-moves 5 --yes
  lockstep fleet rebalance --dry-run --output json | jq '.moves[]'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.threshold <= 0 || f.threshold > 100 {
				return cli.Usage("--threshold is %v; use a number above 0 and up to 100", f.threshold)
			}
			if f.maxMoves < 0 {
				return cli.Usage("--max-moves must not be negative")
			}
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return rebalance(ctx, env, c, &f)
			})
		},
	}
	cmd.Flags().Float64Var(&f.threshold, "threshold", balance.DefaultThreshold,
		"permitted difference of the loads, in percentage points: above 0, up to 100")
	cmd.Flags().IntVar(&f.maxMoves, "max-moves", 0, "maximum number of moves (0: no limit)")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only print the plan")
	cli.AddYes(cmd, &f.yes)
	return cmd
}

// rebalanced is the output of lockstep fleet rebalance.
type rebalanced struct {
	// Done reports whether the plan was executed.
	Done      bool          `json:"done"`
	Threshold float64       `json:"threshold"`
	Pairs     []pairLoads   `json:"pairs"`
	Moves     []plannedMove `json:"moves"`
	// Results are the results of the moves, including failed ones.
	Results []moveInfo `json:"results"`
}

// pairLoads is the load of a pair before and after a plan.
type pairLoads struct {
	Pair   string   `json:"pair"`
	Before pairLoad `json:"before"`
	After  pairLoad `json:"after"`
}

type pairLoad struct {
	Queues      int    `json:"queues"`
	StoredBytes uint64 `json:"stored_bytes"`
	FreeBytes   uint64 `json:"free_bytes"`
	PublishRate uint64 `json:"publish_rate"`
	// UsedPercent is the used fraction of the space, and SharePercent the fraction of the fleet's publish rate.
	UsedPercent  float64 `json:"used_percent"`
	SharePercent float64 `json:"share_percent"`
}

func newPairLoad(l *balance.Load) pairLoad {
	return pairLoad{
		Queues: l.Queues, StoredBytes: l.StoredBytes, FreeBytes: l.FreeBytes, PublishRate: l.Rate, UsedPercent: l.Used,
		SharePercent: l.Share,
	}
}

func rebalance(ctx context.Context, env *cli.Env, c *client.Client, f *rebalanceFlags) error {
	state, failed, err := survey(ctx, env, c)
	if err != nil {
		return err
	}
	if err := firstFailure(failed); err != nil {
		return err
	}
	plan := balance.Rebalance(state, balance.Options{Threshold: f.threshold, MaxMoves: f.maxMoves})
	r := rebalanced{
		Threshold: f.threshold, Pairs: []pairLoads{}, Moves: plannedMoves(plan.Moves), Results: []moveInfo{},
	}
	for i := range plan.Before {
		r.Pairs = append(r.Pairs, pairLoads{
			plan.Before[i].Pair, newPairLoad(&plan.Before[i]), newPairLoad(&plan.After[i]),
		})
	}
	if err := printRebalance(env, &r); err != nil {
		return err
	}
	switch {
	case len(r.Moves) == 0:
		return env.Print.Result(r, "nothing to move: the loads differ by at most %v percentage points, or no move reduces "+
			"the difference", f.threshold)
	case f.dryRun:
		return env.Print.Result(r, "no queues moved: --dry-run")
	}
	question := fmt.Sprintf("Execute %s?", output.Plural(len(r.Moves), "move"))
	if err := env.ConfirmPlan(ctx, f.yes, &r, "%s", question); err != nil {
		return err
	}
	return r.execute(ctx, env, c, plan.Moves)
}

func (r *rebalanced) execute(ctx context.Context, env *cli.Env, c *client.Client, moves []balance.Move) error {
	r.Done = true
	e := executor{env: env, c: c, show: func(i moveInfo) error { return env.Print.Sentence("%s", i.text()) }}
	results, left, err := e.run(ctx, moves)
	if r.Results = append(r.Results, results...); err != nil {
		return err
	}
	if len(left) > 0 {
		return errors.Join(env.Print.Object(r), printLeft(env, leftGroups(left)), errMovesFailed)
	}
	return env.Print.Result(r, "all queues of the plan were moved")
}

func printRebalance(env *cli.Env, r *rebalanced) error {
	rows := make([][]any, len(r.Pairs))
	for i, p := range r.Pairs {
		rows[i] = []any{
			p.Pair, output.Bytes(p.Before.StoredBytes), percent(p.Before.UsedPercent), p.Before.PublishRate,
			output.Bytes(p.After.StoredBytes), percent(p.After.UsedPercent), p.After.PublishRate,
		}
	}
	header := []string{"Pair", ">Stored", ">Used", "Published/s", ">Stored after", ">Used after", "Published/s after"}
	err := env.Print.Table(header, rows)
	if err != nil || len(r.Moves) == 0 {
		return err
	}
	return errors.Join(env.Print.Sentence(""), printPlanned(env, r.Moves))
}

func percent(p float64) string { return fmt.Sprintf("%.1f %%", p) }
