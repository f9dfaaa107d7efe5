// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

type pauseState struct {
	Publish bool      `json:"publish"`
	Deliver bool      `json:"deliver"`
	At      time.Time `json:"paused_at"`
	By      string    `json:"paused_by,omitempty"`
	Reason  string    `json:"reason,omitempty"`
}

func newPauseState(p *admin.Pause) *pauseState {
	if p == nil {
		return nil
	}
	return &pauseState{Publish: p.Publish, Deliver: p.Deliver, At: p.At.UTC(), By: p.By, Reason: p.Reason}
}

func pauseText(p *admin.Pause) string {
	if p == nil {
		return ""
	}
	text := directions(p.Publish, p.Deliver) + ", since " + output.LocalTime(p.At)
	if p.By != "" {
		text += ", by " + p.By
	}
	if p.Reason != "" {
		text += " (" + p.Reason + ")"
	}
	return text
}

func directions(publish, deliver bool) string {
	switch {
	case publish && deliver:
		return "publishing and delivery"
	case publish:
		return "publishing"
	default:
		return "delivery"
	}
}

func addDirections(cmd *cobra.Command, o *admin.PauseOptions) {
	cmd.Flags().BoolVar(&o.Publish, "publish", false, "only publishing; with --deliver: both")
	cmd.Flags().BoolVar(&o.Deliver, "deliver", false, "only delivery; with --publish: both")
}

func addReason(cmd *cobra.Command, o *admin.PauseOptions) {
	cmd.Flags().StringVar(&o.Reason, "reason", "", "reason, shown by lockstep queue show, up to 1024 bytes")
}

func pauseCommand(env *cli.Env) *cobra.Command {
	var o admin.PauseOptions
	cmd := &cobra.Command{
		Use: "pause NAME", Short: "Pause publishing or delivery of a queue",
		Long: `Pause publishing to a queue, delivery from it, or both (default), until lockstep queue resume. The pause
survives failovers and restarts. Messages still expire during the pause.

While publishing is paused, publishes to the queue fail, also those of schedules and those that another queue
forwards to it; dead letters and moved messages are still stored. While delivery is paused, consumers stay connected,
and can acknowledge the messages that they have received.`,
		Example: `  lockstep queue pause orders --reason "database maintenance"
  lockstep queue pause orders --deliver
  lockstep queue pause orders --publish`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changePause(cmd.Context(), env, args[0], o, (*admin.Client).PauseQueue)
		},
	}
	addDirections(cmd, &o)
	addReason(cmd, &o)
	return cmd
}

func resumeCommand(env *cli.Env) *cobra.Command {
	var o admin.PauseOptions
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "Resume a paused queue",
		Long: `Resume publishing to a paused queue, delivery from it, or both (default). Subscriptions that were paused
with lockstep subscription pause stay paused.`,
		Example: `  lockstep queue resume orders
  lockstep queue resume orders --publish`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changePause(cmd.Context(), env, args[0], o, (*admin.Client).ResumeQueue)
		},
	}
	addDirections(cmd, &o)
	return cmd
}

func pauseSubscriptionCommand(env *cli.Env) *cobra.Command {
	var o admin.PauseOptions
	cmd := &cobra.Command{
		Use: "pause QUEUE NAME", Short: "Pause the delivery of a subscription",
		Long: `Pause the delivery of a subscription, until lockstep subscription resume. The pause survives failovers and
restarts. Consumers stay connected, and can acknowledge the messages that they have received.`,
		Example: "  lockstep subscription pause prices audit --reason \"audit system is down\"",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Subscription = args[1]
			return changePause(cmd.Context(), env, args[0], o, (*admin.Client).PauseQueue)
		},
	}
	addReason(cmd, &o)
	return cmd
}

func resumeSubscriptionCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "resume QUEUE NAME", Short: "Resume the delivery of a subscription",
		Long: `Resume the delivery of a paused subscription. If the delivery of its queue is also paused, delivery
starts after lockstep queue resume.`,
		Example: "  lockstep subscription resume prices audit",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := admin.PauseOptions{Subscription: args[1]}
			return changePause(cmd.Context(), env, args[0], o, (*admin.Client).ResumeQueue)
		},
	}
}

func changePause(
	ctx context.Context, env *cli.Env, queue string, o admin.PauseOptions,
	call func(*admin.Client, context.Context, string, admin.PauseOptions) (admin.Queue, error),
) error {
	return env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		q, err := call(admin.New(c), ctx, queue, o)
		if err != nil {
			return err
		}
		if err := env.Print.Object(newQueueState(q)); err != nil {
			return err
		}
		target, pause := "queue "+queue, q.Pause
		if o.Subscription != "" {
			target = fmt.Sprintf("subscription %s of queue %s", o.Subscription, queue)
			for _, s := range q.Subscriptions {
				if s.Name == o.Subscription {
					pause = s.Pause
				}
			}
		}
		if pause == nil {
			return env.Print.Sentence("%s is not paused", target)
		}
		return env.Print.Sentence("%s is paused: %s", target, pauseText(pause))
	})
}
