// SPDX-License-Identifier: Apache-2.0

// Package top implements `lockstep top`, a live terminal view of a pair and its queues.
//
// A source polls each node for its status and the active for its queues. A model, which does no I/O, keeps the last
// picture and the operator's input. The view renders it.
package top

import (
	"context"
	"errors"
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// shortest is the minimum interval. Nodes update the reported values only a few times per second.
const shortest = 100 * time.Millisecond

// Command returns the `lockstep top` command.
func Command(env *cli.Env) *cobra.Command {
	var once bool
	interval := time.Second
	cmd := &cobra.Command{
		Use: "top", GroupID: "operate",
		Short: "Show the pair and its queues live: roles, lag, rates, latencies, what to do",
		Long: `Show on a terminal, again and again, what both nodes are, what is wrong and what to do about it, what the active
does per second, how long commits take, and the queues, in any order, filtered by what you type. Keys switch over, pause
and resume, if you may do that, and after a question. Press ? for all keys, q to leave. It goes on when a node dies.

With --once one picture is printed as text, and with --output json as one line of JSON; it takes one --interval, because
rates need two looks. The exit code of these is 1 when no node answers.`,
		Example: "  lockstep top\n  lockstep top --interval 250ms\n  lockstep top --once\n" +
			"  lockstep top --output json | jq .rates",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < shortest {
				return cli.Usage("--interval %v is less than %v", interval, shortest)
			}
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				addresses, err := env.Addresses()
				if err != nil {
					return err
				}
				s := newSource(c, addresses, interval)
				if once || env.Print.JSON() {
					return printOnce(ctx, env, s)
				}
				if !env.Asks() || !output.IsTerminal(env.Stdout) && env.Terminal == nil {
					return cli.Usage("lockstep top needs a terminal; --once prints one picture, --output json one for programs")
				}
				return live(ctx, env, s)
			})
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print one picture, and end")
	cmd.Flags().DurationVar(&interval, "interval", interval, "how often to look, at least 100ms")
	return cmd
}

// printOnce prints one picture, with rates between two polls.
func printOnce(ctx context.Context, env *cli.Env, s *source) error {
	p, err := s.once(ctx)
	if err != nil {
		return err
	}
	if env.Print.JSON() {
		err = env.Print.Object(p)
	} else {
		err = env.Print.Raw([]byte(printed(p)))
	}
	if err == nil && p.Status.Answered() == 0 {
		err = cli.NoAnswer(ctx, p.Status)
	}
	return err
}

// live displays the picture until the operator quits or ctx ends.
func live(ctx context.Context, env *cli.Env, s *source) error {
	ctx, cancel := context.WithCancel(ctx)
	program := tea.NewProgram(newModel(s.actions(ctx)), tea.WithContext(ctx), tea.WithInput(env.Stdin),
		tea.WithOutput(env.Stdout), tea.WithEnvironment(env.Environ), tea.WithoutSignalHandler())
	done := s.run(ctx, func(m any) { program.Send(m) })
	_, err := program.Run()
	cancel()
	<-done
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, tea.ErrProgramKilled) {
		return fmt.Errorf("show it on the terminal: %w", err)
	}
	return nil
}
