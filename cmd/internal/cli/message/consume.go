// SPDX-License-Identifier: Apache-2.0

package message

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

type consumeFlags struct {
	subscription string
	count        uint64
	follow       bool
	noAck        bool
	reject       bool
	wait         time.Duration
	prefetch     int
	ackTimeout   time.Duration
	format       string
	command      string
	filter       string
}

// ConsumeCommand returns the `lockstep consume` command.
func ConsumeCommand(env *cli.Env) *cobra.Command {
	var f consumeFlags
	cmd := &cobra.Command{
		Use: "consume QUEUE", GroupID: "use",
		Short: "Consume messages and print their bodies",
		Long: `Print message bodies, each followed by a newline, and acknowledge each message after printing it. The command
stops after --count messages, or after --wait without a message; with --follow, it waits for new messages until Ctrl-C.
A message that cannot be printed is not acknowledged.

With --format, each message ` + formatHelp + `

` + handlerHelp,
		Example: `  lockstep consume orders
  lockstep consume prices --subscription audit --follow
  lockstep consume orders --count 1 --output json
  lockstep consume orders --count 1 --reject
  lockstep consume orders --filter 'priority > 5' --max 10 --format '{{.sequence}} {{.subject}} {{.body}}'
  lockstep consume orders --follow --ack-after-command 'curl --fail --data-binary @- https://example.net/orders'
  lockstep consume orders --follow --ack-after-command \
    'psql -v ON_ERROR_STOP=1 -v body="$(cat)" -f insert.sql'   # insert into orders values (:'body');`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.prefetch < 1 {
				return cli.Usage("--prefetch must be at least 1")
			}
			format, err := newFormatter(env, f.format)
			if err != nil {
				return err
			}
			if f.command == "" || format != nil || env.Print.JSON() {
				if err := checkOutput(env.Stdout); err != nil {
					return err
				}
			}
			if f.command != "" && !cmd.Flags().Changed("prefetch") {
				f.prefetch = 1 // one message at a time, so that other consumers can receive the others
			}
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return consume(ctx, env, c, args[0], f, format)
			})
		},
	}
	cmd.Flags().StringVarP(&f.subscription, "subscription", "s", client.DefaultSubscription, "source subscription")
	cmd.Flags().Uint64VarP(&f.count, "count", "n", 0, "stop after this many messages; 0: unlimited")
	cmd.Flags().Uint64Var(&f.count, "max", 0, "same as --count")
	cmd.MarkFlagsMutuallyExclusive("count", "max")
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false,
		"wait for new messages until Ctrl-C, or until --count messages were received")
	cmd.Flags().BoolVar(&f.noAck, "no-ack", false,
		"do not acknowledge messages; they are redelivered when the command ends, or after the acknowledgement timeout; "+
			"each delivery counts toward --max-deliveries of the queue or subscription")
	cmd.Flags().BoolVar(&f.reject, "reject", false,
		"reject printed messages: they are dead-lettered or, without a dead-letter queue, discarded")
	cmd.Flags().StringVar(&f.command, "ack-after-command", "",
		"shell command to run for each message; its exit code determines the outcome")
	cmd.MarkFlagsMutuallyExclusive("no-ack", "reject", "ack-after-command")
	cmd.Flags().StringVar(&f.filter, "filter", "",
		"CEL expression that messages must match, as for lockstep subscription create; default: all messages")
	cmd.Flags().StringVar(&f.format, "format", "", "Go template for printing a message")
	cmd.Flags().DurationVar(&f.wait, "wait", time.Second, "without --follow: stop after this time without a message")
	cmd.Flags().IntVar(&f.prefetch, "prefetch", 256,
		"maximum number of messages that the node sends in advance; with --ack-after-command, the default is 1")
	cmd.Flags().DurationVar(&f.ackTimeout, "ack-timeout", 0,
		"requeue unacknowledged messages after this time, 1s to 24h; a shorter timeout of the queue or subscription takes "+
			"precedence; 0: only the timeout of the queue or subscription")
	return cmd
}

func consume(
	ctx context.Context, env *cli.Env, c *client.Client, queue string, f consumeFlags, format *formatter,
) error {
	attach, cancel := context.WithTimeout(ctx, env.Timeout)
	if _, err := c.WaitActive(attach); err != nil {
		cancel()
		return err
	}
	o := client.ConsumerOptions{
		Subscription: f.subscription, Prefetch: f.prefetch, Filter: f.filter, AckTimeout: f.ackTimeout,
	}
	if f.count > 0 && f.count < uint64(f.prefetch) {
		o.Prefetch = int(f.count) // do not reserve messages that other consumers could receive
	}
	co, err := c.Consume(attach, queue, o)
	cancel()
	if err != nil {
		return err
	}
	err = takeDeliveries(ctx, env, co, f, format)
	// Wait for the acknowledgements and rejections of printed messages, even after Ctrl-C.
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), env.Timeout)
	defer cancel()
	return errors.Join(err, co.Flush(flush))
}

func takeDeliveries(
	ctx context.Context, env *cli.Env, co *client.Consumer, f consumeFlags, format *formatter,
) error {
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
			return nil //nolint:nilerr // Ctrl-C, or no message within --wait
		case err != nil:
			return err
		}
		if f.command == "" || format != nil || env.Print.JSON() {
			if err := printMessage(env, from{d.Queue(), d.Partition()}, d.Stored, true, format); err != nil {
				return err
			}
		}
		switch {
		case f.command != "":
			if err := (&handler{env: env, command: f.command}).handle(ctx, co, d); err != nil {
				return err
			}
		case f.reject:
			_ = d.Reject() // Flush returns the error of Ack and Reject
		case !f.noAck:
			_ = d.Ack()
		}
	}
	return nil
}

// from is the queue of a message, and its partition in a partitioned queue.
type from struct{ queue, partition string }

func (f from) message(m client.Stored, body bool) output.Message {
	j := output.NewMessage(f.queue, m, body)
	j.Partition = f.partition
	return j
}

func printMessage(env *cli.Env, f from, m client.Stored, body bool, format *formatter) error {
	if format != nil {
		return format.print(env, f, &m)
	}
	if env.Print.JSON() {
		return env.Print.Object(f.message(m, body))
	}
	return env.Print.Raw(append(m.Body[:len(m.Body):len(m.Body)], '\n'))
}
