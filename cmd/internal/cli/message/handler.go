// SPDX-License-Identifier: Apache-2.0

package message

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

const handlerHelp = `With --ack-after-command, a shell runs the command for each message, one at a time. Exit code 0
acknowledges the message, and 100 rejects it, as with --reject. All other codes nack it, and the delivery counts
toward --max-deliveries; 126 and 127 (command cannot run) also stop lockstep consume with an error. The
body is the standard input of the command. Environment variables contain the fields: LOCKSTEP_QUEUE,
LOCKSTEP_SUBSCRIPTION, LOCKSTEP_SEQUENCE, LOCKSTEP_DELIVERY_COUNT, LOCKSTEP_PUBLISHED_AT, LOCKSTEP_MESSAGE_ID,
LOCKSTEP_CORRELATION_ID, LOCKSTEP_REPLY_TO, LOCKSTEP_CONTENT_TYPE, LOCKSTEP_SUBJECT, LOCKSTEP_GROUP,
LOCKSTEP_PRIORITY, and LOCKSTEP_PROPERTY_NAME for each property, with NAME in upper case and _ for characters other
than ASCII letters and digits. Messages are not printed unless --format or --output json is given.`

const (
	exitReject        = 100
	exitNotExecutable = 126
	exitNotFound      = 127
)

// interruptWait is the time limit for a command to exit after consume was interrupted.
const interruptWait = 5 * time.Second

var errHandler = errors.New("cannot run the command of --ack-after-command")

type handler struct {
	env     *cli.Env
	command string
}

func (h *handler) handle(ctx context.Context, co *client.Consumer, d *client.Delivery) error {
	running, stop := context.WithCancel(ctx)
	var extending sync.WaitGroup
	extending.Go(func() { extend(running, co.AckTimeout(), d.Extend) })
	code, err := h.run(ctx, d)
	stop()
	extending.Wait()
	switch {
	case err != nil:
		_ = d.Nack() // if this fails, the message is redelivered later
		return err
	case code == 0:
		return d.AckSync(ctx)
	case code == exitReject:
		_ = d.Reject()
		return nil
	}
	_ = d.Nack()
	if code == exitNotExecutable || code == exitNotFound {
		return fmt.Errorf("%w: exit code %d; message %d nacked", errHandler, code, d.Sequence)
	}
	fmt.Fprintf(h.env.Stderr, "lockstep: message %d of %s: exit code %d; nacked\n", d.Sequence, d.Queue(), code)
	return ctx.Err()
}

// extend calls fn three times per acknowledgement timeout, until ctx ends or fn fails. After a failure, the message can
// be redelivered.
func extend(ctx context.Context, timeout time.Duration, fn func(context.Context) error) {
	if timeout == 0 {
		return
	}
	ticker := time.NewTicker(timeout / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if fn(ctx) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// run executes the command with the body of the message as standard input. It returns the exit code; -1 if a signal
// terminated the command.
func (h *handler) run(ctx context.Context, d *client.Delivery) (code int, err error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", h.command)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = interruptWait
	cmd.Stdin = bytes.NewReader(d.Body)
	cmd.Stdout, cmd.Stderr = h.env.Stdout, h.env.Stderr
	cmd.Env = append(os.Environ(), variables(d)...)
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode(), nil
	case errors.Is(err, syscall.EPIPE):
		return cmd.ProcessState.ExitCode(), nil // the command did not read the whole body
	case err != nil:
		return 0, fmt.Errorf("%w: %w", errHandler, err)
	}
	return 0, nil
}

func variables(d *client.Delivery) []string {
	set := map[string]string{
		"QUEUE": d.Queue(), "SUBSCRIPTION": d.Subscription(), "SEQUENCE": fmt.Sprint(d.Sequence),
		"DELIVERY_COUNT": fmt.Sprint(d.DeliveryCount), "PUBLISHED_AT": d.PublishedAt.UTC().Format(time.RFC3339Nano),
		"MESSAGE_ID": d.MessageID, "CORRELATION_ID": d.CorrelationID, "REPLY_TO": d.ReplyTo,
		"CONTENT_TYPE": d.ContentType, "SUBJECT": d.Subject, "GROUP": d.Group, "PRIORITY": "4",
	}
	if d.Priority != nil {
		set["PRIORITY"] = fmt.Sprint(*d.Priority)
	}
	for k, v := range d.Properties {
		set["PROPERTY_"+variableName(k)] = v
	}
	for k, v := range d.Values {
		if b, is := v.([]byte); is {
			v = string(b)
		}
		set["PROPERTY_"+variableName(k)] = fmt.Sprint(v)
	}
	list := make([]string, 0, len(set))
	for k, v := range set {
		// Environment variables cannot contain zero bytes.
		list = append(list, "LOCKSTEP_"+k+"="+strings.ReplaceAll(v, "\x00", ""))
	}
	sort.Strings(list)
	return list
}

func variableName(key string) string {
	return strings.Map(func(r rune) rune {
		if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return unicode.ToUpper(r)
		}
		return '_'
	}, key)
}
