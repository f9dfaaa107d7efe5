// SPDX-License-Identifier: Apache-2.0

package message

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// replyGrace is the lifetime of the reply queue without its consumer, during a failover or after this command is
// killed.
const replyGrace = 30 * time.Second

var errNoAnswer = errors.New("no reply received in time; the request is stored and may still be processed")

type requestFlags struct {
	message Flags
	file    string
	format  string
}

// RequestCommand returns the `lockstep request` command.
func RequestCommand(env *cli.Env) *cobra.Command {
	var f requestFlags
	cmd := &cobra.Command{
		Use: "request QUEUE [MESSAGE]", GroupID: "use",
		Short: "Publish a request and wait for the reply",
		Long: `Publish a message with a temporary queue as reply_to, wait for a reply with the same correlation_id in the
temporary queue, and print the body of the reply. --timeout limits the total time. The message is the argument, the
content of --file, or all of standard input. The command requires the publish right on QUEUE, and the manage and
consume rights on the temporary queue, request/UUID.

If no reply is received in time, the message can still be in QUEUE, and be processed later. To limit this, use --ttl.

The exit code is 0 after a reply, 1 if no reply was received in time or the request failed, 2 for an invalid command
line, and 3 if the outcome is unknown.

With --format, the reply ` + formatHelp,
		Example: `  lockstep request orders.price '{"item": 17}' --timeout 5s
  lockstep request orders.price --file request.json --format '{{.subject}} {{.body}}'
  lockstep consume orders.price --follow --ack-after-command \
    'lockstep publish "$LOCKSTEP_REPLY_TO" --correlation-id "$LOCKSTEP_CORRELATION_ID" 42'`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := f.message.Parse(cmd)
			if err != nil {
				return err
			}
			format, err := newFormatter(env, f.format)
			if err != nil {
				return err
			}
			if err := checkOutput(env.Stdout); err != nil {
				return err
			}
			if m.Body, err = requestBody(env, args[1:], f.file); err != nil {
				return err
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return request(ctx, env, c, args[0], m, format)
			})
		},
	}
	f.message.Register(cmd)
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "publish the content of this file")
	cmd.Flags().StringVar(&f.format, "format", "", "Go template for printing the reply")
	return cmd
}

func requestBody(env *cli.Env, args []string, file string) ([]byte, error) {
	switch {
	case len(args) > 0 && file != "":
		return nil, cli.Usage("the message is an argument or a file, not both")
	case len(args) > 0:
		return []byte(args[0]), nil
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		return b, nil
	}
	b, err := io.ReadAll(io.LimitReader(env.Stdin, maxLineBytes+1))
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	if len(b) > maxLineBytes {
		return nil, fmt.Errorf("standard input is larger than a message may be (%s)", output.Bytes(maxLineBytes))
	}
	return b, nil
}

func request(
	ctx context.Context, env *cli.Env, c *client.Client, queue string, m client.Message, format *formatter,
) (err error) {
	m.ReplyTo = "request/" + uuid.NewString()
	if m.CorrelationID == "" {
		m.CorrelationID = uuid.NewString()
	}
	o := admin.CreateQueueOptions{
		Config: admin.QueueConfig{TemporaryGrace: replyGrace},
		// At the pair of the request queue, a service can acknowledge the request and publish the reply in one transaction.
		PlacementGroup: queue,
	}
	var published error
	defer func() { err = outcomeOf(err, published) }()
	if _, _, err := admin.New(c).CreateQueue(ctx, m.ReplyTo, o); err != nil {
		return fmt.Errorf("request not published: %w", err)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = admin.New(c).DeleteQueue(clean, m.ReplyTo, false) // if this fails, the queue is deleted after replyGrace
	}()
	answers, err := c.Consume(ctx, m.ReplyTo, client.ConsumerOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, answers.Close()) }()
	producer, err := c.NewProducer(ctx, client.ProducerOptions{})
	if err != nil {
		return err
	}
	if _, published = producer.Publish(ctx, queue, m); published != nil {
		return published
	}
	for {
		d, err := answers.Receive(ctx)
		switch {
		case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return errNoAnswer
		case err != nil:
			return err
		}
		if d.CorrelationID == m.CorrelationID {
			if err := printMessage(env, from{queue: d.Queue()}, d.Stored, true, format); err != nil {
				return err
			}
			if err := d.Ack(); err != nil { // the request has succeeded: the queue of the reply is deleted anyway
				fmt.Fprintln(env.Stderr, "lockstep: reply not acknowledged:", err)
			}
			return nil
		}
		if err := d.Ack(); err != nil {
			return err
		}
	}
}

// knownError is an error of a command with a known outcome. It does not match client.ErrOutcomeUnknown, although an
// auxiliary request of the command may have an unknown outcome.
type knownError struct{ error }

func (e knownError) Is(target error) bool {
	return target != client.ErrOutcomeUnknown && errors.Is(e.error, target)
}

func (e knownError) As(target any) bool { return errors.As(e.error, target) }

// outcomeOf returns err. The result matches client.ErrOutcomeUnknown only if published, the error of the publish of the
// request, does.
func outcomeOf(err, published error) error {
	if err == nil || errors.Is(published, client.ErrOutcomeUnknown) {
		return err
	}
	return knownError{err}
}
