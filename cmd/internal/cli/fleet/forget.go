// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// listedNames is the maximum number of queue names that lockstep fleet forget prints.
const listedNames = 20

func forgetCommand(env *cli.Env) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "forget PAIR", Short: "Remove a lost pair and its queue names (loses its messages)",
		Long: `Remove a permanently lost pair, and the names of its queues, from the directory. Its messages are lost, and
other pairs can create queues with these names. The nodes in --addr must belong to other pairs. The command is
refused while the pair is live.

DO NOT START THE NODES OF THE PAIR AGAIN with their data directories: they would serve queues although other pairs
can have queues with the same names.

The registration of the pair is removed after the moves from the pair to other pairs have ended. If they do not end
within --timeout, the command fails, although the names of other queues are already removed: repeat the command.
For moves to the pair, the source pairs keep the queues. If the lost pair had already taken them over, messages that
it stored since are lost, and messages that it delivered since are delivered again.

On a terminal, the command asks for confirmation; scripts use --yes.`,
		Example: "  lockstep fleet forget b\n  lockstep fleet forget b --yes --output json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				answers, err := responding(ctx, env, c)
				if err != nil {
					return err
				}
				return forget(ctx, env, answers[0], args[0], yes)
			})
		},
	}
	cli.AddYes(cmd, &yes)
	return cmd
}

// forgotten is the output of lockstep fleet forget.
type forgotten struct {
	Done bool   `json:"done"`
	Pair string `json:"pair"`
	// Queues is the number of names, of which Names are the first 20. RemovedQueues is the number of names that were
	// removed.
	Queues        uint64   `json:"queues"`
	Names         []string `json:"queue_names"`
	RemovedQueues uint64   `json:"removed_queues"`
	// RemovedMoves are the epochs of the moves to the pair that were removed. WaitingMoves are those of moves from the
	// pair that have not ended.
	RemovedMoves []uint64 `json:"removed_moves"`
	WaitingMoves []uint64 `json:"waiting_moves"`
	// Returned are the moves to the pair, of which the sources keep the queues.
	Returned []returned `json:"returned_moves"`
}

// returned is a move to a pair that is removed.
type returned struct {
	Epoch  uint64   `json:"epoch"`
	From   string   `json:"from"`
	Queues []string `json:"queues"`
}

func forget(ctx context.Context, env *cli.Env, a answer, pair string, yes bool) error {
	f := forgotten{
		Pair: pair, Names: []string{}, RemovedMoves: []uint64{}, WaitingMoves: []uint64{}, Returned: []returned{},
	}
	for _, p := range a.fleet.GetPairs() {
		if p.GetName() == pair {
			f.Queues = p.GetQueues()
		}
	}
	for p, err := range a.node.Placements(ctx, admin.PlacementOptions{Pair: pair}) {
		if err != nil {
			return err
		}
		if f.Names = append(f.Names, p.GetQueue()); len(f.Names) == listedNames {
			break
		}
	}
	f.Queues = max(f.Queues, uint64(len(f.Names)))
	moves, err := a.node.Moves(ctx)
	if err != nil {
		return err
	}
	for _, m := range moves.GetMoves() {
		if m.GetTo() == pair && m.GetPhase() < pb.MovePhase_MOVE_PHASE_DONE {
			f.Returned = append(f.Returned, returned{m.GetEpoch(), m.GetFrom(), m.GetQueues()})
		}
	}
	return confirmForget(ctx, env, a.node, &f, yes)
}

func confirmForget(ctx context.Context, env *cli.Env, node *admin.Node, f *forgotten, yes bool) error {
	text := fmt.Sprintf("removal of pair %s from the fleet; the messages of %s will be lost", f.Pair,
		output.Plural(f.Queues, "queue"))
	if len(f.Names) > 0 {
		text += ": " + strings.Join(f.Names, ", ")
	}
	if f.Queues > uint64(len(f.Names)) {
		text += ", …"
	}
	if err := env.Print.Sentence("%s", text); err != nil {
		return err
	}
	for _, m := range f.Returned {
		if err := env.Print.Sentence("move %d: pair %s keeps %s. If pair %s has taken them, messages that it stored since "+
			"are lost, and messages that it delivered since are delivered again", m.Epoch, m.From,
			strings.Join(m.Queues, ", "), f.Pair); err != nil {
			return err
		}
	}
	if err := env.ConfirmPlan(ctx, yes, f, "Remove pair %s, which must never be started again?", f.Pair); err != nil {
		return err
	}
	if err := forgetUntilDone(ctx, env, node, f); err != nil {
		return err
	}
	if !f.Done {
		return fmt.Errorf("moves %v from pair %s have not ended: start their target pairs, which lockstep fleet moves "+
			"shows, and repeat the command", f.WaitingMoves, f.Pair)
	}
	return env.Print.Result(*f, "pair %s was removed, with %s", f.Pair, output.Plural(f.RemovedQueues, "queue name"))
}

// forgetUntilDone repeats the request while targets end moves from the pair, until --timeout.
func forgetUntilDone(ctx context.Context, env *cli.Env, node *admin.Node, f *forgotten) error {
	limited, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	ticker := time.NewTicker(waitInterval)
	defer ticker.Stop()
	for {
		resp, err := node.ForgetPair(limited, f.Pair)
		if err != nil {
			return err
		}
		f.add(resp)
		if f.Done {
			return nil
		}
		select {
		case <-ticker.C:
		case <-limited.Done():
			return nil
		}
	}
}

func (f *forgotten) add(resp *pb.ForgetPairResponse) {
	f.RemovedQueues += resp.GetQueues()
	f.RemovedMoves = append(f.RemovedMoves, resp.GetMoves()...)
	f.WaitingMoves = slices.Concat([]uint64{}, resp.GetWaiting())
	f.Done = len(f.WaitingMoves) == 0
}
