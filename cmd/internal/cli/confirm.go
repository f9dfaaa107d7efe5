// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// AddYes adds the flag --yes, which confirms without a prompt.
func AddYes(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVar(yes, "yes", false, "confirm without a prompt")
}

// Asks reports whether an operator can be prompted. Without a terminal, commands do not prompt, so that scripts work.
func (env *Env) Asks() bool {
	if env.Terminal != nil {
		return env.Terminal()
	}
	f, ok := env.Stdin.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Confirm asks the operator to confirm, unless yes is set or no operator can be prompted. It returns ErrNotConfirmed if
// the answer is not y or yes, or if ctx ends first.
func (env *Env) Confirm(ctx context.Context, yes bool, format string, args ...any) error {
	if yes || !env.Asks() {
		return nil
	}
	if _, err := fmt.Fprintf(env.Stderr, format+" [y/N] ", args...); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	answers := make(chan string, 1)
	go func() { // ends with an answer, or with the process
		line, _ := bufio.NewReader(env.Stdin).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answers:
		if answer == "y" || answer == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return ErrNotConfirmed
}

// ConfirmPlan asks the operator to confirm. Without --yes and without a terminal, it returns ErrNeedsYes; with --output
// json, it first prints the plan.
func (env *Env) ConfirmPlan(ctx context.Context, yes bool, plan any, format string, args ...any) error {
	if !yes && !env.Asks() {
		return errors.Join(env.Print.Object(plan), ErrNeedsYes)
	}
	return env.Confirm(ctx, yes, format, args...)
}

// ConfirmMessages is Confirm for deleting the messages of a queue or, if subscription is not empty, the backlog of that
// subscription. It does not prompt if there are no messages.
func (env *Env) ConfirmMessages(
	ctx context.Context, c *client.Client, yes bool, queue, subscription, label string,
) error {
	if yes || !env.Asks() {
		return nil
	}
	look, cancel := context.WithTimeout(ctx, env.Timeout)
	q, err := admin.New(c).GetQueue(look, queue)
	cancel()
	if err != nil {
		return err
	}
	messages, format := q.Messages, "%s? %s will be deleted permanently."
	if subscription != "" {
		// Other subscriptions can still need the messages.
		messages, format = 0, "%s? Its backlog of %s will be discarded permanently."
		for _, s := range q.Subscriptions {
			if s.Name == subscription {
				messages = s.Backlog
			}
		}
	}
	if messages == 0 {
		return nil
	}
	return env.Confirm(ctx, yes, format, label, output.Plural(messages, "message"))
}
