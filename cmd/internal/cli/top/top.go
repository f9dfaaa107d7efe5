// SPDX-License-Identifier: Apache-2.0

// Package top implements `lockstep top`, a live terminal view of a pair and its queues.
//
// A source polls each node for its status and the active for its queues. A model, which does no I/O, contains the
// last status and the operator's input. The view renders the model.
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

// shortest is the minimum of --interval. Nodes update the reported values only a few times per second.
const shortest = 100 * time.Millisecond

// Command returns the `lockstep top` command.
func Command(env *cli.Env) *cobra.Command {
	var once bool
	interval := time.Second
	cmd := &cobra.Command{
		Use: "top", GroupID: "operate",
		Short: "Show the pair and queues live",
		Long: `Show the nodes in --addr, their conditions, rates and queues on a terminal, updated continuously. Press ? for
the keys, q to quit. With the operate right, S switches over, and P pauses or resumes the pair, both after a
confirmation.

With --once or --output json, print one sample, measured over one --interval, and exit. The exit code is then 1 if no
node responds.`,
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
				s.onPair = env.WithPair
				if once || env.Print.JSON() {
					return printOnce(ctx, env, s)
				}
				if !env.Asks() || !output.IsTerminal(env.Stdout) && env.Terminal == nil {
					return cli.Usage("lockstep top requires a terminal; use --once for text, or --output json for JSON")
				}
				return live(ctx, env, s)
			})
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print one sample and exit")
	cmd.Flags().DurationVar(&interval, "interval", interval, "update interval, at least 100ms")
	return cmd
}

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

func live(ctx context.Context, env *cli.Env, s *source) error {
	ctx, cancel := context.WithCancel(ctx)
	program := tea.NewProgram(newModel(s.actions(ctx)), tea.WithContext(ctx), tea.WithInput(env.Stdin),
		tea.WithOutput(env.Stdout), tea.WithEnvironment(env.Environ), tea.WithoutSignalHandler())
	done := s.run(ctx, func(m any) { program.Send(m) })
	_, err := program.Run()
	cancel()
	<-done
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, tea.ErrProgramKilled) {
		return fmt.Errorf("write to the terminal: %w", err)
	}
	return nil
}
