// SPDX-License-Identifier: Apache-2.0

package message

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
)

// consumeFlags are the flags of consume.
type consumeFlags struct {
	subscription string
	count        uint64
	follow       bool
	noAck        bool
	reject       bool
	wait         time.Duration
	prefetch     int
}

// ConsumeCommand makes `lockstep consume`.
func ConsumeCommand(env *cli.Env) *cobra.Command {
	var f consumeFlags
	cmd := &cobra.Command{
		Use: "consume QUEUE", GroupID: "use",
		Short: "Consume messages and print their bodies, one per line",
		Long: `Print messages and acknowledge each one after it was printed. It ends when no message came for --wait, or after
--count; with --follow it goes on until Ctrl-C. With --no-ack the messages stay in the queue. With --reject each one is
rejected instead: it is moved to the queue's dead-letter queue, or dropped if there is none.`,
		Example: `  lockstep consume orders
  lockstep consume prices --subscription audit --follow
  lockstep consume orders --count 1 --output json
  lockstep consume orders --count 1 --reject`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.prefetch < 1 {
				return cli.Usage("--prefetch must be at least 1")
			}
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return consume(ctx, env, c, args[0], f)
			})
		},
	}
	cmd.Flags().StringVarP(&f.subscription, "subscription", "s", client.DefaultSubscription, "subscription to consume")
	cmd.Flags().Uint64VarP(&f.count, "count", "n", 0, "end after this many messages; 0: no limit")
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "wait for more, until Ctrl-C")
	cmd.Flags().BoolVar(&f.noAck, "no-ack", false,
		"do not acknowledge: the messages are delivered again, to another consumer")
	cmd.Flags().BoolVar(&f.reject, "reject", false,
		"reject instead of acknowledging: the messages are moved to the queue's dead-letter queue, or dropped")
	cmd.MarkFlagsMutuallyExclusive("no-ack", "reject")
	cmd.Flags().DurationVar(&f.wait, "wait", time.Second, "without --follow: end when no message came for so long")
	cmd.Flags().IntVar(&f.prefetch, "prefetch", 256, "messages that may be under way")
	return cmd
}

func consume(ctx context.Context, env *cli.Env, c *client.Client, queue string, f consumeFlags) error {
	attach, cancel := context.WithTimeout(ctx, env.Timeout)
	if _, err := c.WaitActive(attach); err != nil {
		cancel()
		return err
	}
	o := client.ConsumerOptions{Subscription: f.subscription, Prefetch: f.prefetch}
	if f.count > 0 && f.count < uint64(f.prefetch) {
		o.Prefetch = int(f.count) // do not take what others could have
	}
	co, err := c.Consume(attach, queue, o)
	cancel()
	if err != nil {
		return err
	}
	err = printDeliveries(ctx, env, co, f)
	// also after Ctrl-C: what was printed is acknowledged, or rejected
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), env.Timeout)
	defer cancel()
	return errors.Join(err, co.Flush(flush))
}

// printDeliveries prints until there is no more, or no more is wanted.
func printDeliveries(ctx context.Context, env *cli.Env, co *client.Consumer, f consumeFlags) error {
	for n := uint64(0); f.count == 0 || n < f.count; n++ {
		next, cancel := ctx, context.CancelFunc(func() {})
		if !f.follow {
			next, cancel = context.WithTimeout(ctx, f.wait)
		}
		d, err := co.Receive(next)
		ended := next.Err() != nil
		cancel()
		switch {
		case err != nil && ended:
			return nil //nolint:nilerr // Ctrl-C, or nothing came
		case err != nil:
			return err
		}
		if err := printMessage(env, d.Queue(), d.Stored, true); err != nil {
			return err
		}
		switch {
		case f.reject:
			d.Reject()
		case !f.noAck:
			d.Ack()
		}
	}
	return nil
}

// printMessage prints one message: its body on a line, or all of it as an object.
func printMessage(env *cli.Env, queue string, m client.Stored, body bool) error {
	if env.Print.JSON() {
		return env.Print.Object(out.NewMessage(queue, m, body))
	}
	return env.Print.Raw(append(m.Body[:len(m.Body):len(m.Body)], '\n'))
}
