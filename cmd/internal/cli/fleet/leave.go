// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

func leaveCommand(env *cli.Env) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "leave", Short: "Remove a pair from the fleet",
		Long: `Remove the pair in --addr from the fleet. The pair must have no queues, unless it is the last pair of the
fleet. Moves from or to the pair must have ended. To move the queues to other pairs, use lockstep fleet drain PAIR
--move.

Afterwards, remove fleet.pair from the settings of both nodes, and restart them. With fleet.pair, the pair joins the
fleet again after a restart. On a terminal, the command asks for confirmation; scripts use --yes.`,
		Example: `  lockstep fleet leave --addr b-1:7420,b-2:7420
  lockstep fleet leave --addr b-1:7420,b-2:7420 --yes --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return leave(ctx, env, c, yes)
			})
		},
	}
	cli.AddYes(cmd, &yes)
	return cmd
}

// departure is the output of lockstep fleet leave.
type departure struct {
	Done    bool   `json:"done"`
	Pair    string `json:"pair"`
	FleetID string `json:"fleet_id"`
	// Queues is the number of queues of the pair, and Others the number of other registered pairs.
	Queues uint64 `json:"queues"`
	Others int    `json:"other_pairs"`
}

func leave(ctx context.Context, env *cli.Env, c *client.Client, yes bool) error {
	addresses, err := env.Addresses()
	if err != nil {
		return err
	}
	pairs, failed := members(ctx, env, c, addresses)
	switch {
	case len(pairs) == 0:
		return failure(failed)
	case len(pairs) > 1:
		return cli.Usage("--addr contains nodes of the pairs %s; this command requires the addresses of one pair",
			strings.Join(names(pairs), " and "))
	case pairs[0].node == nil:
		return pairs[0].err
	}
	m := pairs[0]
	d := departure{Pair: m.name, FleetID: m.fleet.GetDirectory().GetFleetId()}
	for _, p := range m.fleet.GetPairs() {
		if p.GetName() == m.name {
			d.Queues = p.GetQueues()
		} else {
			d.Others++
		}
	}
	if err := env.Print.Sentence("pair %s leaves the fleet; it has %s, and the fleet has %s", d.Pair,
		output.Plural(d.Queues, "queue"), output.Plural(d.Others, "other pair")); err != nil {
		return err
	}
	if err := env.ConfirmPlan(ctx, yes, &d, "Remove pair %s from the fleet?", d.Pair); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	if err := m.node.LeaveFleet(limited); errors.Is(err, client.ErrOutcomeUnknown) {
		return cli.WithHint(err, "`lockstep fleet status` to show whether the pair is registered")
	} else if err != nil {
		return fmt.Errorf("pair %s: %w", d.Pair, err)
	}
	d.Done = true
	return env.Print.Result(d, "pair %s has left the fleet; remove fleet.pair from the settings of its nodes, and "+
		"restart them one after the other", d.Pair)
}
