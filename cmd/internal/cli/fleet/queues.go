// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

func queuesCommand(env *cli.Env) *cobra.Command {
	var o admin.PlacementOptions
	cmd := &cobra.Command{
		Use: "queues", Short: "List the queues with their pairs",
		Long: `List the queues of all pairs, sorted by name, according to one node in --addr: the pair that owns the queue,
the ownership epoch and the placement group. To show the messages of queues, use lockstep queue list.`,
		Example: `  lockstep fleet queues
  lockstep fleet queues --pair b --match 'orders.*'
  lockstep fleet queues --output json | jq -r 'select(.group != "") | .queue'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return listQueues(ctx, env, c, o)
			})
		},
	}
	cmd.Flags().StringVar(&o.Pair, "pair", "", "only queues of this pair")
	cmd.Flags().StringVar(&o.Pattern, "match", "", "only queues that match this pattern, with * and ?")
	return cmd
}

// placement is a line of the output of lockstep fleet queues.
type placement struct {
	Queue string `json:"queue"`
	Pair  string `json:"pair"`
	Epoch uint64 `json:"epoch"`
	Group string `json:"group"`
}

func listQueues(ctx context.Context, env *cli.Env, c *client.Client, o admin.PlacementOptions) error {
	answers, err := responding(ctx, env, c)
	if err != nil {
		return err
	}
	a := answers[0]
	if !a.current() {
		// Write errors are ignored: the list follows.
		_, _ = fmt.Fprintf(env.Stderr, "WARNING: %s does not reach etcd, and the list may be outdated "+
			"(lockstep fleet status)\n", a.address)
	}
	var rows [][]any
	for p, err := range a.node.Placements(ctx, o) {
		if err != nil {
			return err
		}
		if err := env.Print.Object(placement{p.GetQueue(), p.GetPair(), p.GetEpoch(), p.GetGroup()}); err != nil {
			return err
		}
		if !env.Print.JSON() {
			rows = append(rows, []any{p.GetQueue(), p.GetPair(), p.GetEpoch(), cmp.Or(p.GetGroup(), "-")})
		}
	}
	if len(rows) == 0 {
		return env.Print.Sentence("no queues")
	}
	return env.Print.Table([]string{"Queue", "Pair", "Epoch", "Group"}, rows)
}
