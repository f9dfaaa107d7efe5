package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
)

// This file asks before something is thrown away. Only somebody at a terminal is asked: scripts go on working.

// addYes adds the flag that answers the question beforehand.
func addYes(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVar(yes, "yes", false, "do not ask on a terminal whether it is meant")
}

// asks tells whether somebody is there to be asked.
func (a *app) asks() bool {
	if a.terminal != nil {
		return a.terminal()
	}
	f, ok := a.stdin.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a descriptor is a small number
}

// confirm asks whether what the text says is meant. It returns an error if not, and nil where nobody is asked.
func (a *app) confirm(ctx context.Context, yes bool, format string, args ...any) error {
	if yes || !a.asks() {
		return nil
	}
	if _, err := fmt.Fprintf(a.stderr, format+" [y/N] ", args...); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	answers := make(chan string, 1)
	go func() { // ends with an answer, or with the process
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answers:
		if answer == "y" || answer == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return errNotMeant
}

// confirmMessages asks if messages of a queue would go. subscription is empty for all of them.
func (a *app) confirmMessages(ctx context.Context, c *client.Client, yes bool, queue, subscription, what string) error {
	if yes || !a.asks() {
		return nil
	}
	look, cancel := context.WithTimeout(ctx, a.timeout)
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
	return a.confirm(ctx, yes, "%s? %s would be gone for good.", what, out.Plural(messages, "message"))
}
