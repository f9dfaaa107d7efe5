// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/spf13/cobra"
)

func dropCorruptCommand(env *cli.Env) *cobra.Command {
	var dry, yes bool
	cmd := &cobra.Command{
		Use: "drop-corrupt NAME", Aliases: []string{"drop-damaged"}, Short: "Discard messages that cannot be read",
		Long: `Acknowledge, for all subscriptions, the messages of a queue that are corrupt on both nodes of the pair, or on a
standalone node. These messages are permanently lost. Messages that can still be repaired are kept. A replica site
discards the messages too: first check whether it or a backup has intact copies. Without a terminal, the command does
not ask for confirmation.

The active node only knows the corrupt messages that it has detected since its start. To read all messages first, use
lockstep verify --deep.`,
		Example: "  lockstep queue drop-corrupt orders --dry-run\n  lockstep queue drop-corrupt orders",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				a := admin.New(c)
				seen, all, err := confirmDropCorrupt(ctx, env, a, args[0], yes || dry)
				if err != nil {
					return err
				}
				sequences := []uint64{}
				if all || len(seen) > 0 {
					ctx, cancel := context.WithTimeout(ctx, env.Timeout)
					defer cancel()
					r, err := a.DropDamaged(ctx, &pb.DropDamagedRequest{Queue: args[0], DryRun: dry, Only: seen})
					if err != nil {
						return err
					}
					sequences = append(sequences, r.GetSequences()...)
				}
				if err := env.Print.Object(map[string]any{"sequences": sequences, "dry_run": dry}); err != nil {
					return err
				}
				if len(sequences) == 0 {
					return env.Print.Sentence("no unrepairable messages found in %s", args[0])
				}
				did := "discarded"
				if dry {
					did = "would discard"
				}
				return env.Print.Sentence("%s %s from %s: %s", did, output.Plural(len(sequences), "message"), args[0],
					fmt.Sprint(sequences))
			})
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only list the messages")
	cli.AddYes(cmd, &yes)
	return cmd
}

// confirmDropCorrupt asks for confirmation, and returns the sequences of the messages to discard. If yes is set or no
// operator can be prompted, it returns all = true instead, and the node selects the messages.
func confirmDropCorrupt(
	ctx context.Context, env *cli.Env, a *admin.Client, queue string, yes bool,
) (seen []uint64, all bool, err error) {
	if yes || !env.Asks() {
		return nil, true, nil
	}
	look, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	r, err := a.DropDamaged(look, &pb.DropDamagedRequest{Queue: queue, DryRun: true})
	if err != nil || len(r.GetSequences()) == 0 {
		return nil, false, err
	}
	return r.GetSequences(), false, env.Confirm(ctx, yes,
		"Discard %s of queue %s? They cannot be repaired afterwards.",
		output.Plural(len(r.GetSequences()), "message"), queue)
}
