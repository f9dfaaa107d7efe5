// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/out"
)

// This file asks before something is thrown away. Only an operator at a terminal is asked: scripts go on working.

// AddYes adds the flag that answers the question beforehand.
func AddYes(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVar(yes, "yes", false, "do not ask on a terminal whether it is meant")
}

// Asks tells whether an operator is there to be asked.
func (env *Env) Asks() bool {
	if env.Terminal != nil {
		return env.Terminal()
	}
	f, ok := env.Stdin.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Confirm asks whether what the text says is meant. It returns an error if not, and nil where no operator can be asked.
func (env *Env) Confirm(ctx context.Context, yes bool, format string, args ...any) error {
	if yes || !env.Asks() {
		return nil
	}
	if _, err := fmt.Fprintf(env.Stderr, format+" [y/N] ", args...); err != nil {
		return fmt.Errorf("ask: %w", err)
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
	return ErrNotMeant
}

// ConfirmMessages asks if messages of a queue would go. subscription is empty for all of them.
func (env *Env) ConfirmMessages(
	ctx context.Context, c *client.Client, yes bool, queue, subscription, what string,
) error {
	if yes || !env.Asks() {
		return nil
	}
	look, cancel := context.WithTimeout(ctx, env.Timeout)
	q, err := c.GetQueue(look, queue)
	cancel()
	if err != nil {
		return err
	}
	messages := q.Messages
	if subscription != "" {
		messages = 0
		for _, s := range q.Subscriptions {
			if s.Name == subscription {
				messages = s.Backlog
			}
		}
	}
	if messages == 0 {
		return nil
	}
	return env.Confirm(ctx, yes, "%s? %s would be gone for good.", what, out.Plural(messages, "message"))
}
