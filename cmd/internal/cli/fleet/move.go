// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// waitInterval is the interval at which commands request the state of a move that they wait for.
const waitInterval = 200 * time.Millisecond

func moveCommand(env *cli.Env) *cobra.Command {
	var o moveOptions
	cmd := &cobra.Command{
		Use: "move [QUEUE...]", Short: "Move queues to another pair",
		Long: `Move queues to another pair while clients use them: the given queues, or those of a placement group. All
queues must belong to one pair. Queues that refer to each other (dead-letter queues, forwards) must be moved
together. The dead-letter queue of a policy cannot be moved.

Policies, access rules, quotas and schedules are not moved. After the move, the policies, access rules and quotas of the
target pair apply to the queues: create them there first. Schedules of the source pair that publish to the queues then
fail: delete them, and put them again.

Near the end of the move, clients wait for a short time, and messages in flight to consumers are delivered again. The
command returns when the move has begun. With --wait, it returns when the move has ended, and the exit code is 1 if the
queues were not moved.

--cancel cancels a move, unless the target pair has already taken over the queues.`,
		Example: `  lockstep fleet move orders invoices --to b --wait
  lockstep fleet move --group customer-7 --to b
  lockstep fleet move --cancel 48`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.queues = args
			if err := o.check(); err != nil {
				return err
			}
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if o.cancel != 0 {
					return cancelMove(ctx, env, c, o.cancel)
				}
				return move(ctx, env, c, o)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.to, "to", "", "name of the target pair")
	f.StringVar(&o.group, "group", "", "placement group: move all its queues")
	f.BoolVar(&o.wait, "wait", false, "wait until the move has ended, regardless of --timeout")
	f.Uint64Var(&o.cancel, "cancel", 0, "epoch of a move to cancel, from lockstep fleet moves")
	cmd.MarkFlagsMutuallyExclusive("cancel", "to")
	cmd.MarkFlagsMutuallyExclusive("cancel", "wait")
	cmd.MarkFlagsMutuallyExclusive("cancel", "group")
	cmd.MarkFlagsOneRequired("cancel", "to")
	return cmd
}

type moveOptions struct {
	queues    []string
	to, group string
	wait      bool
	cancel    uint64
}

func (o *moveOptions) check() error {
	switch {
	case o.cancel != 0 && len(o.queues) > 0:
		return cli.Usage("--cancel cancels all queues of a move: do not specify queues")
	case o.cancel == 0 && (len(o.queues) > 0) == (o.group != ""):
		return cli.Usage("specify either queues or --group")
	}
	return nil
}

// moveInfo is a move, as printed.
type moveInfo struct {
	Epoch  uint64   `json:"epoch"`
	From   string   `json:"from"`
	To     string   `json:"to"`
	Queues []string `json:"queues"`
	// Phase is waiting, copying, fenced, taken, canceled, done or not-moved; empty if unknown.
	Phase          string  `json:"phase"`
	CopiedBytes    uint64  `json:"copied_bytes"`
	RemainingBytes uint64  `json:"remaining_bytes"`
	Passes         uint32  `json:"passes"`
	PauseSeconds   float64 `json:"pause_seconds"`
	Error          string  `json:"error"`
}

func infoOf(m *pb.FleetMove) moveInfo {
	return moveInfo{
		Epoch: m.GetEpoch(), From: m.GetFrom(), To: m.GetTo(), Queues: m.GetQueues(),
		Phase: enumText(m.GetPhase(), "MOVE_PHASE_"), CopiedBytes: m.GetCopiedBytes(),
		RemainingBytes: m.GetRemainingBytes(), Passes: m.GetPasses(), PauseSeconds: m.GetPause().AsDuration().Seconds(),
		Error: m.GetError(),
	}
}

// activeOf returns the active node of a registered pair.
func activeOf(ctx context.Context, env *cli.Env, c *client.Client, pair string) (*admin.Node, error) {
	answers, err := responding(ctx, env, c)
	if err != nil {
		return nil, err
	}
	a := answers[0]
	for _, p := range a.fleet.GetPairs() {
		if p.GetName() != pair {
			continue
		}
		found, failed := members(ctx, env, c, p.GetAddresses())
		for _, m := range found {
			if m.name == pair {
				return m.node, m.err
			}
		}
		if err := failure(failed); err != nil {
			return nil, fmt.Errorf("pair %s: %w", pair, err)
		}
		return nil, cli.WithHint(fmt.Errorf("no node of pair %s responds", pair),
			"`lockstep fleet status` to show the nodes of the pair, and `lockstep doctor` on their machines")
	}
	if !a.complete() {
		return nil, cli.WithHint(fmt.Errorf("pair %s is not in the directory of %s, which may be incomplete", pair,
			a.address), "`lockstep fleet status` to show the state of the directory")
	}
	return nil, notRegistered(pair)
}

var errNotRegistered = errors.New("not registered")

func notRegistered(pair string) error {
	return cli.WithHint(fmt.Errorf("pair %s is %w", pair, errNotRegistered), "`lockstep fleet pairs` to show the pairs")
}

// permanent reports whether an error of activeOf remains when another node becomes active or responds: the pair is not
// registered, the nodes belong to no fleet, or the node denies access.
func permanent(err error) bool {
	return errors.Is(err, errNotRegistered) || errors.Is(err, client.ErrRefused) || pairstatus.Refuses(err)
}

func move(ctx context.Context, env *cli.Env, c *client.Client, o moveOptions) error {
	limited, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	node, err := activeOf(limited, env, c, o.to)
	if err != nil {
		return err
	}
	begun, err := node.MoveQueues(limited, o.queues, o.group)
	if err != nil {
		return err
	}
	info := moveInfo{Epoch: begun.GetEpoch(), From: begun.GetFrom(), To: o.to, Queues: begun.GetQueues(), Phase: "waiting"}
	text := fmt.Sprintf("move %d of %s from pair %s to pair %s has begun", info.Epoch,
		output.Plural(len(info.Queues), "queue"), info.From, info.To)
	if !o.wait {
		return env.Print.Result(info, "%s; lockstep fleet moves shows its progress", text)
	}
	if err := env.Print.Sentence("%s", text); err != nil {
		return err
	}
	return wait(ctx, env, c, info)
}

// wait waits until a move has ended, and prints the result.
func wait(ctx context.Context, env *cli.Env, c *client.Client, info moveInfo) error {
	ticker := time.NewTicker(waitInterval)
	defer ticker.Stop()
	for {
		ended, err := poll(ctx, env, c, &info)
		switch {
		case err != nil && !errors.Is(err, client.ErrUnavailable):
			return err
		case err == nil && ended:
			return printEnded(env, &info)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// poll updates the state of a move. While no active node of the target responds, the state does not change.
func poll(ctx context.Context, env *cli.Env, c *client.Client, info *moveInfo) (ended bool, _ error) {
	limited, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	node, err := activeOf(limited, env, c, info.To)
	switch {
	case err != nil && permanent(err):
		return false, err
	case err != nil:
		return false, nil // another node becomes the active
	}
	ended, err = info.update(limited, node)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return false, nil // the node does not respond
	}
	return ended, err
}

// update requests the state of a move from the active node of its target.
func (i *moveInfo) update(ctx context.Context, node *admin.Node) (ended bool, _ error) {
	list, err := node.Moves(ctx)
	if err != nil {
		return false, err
	}
	for _, m := range list.GetMoves() {
		if m.GetEpoch() == i.Epoch {
			*i = infoOf(m)
			return m.GetPhase() >= pb.MovePhase_MOVE_PHASE_DONE, nil
		}
	}
	if !list.GetCurrent() {
		return false, nil
	}
	// Another node has become the active after the move has ended.
	phase := "not-moved"
	for p, err := range node.Placements(ctx, admin.PlacementOptions{Pattern: i.Queues[0]}) {
		if err != nil {
			return false, err
		}
		if p.GetQueue() == i.Queues[0] && p.GetPair() == i.To {
			phase = "done"
		}
	}
	i.Phase = phase
	return true, nil
}

var errNotMoved = cli.WithHint(errors.New("queues were not moved"),
	"the command again when the reason is resolved: the queues remain on their pair")

func printEnded(env *cli.Env, info *moveInfo) error {
	if info.Phase == "done" {
		return env.Print.Result(*info, "%s moved to pair %s", output.Plural(len(info.Queues), "queue"), info.To)
	}
	if err := env.Print.Object(*info); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s", errNotMoved, cmp.Or(info.Error, "the move was canceled"))
}

// targets returns the active nodes of the registered pairs, by name.
func targets(ctx context.Context, env *cli.Env, c *client.Client, f *pb.GetFleetResponse) map[string]*admin.Node {
	var addresses []string
	for _, p := range f.GetPairs() {
		addresses = append(addresses, p.GetAddresses()...)
	}
	nodes := map[string]*admin.Node{}
	found, _ := members(ctx, env, c, addresses)
	for _, m := range found {
		if m.node != nil {
			nodes[m.name] = m.node
		}
	}
	return nodes
}

// list returns the unfinished moves and the last ended ones, in the order of their epochs, and the active nodes of the
// registered pairs. outdated reports whether moves may be missing.
func list(
	ctx context.Context, env *cli.Env, c *client.Client,
) (moves []moveInfo, nodes map[string]*admin.Node, outdated bool, _ error) {
	answers, err := responding(ctx, env, c)
	if err != nil {
		return nil, nil, false, err
	}
	known, err := answers[0].node.Moves(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	byEpoch := map[uint64]moveInfo{}
	for _, m := range known.GetMoves() {
		byEpoch[m.GetEpoch()] = infoOf(m)
	}
	nodes = targets(ctx, env, c, answers[0].fleet)
	for name, node := range nodes {
		own, err := node.Moves(ctx)
		if err != nil {
			continue // the other nodes show the move without its progress
		}
		for _, m := range own.GetMoves() {
			if m.GetTo() == name {
				byEpoch[m.GetEpoch()] = infoOf(m)
			}
		}
	}
	for _, m := range byEpoch {
		moves = append(moves, m)
	}
	slices.SortFunc(moves, func(a, b moveInfo) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return moves, nodes, !known.GetCurrent(), nil
}

func cancelMove(ctx context.Context, env *cli.Env, c *client.Client, epoch uint64) error {
	ctx, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	moves, nodes, _, err := list(ctx, env, c)
	if err != nil {
		return err
	}
	for _, m := range moves {
		if m.Epoch != epoch {
			continue
		}
		node := nodes[m.To]
		if node == nil {
			return cli.WithHint(fmt.Errorf("no node of pair %s is active", m.To), "`lockstep status` with the "+
				"addresses of the pair, to show nodes, conditions and actions")
		}
		if err := node.CancelMove(ctx, epoch); err != nil {
			return err
		}
		m.Phase = "canceled"
		return env.Print.Result(m, "move %d is canceled; pair %s serves %s", epoch, m.From,
			output.Plural(len(m.Queues), "queue"))
	}
	return cli.WithHint(fmt.Errorf("no move has the epoch %d", epoch), "`lockstep fleet moves` to show the moves")
}

func movesCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "moves", Short: "Show moves of queues between pairs",
		Long: `Show the moves in progress, and the last moves that have ended. A move is not shown if it ended before the
active node of its target pair became active.`,
		Example: "  lockstep fleet moves\n  lockstep fleet moves --output json | jq '{epoch, phase}'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				moves, _, outdated, err := list(ctx, env, c)
				if err != nil {
					return err
				}
				if outdated {
					// Write errors are ignored: the list follows.
					_, _ = fmt.Fprintln(env.Stderr, "WARNING: the node does not reach etcd, and the list may be outdated "+
						"(lockstep fleet status)")
				}
				return printMoves(env, moves)
			})
		},
	}
}

func printMoves(env *cli.Env, moves []moveInfo) error {
	var rows [][]any
	for i := range moves {
		m := &moves[i]
		if err := env.Print.Object(*m); err != nil {
			return err
		}
		rows = append(rows, []any{
			m.Epoch, m.From, m.To, m.Phase, strings.Join(m.Queues, ", "), output.Bytes(m.CopiedBytes),
			output.Bytes(m.RemainingBytes), cmp.Or(m.Error, "-"),
		})
	}
	if env.Print.JSON() {
		return nil
	}
	if len(rows) == 0 {
		return env.Print.Sentence("no moves")
	}
	return env.Print.Table([]string{"Epoch", "From", "To", "Phase", "Queues", "Copied", "Remaining", "Error"}, rows)
}
