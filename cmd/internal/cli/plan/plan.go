// SPDX-License-Identifier: Apache-2.0

// Package plan starts, follows, shows and cancels the pair's rolling plan: a resize, a compact or a restart of both
// nodes.
package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Command returns the `lockstep store plan` command.
func Command(env *cli.Env) *cobra.Command {
	var watch, cancel bool
	cmd := &cobra.Command{
		Use: "plan", Short: "Show, watch or cancel the rolling operation",
		Long: `Show the last rolling operation of the pair (resize, compact or restart) with its progress or result. With
--watch, Ctrl-C only stops watching. With --cancel, the operation ends at the next safe point; completed nodes
are not reverted. The exit code is 0 even if the operation failed.`,
		Example: "  lockstep store plan\n  lockstep store plan --watch\n  lockstep store plan --cancel",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithPair(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				bounded, stop := context.WithTimeout(ctx, env.Timeout)
				defer stop()
				p, err := admin.New(c).Plan(bounded)
				if err == nil && cancel {
					p, err = admin.New(c).CancelPlan(bounded)
				}
				switch {
				case err != nil:
					return err
				case p == nil:
					return noPlan(env)
				case watch && !admin.PlanEnded(p):
					if p, err = followPlan(ctx, env, c, p); errors.Is(err, context.Canceled) {
						return env.Print.Sentence("the plan continues; to show it, use lockstep store plan")
					}
					if err != nil {
						return err
					}
				}
				return printPlan(env, p, env.NodeNamer(ctx, c))
			})
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow the plan until it ends")
	cmd.Flags().BoolVar(&cancel, "cancel", false, "cancel the plan at the next safe point")
	return cmd
}

func noPlan(env *cli.Env) error {
	return env.Print.Result(map[string]any{"state": "none"},
		"no rolling operation; to start one, use lockstep store resize --rolling")
}

func printPlan(env *cli.Env, p *pb.Plan, name func(string) string) error {
	j := progress.NewPlan(p, name)
	if env.Print.JSON() {
		return env.Print.Object(j)
	}
	ended := "-"
	if !j.EndedAt.IsZero() {
		ended = fmt.Sprintf("%s, after %v", j.EndedAt.Local().Format(time.DateTime),
			j.EndedAt.Sub(j.StartedAt).Round(100*time.Millisecond))
	}
	rows := [][2]string{
		{"Plan", j.ID},
		{"State", progress.DescribePlan(p, name)},
		{"Nodes done", cmp.Or(strings.Join(j.DoneNodes, ", "), "none yet")},
		{"First active", j.FirstActive},
		{"Started", j.StartedAt.Local().Format(time.DateTime)},
		{"Ended", ended},
	}
	if j.TotalBytes > 0 {
		rows = append(rows, [2]string{
			"Progress",
			fmt.Sprintf("%s of %s, %s", j.Phase, j.Node, output.Bytes(j.DoneBytes)+" of "+output.Bytes(j.TotalBytes)),
		})
	}
	return env.Print.Pairs(rows)
}

// Run starts a plan and, unless detach is set, follows it until it ends. While Run follows the plan, Ctrl-C cancels
// the plan. Run returns an error if the plan failed or was canceled.
func Run(ctx context.Context, env *cli.Env, c *client.Client, req *pb.StartPlanRequest, detach bool) error {
	find, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	p, err := admin.New(c).StartPlan(find, req)
	switch {
	case errors.Is(err, admin.ErrBusy):
		return cli.WithHint(err, "`lockstep store plan --watch` to follow the running plan, or `lockstep store plan "+
			"--cancel` to cancel it")
	case err != nil:
		return err
	case detach:
		if err := printPlan(env, p, env.NodeNamer(ctx, c)); err != nil {
			return err
		}
		return env.Print.Sentence("the plan continues; to follow it, use lockstep store plan --watch")
	}
	p, err = followPlan(ctx, env, c, p)
	if errors.Is(err, context.Canceled) {
		p, err = cancelAndFollow(context.WithoutCancel(ctx), env, c, p)
	}
	if err != nil {
		return err
	}
	if err := printPlan(env, p, env.NodeNamer(context.WithoutCancel(ctx), c)); err != nil {
		return err
	}
	if p.GetState() != pb.PlanState_PLAN_STATE_DONE {
		return fmt.Errorf("plan %s; no messages are lost, and it can be started again",
			progress.PlanState(p.GetState()))
	}
	return nil
}

// cancelAndFollow cancels the plan and follows it until it ends. Another Ctrl-C exits the program.
func cancelAndFollow(ctx context.Context, env *cli.Env, c *client.Client, p *pb.Plan) (*pb.Plan, error) {
	fmt.Fprintln(env.Stderr, "Canceling the plan at the next safe point; press Ctrl-C again to exit immediately.")
	bounded, cancel := context.WithTimeout(ctx, env.Timeout)
	canceled, err := admin.New(c).CancelPlan(bounded)
	cancel()
	switch {
	case errors.Is(err, admin.ErrNoPlan): // the plan has ended in the meantime
	case err != nil:
		return p, err
	default:
		p = canceled
	}
	if admin.PlanEnded(p) {
		return p, nil
	}
	return followPlan(ctx, env, c, p)
}

const planPollEvery = 150 * time.Millisecond

// followPlan displays the progress of both nodes until the plan has ended. It continues during failovers and while no
// node responds. When ctx ends, it returns the last state of the plan and the error of ctx.
func followPlan(ctx context.Context, env *cli.Env, c *client.Client, p *pb.Plan) (*pb.Plan, error) {
	addrs, err := env.Addresses()
	if err != nil {
		return p, err
	}
	d := progress.New(env.Stderr, output.IsTerminal(env.Stderr))
	defer d.Close()
	names := namesByAddress(ctx, env, c)
	view := progress.NewView(d, addrs, func(address string) *progress.Bar { return d.Bar("node " + names[address]) })
	ticker := time.NewTicker(planPollEvery)
	defer ticker.Stop()
	for {
		s := progress.Poll(ctx, c, addrs)
		if s.Plan != nil && s.Plan.GetId() == p.GetId() && ctx.Err() == nil {
			view.Update(s)
			p = s.Plan
			// Only the active's state is current. The state applied by the other node may be older, but never newer.
			if admin.PlanEnded(p) {
				return p, nil
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return p, ctx.Err()
		}
	}
}

func namesByAddress(ctx context.Context, env *cli.Env, c *client.Client) map[string]string {
	names := make(map[string]string)
	for _, n := range env.QueryNodes(ctx, c, time.Second).Nodes {
		names[n.Address] = cmp.Or(n.Name, n.Address)
	}
	return names
}
