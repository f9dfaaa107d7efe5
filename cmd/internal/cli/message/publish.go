// SPDX-License-Identifier: Apache-2.0

// Package message implements the commands for messages: publish, consume, browse and request.
package message

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// maxLineBytes is the maximum size of a message read from standard input: the maximum of limits.message-bytes.
const maxLineBytes = txn.MaxBodyBytes

// PublishCommand returns the `lockstep publish` command.
func PublishCommand(env *cli.Env) *cobra.Command {
	var files []string
	var create bool
	var given Flags
	cmd := &cobra.Command{
		Use: "publish QUEUE [MESSAGE...]", GroupID: "use",
		Short: "Publish messages",
		Long: `Publish each argument after QUEUE, or the content of each --file, as one message. Without messages and
files, publish each line of standard input. The messages are published in order. The command succeeds when the pair
has acknowledged all messages. All in-sync nodes have received a message before it is acknowledged.

If the command fails, messages that were acknowledged before are not removed. With exit code 3, the outcome of some
messages is unknown, and publishing them again can store duplicates: first check which of them are stored.`,
		Example: `  lockstep publish orders "one" "two"
  lockstep publish orders --file invoice.pdf --content-type application/pdf --property customer=17
  lockstep publish orders "three" --subject order.created --typed-property amount=12.5 --typed-property paid=true
  lockstep publish orders "four" --group customer-17 --priority 7 --ttl 1h --delay 30s
  seq 1000 | lockstep publish orders`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := given.Parse(cmd)
			if err != nil {
				return err
			}
			if len(files) > 0 && len(args) > 1 {
				return cli.Usage("messages are arguments or files, not both")
			}
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if create {
					ctx, cancel := context.WithTimeout(ctx, env.Timeout)
					_, _, err := admin.New(c).CreateQueue(ctx, args[0], admin.CreateQueueOptions{IfNotExists: true})
					cancel()
					if err != nil {
						return err
					}
				}
				p := &publisher{env: env, queue: args[0], message: m}
				return p.run(ctx, c, func(send func([]byte) error) error {
					switch {
					case len(args) > 1:
						return sendArguments(args[1:], send)
					case len(files) > 0:
						return sendFiles(files, send)
					default:
						return sendLines(env.Stdin, send)
					}
				})
			})
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "publish the content of a file as one message; may be repeated")
	given.Register(cmd)
	cmd.Flags().StringVar(&given.message.ReplyTo, "reply-to", "", "queue for the reply")
	cmd.Flags().BoolVar(&create, "create", false,
		"create the queue, with the subscription \"default\", if it does not exist")
	return cmd
}

// Flags are the flags of a command for the fields of a message.
type Flags struct {
	message           client.Message
	properties, typed []string
	priority          int
}

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	m := &f.message
	cmd.Flags().StringArrayVarP(&f.properties, "property", "p", nil, "message property, KEY=VALUE; may be repeated")
	cmd.Flags().StringArrayVar(&f.typed, "typed-property", nil,
		"typed message property, KEY=VALUE: true, false, an integer, or a floating-point number; may be repeated")
	cmd.Flags().StringVar(&m.MessageID, "message-id", "",
		"application-defined message ID; a queue with --dedup-window discards further messages with the same ID")
	cmd.Flags().StringVar(&m.CorrelationID, "correlation-id", "", "correlation ID")
	cmd.Flags().StringVar(&m.ContentType, "content-type", "", "media type of the body, such as application/json")
	cmd.Flags().StringVar(&m.Subject, "subject", "", "subject or type of the message")
	cmd.Flags().StringVar(&m.Group, "group", "",
		"message group; each subscription delivers one message of a group at a time")
	cmd.Flags().IntVar(&f.priority, "priority", -1,
		"priority, 0 to 9; a queue with --priorities delivers higher priorities first")
	cmd.Flags().Lookup("priority").DefValue = "4" // the default of the node; the priority is only sent if the flag is set
	cmd.Flags().DurationVar(&m.TTL, "ttl", 0,
		"message time to live, such as 30s or 24h; 0: only limited by the setting of the queue")
	cmd.Flags().DurationVar(&m.Delay, "delay", 0, "delivery delay; 0: the default of the queue")
}

// Parse returns the message defined by the flags, without a body. Errors are usage errors.
func (f *Flags) Parse(cmd *cobra.Command) (m client.Message, err error) {
	m = f.message
	if m.Properties, err = parseProperties(f.properties); err != nil {
		return m, err
	}
	if m.Values, err = parseTyped(f.typed); err != nil {
		return m, err
	}
	if cmd.Flags().Changed("priority") {
		if f.priority < 0 || f.priority > 9 {
			return m, cli.Usage("--priority %d: must be 0 to 9", f.priority)
		}
		m.Priority = new(uint8(f.priority))
	}
	return m, nil
}

func parsePairs[V any](flag string, list []string, value func(text string) (V, error)) (map[string]V, error) {
	if len(list) == 0 {
		return nil, nil
	}
	m := make(map[string]V, len(list))
	for _, s := range list {
		k, text, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, cli.Usage("--%s %q is not KEY=VALUE", flag, s)
		}
		v, err := value(text)
		if err != nil {
			return nil, cli.Usage("--%s %q %v", flag, s, err)
		}
		m[k] = v
	}
	return m, nil
}

func parseProperties(list []string) (map[string]string, error) {
	return parsePairs("property", list, func(text string) (string, error) { return text, nil })
}

var errNotTyped = errors.New("is not a boolean or number; use --property for text")

// parseTyped derives the type of each value from its spelling.
func parseTyped(list []string) (map[string]any, error) {
	return parsePairs("typed-property", list, func(text string) (any, error) {
		if text == "true" || text == "false" {
			return text == "true", nil
		}
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return f, nil
		}
		return nil, errNotTyped
	})
}

func sendArguments(args []string, send func([]byte) error) error {
	for _, s := range args {
		if err := send([]byte(s)); err != nil {
			return err
		}
	}
	return nil
}

func sendFiles(files []string, send func([]byte) error) error {
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("--file: %w", err)
		}
		if err := send(b); err != nil {
			return err
		}
	}
	return nil
}

func sendLines(r io.Reader, send func([]byte) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLineBytes+len("\r\n"))
	lines := 0
	long := func() error {
		return fmt.Errorf("standard input: line %d is longer than a message may be (%s); the lines before it were published",
			lines+1, output.Bytes(uint64(maxLineBytes)))
	}
	for ; s.Scan(); lines++ {
		if len(s.Bytes()) > maxLineBytes {
			return long()
		}
		if err := send([]byte(s.Text())); err != nil {
			return err
		}
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return long()
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	return nil
}

type publisher struct {
	env     *cli.Env
	queue   string
	message client.Message // without a body

	sent uint64 // passed to the producer, by run

	mu          sync.Mutex // guards all fields below
	count       uint64     // acknowledged
	refused     uint64     // certainly not stored
	duplicates  uint64     // messages in count that were discarded as duplicates by message ID
	first, last uint64
	partitions  map[string]bool // that contain acknowledged messages
	err         error           // first failure
}

type published struct {
	Queue     string `json:"queue"`
	Partition string `json:"partition,omitempty"`
	Sequence  uint64 `json:"sequence"`
	LSN       uint64 `json:"lsn"`
	Duplicate bool   `json:"duplicate,omitempty"`
}

const inOrder = 4096

func (p *publisher) run(ctx context.Context, c *client.Client, source func(send func([]byte) error) error) error {
	// Fail if no node becomes active within the timeout. Later, the producer waits during failovers.
	if _, err := p.env.WaitActive(ctx, c); err != nil {
		return err
	}
	producer, err := c.NewProducer(ctx, client.ProducerOptions{})
	if err != nil {
		return err
	}
	order := make(chan *client.Pending, inOrder)
	waiting, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	var answers sync.WaitGroup
	answers.Go(func() {
		for e := range order { // publishes complete in order
			select {
			case <-e.Done():
				p.answered(e.Wait(waiting))
			case <-waiting.Done():
			}
		}
	})
	sourceErr := source(func(body []byte) error {
		if err := p.failure(); err != nil {
			return err
		}
		m := p.message
		m.Body = body
		pending := producer.PublishAsync(ctx, p.queue, m)
		if err := pending.Err(); err != nil {
			return err
		}
		p.sent++
		order <- pending
		return nil
	})
	close(order)
	err = producer.Flush(ctx)
	if ctx.Err() != nil {
		giveUp()
	}
	answers.Wait()
	if first := p.failure(); first != nil {
		err = first
	} else if sourceErr != nil && !errors.Is(err, client.ErrOutcomeUnknown) {
		err = sourceErr // after an interruption, the unknown outcome of sent messages is reported instead
	}
	p.mu.Lock()
	count, refused, unknown := p.count, p.refused, p.sent-p.count-p.refused
	check, stored := p.browseCommand(), p.stored()
	p.mu.Unlock()
	if errors.Is(err, client.ErrOutcomeUnknown) && unknown > 0 {
		err = fmt.Errorf("%w\nAfter %d acknowledged messages, the next %s may or may not be stored. Check with "+
			"`%s` and publish only the missing messages: publishing all of them again may store duplicates", err, count,
			output.Plural(unknown, "message"), check)
	}
	if err != nil && refused > 0 && count > 0 {
		err = fmt.Errorf("%w\n%s refused; later messages were not sent", err, output.Plural(refused, "message"))
	}
	if count > 0 {
		if err == nil && WarnIfDiscarded(ctx, p.env, admin.New(c), p.queue) {
			return p.env.Print.Sentence("discarded %s", output.Plural(count, "message"))
		}
		err = errors.Join(err, p.env.Print.Sentence("published %s to %s", output.Plural(count, "message"), stored))
	} else if err == nil {
		err = p.env.Print.Sentence("no messages to publish")
	}
	return err
}

// stored describes where the acknowledged messages are. The sequences of several partitions are not a range.
func (p *publisher) stored() string {
	queue := p.queue
	for partition := range p.partitions {
		queue = partition // the only one, if sequences are printed
	}
	text := fmt.Sprintf("%s, sequences %d to %d", queue, p.first, p.last)
	switch {
	case len(p.partitions) > 1:
		text = fmt.Sprintf("%d partitions of %s", len(p.partitions), p.queue)
	case p.first == p.last:
		text = fmt.Sprintf("%s, sequence %d", queue, p.first)
	}
	if p.duplicates > 0 {
		text += fmt.Sprintf(" (%s not stored)", output.Plural(p.duplicates, "duplicate"))
	}
	return text
}

// browseCommand returns the command that prints the messages after the acknowledged ones.
func (p *publisher) browseCommand() string {
	if len(p.partitions) > 0 {
		return "lockstep browse PARTITION"
	}
	return fmt.Sprintf("lockstep browse %s --from %d", p.queue, p.last+1)
}

// WarnIfDiscarded prints a warning and returns true if the queue discards published messages. It returns false if the
// queue cannot be read, for example because the caller may only publish.
func WarnIfDiscarded(ctx context.Context, env *cli.Env, a *admin.Client, queue string) bool {
	ctx, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	q, err := a.GetQueue(ctx, queue)
	if err != nil || len(q.Subscriptions) > 0 || len(q.Forwards) > 0 ||
		q.Config.RetentionAge > 0 || q.Config.RetentionBytes > 0 || q.Config.RetentionMessages > 0 {
		return false
	}
	fmt.Fprintf(env.Stderr, "lockstep: no message stored: queue %s has no subscription; to create one, use lockstep "+
		"subscription create %s NAME\n", queue, queue)
	return true
}

func (p *publisher) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *publisher) answered(r client.Receipt, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		err = p.env.Print.Object(published{
			Queue: p.queue, Partition: r.Partition, Sequence: r.Sequence, LSN: r.LSN, Duplicate: r.Duplicate,
		})
		if p.count == 0 {
			p.first = r.Sequence
		}
		if r.Partition != "" {
			if p.partitions == nil {
				p.partitions = map[string]bool{}
			}
			p.partitions[r.Partition] = true
		}
		p.count++
		p.duplicates += uint64(r.Discarded)
		p.last = r.Sequence
	case !errors.Is(err, client.ErrOutcomeUnknown):
		p.refused++
	}
	if p.err == nil {
		p.err = err
	}
}
