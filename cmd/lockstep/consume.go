package main

import (
	"context"
	"encoding/base64"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
)

// messageJSON is a message for programs.
type messageJSON struct {
	Queue         string            `json:"queue"`
	Sequence      uint64            `json:"sequence"`
	PublishedAt   time.Time         `json:"published_at"`
	DeliveryCount uint32            `json:"delivery_count"`
	Properties    map[string]string `json:"properties,omitempty"`
	// Body, if it is valid UTF-8; else BodyBase64.
	Body       *string `json:"body,omitempty"`
	BodyBase64 string  `json:"body_base64,omitempty"`
}

func toMessageJSON(queue string, m client.Stored, body bool) messageJSON {
	j := messageJSON{
		Queue: queue, Sequence: m.Sequence, PublishedAt: m.PublishedAt.UTC(), DeliveryCount: m.DeliveryCount,
		Properties: m.Properties,
	}
	switch {
	case !body:
	case utf8.Valid(m.Body):
		s := string(m.Body)
		j.Body = &s
	default:
		j.BodyBase64 = base64.StdEncoding.EncodeToString(m.Body)
	}
	return j
}

// consumeFlags are the flags of consume.
type consumeFlags struct {
	subscription string
	count        uint64
	follow       bool
	noAck        bool
	wait         time.Duration
	prefetch     int
}

func (a *app) consumeCommand() *cobra.Command {
	var f consumeFlags
	cmd := &cobra.Command{
		Use: "consume QUEUE", GroupID: "use",
		Short: "Consume messages and print their bodies, one per line",
		Long: `Print messages and acknowledge each one after it was printed. It ends when no message came for --wait, or after
--count; with --follow it goes on until Ctrl-C. With --no-ack the messages stay in the queue.`,
		Example: `  lockstep consume orders
  lockstep consume prices --subscription audit --follow
  lockstep consume orders --count 1 --output json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.prefetch < 1 {
				return usage("--prefetch must be at least 1")
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return a.consume(ctx, c, args[0], f)
			})
		},
	}
	cmd.Flags().StringVarP(&f.subscription, "subscription", "s", client.DefaultSubscription, "subscription to consume")
	cmd.Flags().Uint64VarP(&f.count, "count", "n", 0, "end after this many messages; 0: no limit")
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "wait for more, until Ctrl-C")
	cmd.Flags().BoolVar(&f.noAck, "no-ack", false,
		"do not acknowledge: the messages are delivered again, to somebody else")
	cmd.Flags().DurationVar(&f.wait, "wait", time.Second, "without --follow: end when no message came for so long")
	cmd.Flags().IntVar(&f.prefetch, "prefetch", 256, "messages that may be under way")
	return cmd
}

func (a *app) consume(ctx context.Context, c *client.Client, queue string, f consumeFlags) error {
	attach, cancel := context.WithTimeout(ctx, a.timeout)
	if _, err := c.WaitActive(attach); err != nil {
		cancel()
		return err
	}
	o := client.ConsumerOptions{Subscription: f.subscription, Prefetch: f.prefetch}
	if f.count > 0 && f.count < uint64(f.prefetch) { //nolint:gosec // a prefetch below 1 is refused by the client's default
		o.Prefetch = int(f.count) // do not take what others could have
	}
	co, err := c.Consume(attach, queue, o)
	cancel()
	if err != nil {
		return err
	}
	err = a.printDeliveries(ctx, co, f)
	// also after Ctrl-C: what was printed is acknowledged
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.timeout)
	defer cancel()
	return errors.Join(err, co.Flush(flush))
}

// printDeliveries prints until there is no more, or no more is wanted.
func (a *app) printDeliveries(ctx context.Context, co *client.Consumer, f consumeFlags) error {
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
		if err := a.printMessage(d.Queue(), d.Stored, true); err != nil {
			return err
		}
		if !f.noAck {
			d.Ack()
		}
	}
	return nil
}

// printMessage prints one message: its body on a line, or all of it as an object.
func (a *app) printMessage(queue string, m client.Stored, body bool) error {
	if a.print.JSON() {
		return a.print.Object(toMessageJSON(queue, m, body))
	}
	return a.print.Raw(append(m.Body[:len(m.Body):len(m.Body)], '\n'))
}
