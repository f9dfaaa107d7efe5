// SPDX-License-Identifier: Apache-2.0

// Package admin implements the commands for operating a pair: switchover, failover, restart, pause, resume,
// checkpoint and verify.
package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// SwitchoverCommand returns the `lockstep switchover` command.
func SwitchoverCommand(env *cli.Env) *cobra.Command {
	var within time.Duration
	req := &pb.SwitchoverRequest{}
	cmd := &cobra.Command{
		Use: "switchover", GroupID: "operate",
		Short: "Switch the active role to the other node",
		Long: `Make the standby active and the active standby, without loss of messages. Clients are paused in the meantime.
The standby must be connected and in sync. If the switchover takes longer than --within, the command fails, and the
outcome is unknown: see lockstep status.

With --to or --from, the command succeeds without a change if the requested node already has the role.`,
		Example: "  lockstep switchover\n  lockstep switchover --to b\n  lockstep switchover --from $(hostname)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithPair(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				find, cancel := context.WithTimeout(ctx, env.Timeout)
				defer cancel()
				active, err := c.WaitActive(find)
				if err != nil {
					return err
				}
				n, err := cli.NodeAt(c, active.Address)
				if err != nil {
					return err
				}
				r, there, err := alreadyActive(find, n, req)
				if err != nil {
					return err
				}
				if !there {
					ctx, cancel := context.WithTimeout(ctx, within+env.Timeout)
					defer cancel()
					req.Timeout = durationpb.New(within)
					if r, err = n.SwitchoverTo(ctx, req); err != nil {
						return err
					}
				}
				return printSwitchover(env, r)
			})
		},
	}
	cmd.Flags().DurationVar(&within, "within", 10*time.Second,
		"time limit of the switchover; after it, the outcome is unknown")
	cmd.Flags().StringVar(&req.To, "to", "",
		"name or UUID of the node to become active")
	cmd.Flags().StringVar(&req.From, "from", "",
		"name or UUID of the node to become standby")
	cmd.MarkFlagsMutuallyExclusive("to", "from")
	return cmd
}

// alreadyActive reports whether the active role is already at the requested node, and returns the response in that
// case. The node also checks this, but nodes of older releases hand the role over regardless.
func alreadyActive(
	ctx context.Context, n *admin.Node, req *pb.SwitchoverRequest,
) (r *pb.SwitchoverResponse, there bool, err error) {
	if req.GetTo() == "" && req.GetFrom() == "" {
		return nil, false, nil
	}
	st, err := n.Status(ctx)
	if err != nil {
		return nil, false, err
	}
	var active *pb.NodeStatus
	named := 0
	for _, node := range st.GetPair().GetNodes() {
		if node.GetActive() {
			active = node
		}
		if is(node, req.GetTo()) || is(node, req.GetFrom()) {
			named++
		}
	}
	if active == nil || named != 1 {
		return nil, false, nil // the node reports the error
	}
	if req.GetTo() != "" && !is(active, req.GetTo()) || req.GetFrom() != "" && is(active, req.GetFrom()) {
		return nil, false, nil
	}
	return &pb.SwitchoverResponse{
		ActiveNode: active.GetNodeId(), ActiveAddress: active.GetAddress(), Term: st.GetPair().GetTerm(), Already: true,
	}, true, nil
}

func is(node *pb.NodeStatus, called string) bool {
	return called != "" && (node.GetNodeId() == called || node.GetName() == called)
}

func printSwitchover(env *cli.Env, r *pb.SwitchoverResponse) error {
	pause := r.GetPause().AsDuration()
	text := fmt.Sprintf("%s is now active in term %d; clients were paused for %v", r.GetActiveAddress(), r.GetTerm(),
		pause.Round(100*time.Microsecond))
	if r.GetAlready() {
		text = fmt.Sprintf("%s is already active in term %d: no changes made", r.GetActiveAddress(), r.GetTerm())
	}
	return env.Print.Result(map[string]any{
		"active_node": r.GetActiveNode(), "active_address": r.GetActiveAddress(), "term": r.GetTerm(),
		"pause_ms": output.Milliseconds(pause), "already": r.GetAlready(),
	}, "%s", text)
}

// CheckpointCommand returns the `lockstep checkpoint` command.
func CheckpointCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "checkpoint [ADDRESS]", GroupID: "operate",
		Short: "Write a checkpoint now",
		Long: "Write a checkpoint of the page file, on each node in --addr or on the node at ADDRESS. A checkpoint shortly " +
			"before a stop makes the stop faster.\n\nIf a node fails, the exit code is 1.",
		Example: "  lockstep checkpoint\n  lockstep checkpoint 127.0.0.1:7421",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if len(args) == 0 {
					nodes, err := env.Nodes(c)
					if err != nil {
						return err
					}
					return checkpoint(ctx, env, nodes)
				}
				n, err := cli.NodeAt(c, args[0])
				if err != nil {
					return err
				}
				return checkpoint(ctx, env, []*admin.Node{n})
			})
		},
	}
}

// checkpoint writes checkpoints on all nodes concurrently, and returns the joined errors of the nodes.
func checkpoint(ctx context.Context, env *cli.Env, nodes []*admin.Node) error {
	responses, failed := cli.QueryEach(nodes, func(n *admin.Node) (*pb.CheckpointResponse, error) {
		return n.Checkpoint(ctx)
	})
	for i, n := range nodes {
		r := responses[i]
		if r == nil {
			continue
		}
		if err := env.Print.Result(
			map[string]any{"address": n.Address(), "checkpoint": r.GetCheckpoint(), "lsn": r.GetLsn()},
			"%s: checkpoint %d at LSN %d", n.Address(), r.GetCheckpoint(), r.GetLsn()); err != nil {
			return err
		}
	}
	return failed
}
