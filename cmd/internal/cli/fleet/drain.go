// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func drainCommand(env *cli.Env) *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use: "drain PAIR", Short: "Stop the creation of new queues on a pair",
		Long: `Drain a pair: new queues are created only on other pairs that are open and live, and that the placement
rules permit. Without such a pair, they cannot be created. New queues of placement groups that the pair has are still
created on it. Existing queues remain usable.

With --move, the command also moves all queues of the pair to other open pairs, or to those in --to. It prints the
moves, and asks for confirmation; scripts use --yes. Placement rules apply, and each target keeps 10 % of its space
free. If queues cannot be moved, the command lists them with the reasons, and the exit code is 1 (0 with --dry-run).
With --wait, it tries again until the pair has no queues. After an interruption, run the command again. Schedules,
policies, access rules and quotas are not moved with the queues: see lockstep fleet move.

To remove the pair from the fleet afterwards, use lockstep fleet leave.`,
		Example: `  lockstep fleet drain b
  lockstep fleet drain b --move --wait --yes
  lockstep fleet drain b --move --to a,c --dry-run
  lockstep fleet drain b --output json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !f.move && (len(f.to) > 0 || f.dryRun || f.yes) {
				return cli.Usage("--to, --dry-run and --yes require --move")
			}
			if !f.move && !f.wait {
				return setState(env, pb.PairState_PAIR_STATE_DRAINING)(cmd, args)
			}
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return (&drainer{env: env, c: c, pair: args[0], drainFlags: f}).run(ctx)
			})
		},
	}
	cmd.Flags().BoolVar(&f.move, "move", false, "move all queues of the pair to other pairs")
	cmd.Flags().StringSliceVar(&f.to, "to", nil, "with --move: names of the target pairs; default: all open pairs")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until the pair has no queues")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "with --move: only print the moves")
	cli.AddYes(cmd, &f.yes)
	return cmd
}

func undrainCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "undrain PAIR", Short: "Permit new queues on a drained pair again",
		Long: `Permit new queues on a pair again, after lockstep fleet drain. Queues that were moved to other pairs remain
there.`,
		Example: "  lockstep fleet undrain b\n  lockstep fleet undrain b --output json",
		Args:    cobra.ExactArgs(1),
		RunE:    setState(env, pb.PairState_PAIR_STATE_OPEN),
	}
}

// drained is the output of lockstep fleet drain and undrain.
type drained struct {
	Pair  string `json:"pair"`
	State string `json:"state"`
	// Queues is the number of queues that remain on the pair.
	Queues   uint64   `json:"queues"`
	Warnings []string `json:"warnings"`
	// The following fields are set only with --move. Moves is the plan, Results are the results of the moves, including
	// failed ones, and Left the queues that cannot be moved.
	Moves   []plannedMove `json:"moves,omitempty"`
	Results []moveInfo    `json:"results,omitempty"`
	Left    []leftGroup   `json:"left,omitempty"`
}

func newDrained(f *pb.GetFleetResponse, name string, state pb.PairState) drained {
	d := drained{Pair: name, State: enumText(state, "PAIR_STATE_"), Warnings: []string{}}
	for _, p := range f.GetPairs() {
		if p.GetName() == name {
			d.Queues = p.GetQueues()
		}
	}
	return d
}

func setState(env *cli.Env, state pb.PairState) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		name := args[0]
		return change(cmd.Context(), env, func(ctx context.Context, a answer) error {
			if err := a.node.SetPairState(ctx, name, state); err != nil {
				return err
			}
			d := newDrained(a.fleet, name, state)
			if state == pb.PairState_PAIR_STATE_OPEN {
				return printUndrained(env, &d, a.fleet)
			}
			d.warn(a.fleet)
			return printDrained(env, &d)
		})
	}
}

// warn adds warnings about new queues that can be created on no other pair.
func (d *drained) warn(f *pb.GetFleetResponse) {
	open := false
	for _, p := range f.GetPairs() {
		open = open || p.GetName() != d.Pair && p.GetState() == pb.PairState_PAIR_STATE_OPEN && p.GetLive()
	}
	if !open {
		d.Warnings = append(d.Warnings, "no queues can be created, because no other pair is open and live; "+
			"lockstep fleet undrain opens a pair")
	}
	for _, r := range f.GetRules() {
		if r.GetPair() == d.Pair {
			d.Warnings = append(d.Warnings, fmt.Sprintf("queues that match %s cannot be created, because a placement rule "+
				"requires this pair; lockstep fleet place changes the rule", r.GetPattern()))
		}
	}
}

func printUndrained(env *cli.Env, d *drained, f *pb.GetFleetResponse) error {
	for _, p := range f.GetPairs() {
		if p.GetName() == d.Pair && !p.GetLive() && f.GetDirectory().GetCurrent() {
			d.Warnings = append(d.Warnings, "the pair is not live: no queues are created on it until one of its nodes is "+
				"active; lockstep status with its addresses shows the reason")
		}
	}
	if len(d.Warnings) > 0 {
		return env.Print.Result(d, "pair %s is open\nWARNING: %s", d.Pair, d.Warnings[0])
	}
	return env.Print.Result(d, "pair %s is open: new queues are created on it", d.Pair)
}

func printDrained(env *cli.Env, d *drained) error {
	text := fmt.Sprintf("pair %s is draining: new queues are created on other pairs, except in its placement groups",
		d.Pair)
	if d.Queues > 0 {
		text += fmt.Sprintf("\n%s on the pair: lockstep fleet drain %s --move moves them to "+
			"other pairs", remain(d.Queues), d.Pair)
	} else {
		text += "\nthe pair has no queues: lockstep fleet leave removes it from the fleet"
	}
	for _, w := range d.Warnings {
		text += "\nWARNING: " + w
	}
	return env.Print.Result(d, "%s", text)
}

func remain(n uint64) string {
	if n == 1 {
		return "1 queue remains"
	}
	return output.Plural(n, "queue") + " remain"
}
