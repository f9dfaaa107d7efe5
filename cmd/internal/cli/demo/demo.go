// SPDX-License-Identifier: Apache-2.0

// Package demo implements the commands that run whole pairs on this machine: demo, demo resize, demo transaction and
// dev.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/demo"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// Command returns the `lockstep demo` command.
func Command(env *cli.Env) *cobra.Command {
	o := demo.Options{}
	var keep bool
	var coordinator string
	cmd := &cobra.Command{
		Use: "demo", GroupID: "run",
		Short: "Kill the active node and verify all messages",
		Long: `Start a pair on this machine, publish and consume messages, kill the active node with SIGKILL, restart it,
and compare both nodes. By default, this takes about 20 seconds. The data is in a temporary directory, which is kept
only if the demo fails.

The exit code is 0 only if no acknowledged message was lost, duplicated or reordered, and both stores are identical.`,
		Example: "  lockstep demo\n  lockstep demo --coordinator raft\n  lockstep demo --output json\n" +
			"  lockstep demo --keep",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Duration < time.Second || o.Rate < 1 || o.Rate > 1_000_000 {
				return cli.Usage("--duration must be at least 1s and --rate 1 to 1000000")
			}
			var err error
			if o.Raft, err = cli.WantsRaft(coordinator); err != nil {
				return err
			}
			if keep {
				if err := keepRunning(cmd.Context(), env, &o); err != nil {
					return err
				}
			}
			return runDemo(cmd.Context(), env, o)
		},
	}
	cmd.Flags().DurationVar(&o.Duration, "duration", 14*time.Second, "publishing time (minimum 1s)")
	cmd.Flags().IntVar(&o.Rate, "rate", 4000, "messages published per second, 1 to 1000000")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 0, "seed of message contents and of the time of the kill; 0: random")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the pair running after the checks, until Ctrl-C")
	cmd.Flags().StringVar(&coordinator, "coordinator", "etcd",
		"coordinator: etcd, or raft with a witness process")
	cmd.AddCommand(resizeCommand(env), transactionCommand(env))
	return cmd
}

func runDemo(ctx context.Context, env *cli.Env, o demo.Options) error {
	if err := demoOptions(env, &o); err != nil {
		return err
	}
	return keepIfFailed(ctx, o, func() (passed bool, err error) {
		v, err := demo.Run(ctx, o)
		if err != nil {
			return false, err
		}
		return v.Passed(), printVerdict(env, v)
	})
}

func demoOptions(env *cli.Env, o *demo.Options) error {
	if o.Seed == 0 {
		o.Seed = uint64(rand.Uint32()) //nolint:gosec // not secret; a short number is easier to type
	}
	dir, err := os.MkdirTemp("", "lockstep-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	o.Dir, o.Settings = dir, harness.SmallNodes()
	// Both nodes and the load share this machine, so a slow node must not be considered dead. A killed process is
	// detected by its closed port, regardless of these timeouts.
	o.Settings["failover.timeout"], o.Settings["failover.drop-timeout"] = "10s", "8s"
	w := screen(env)
	o.Screen = demo.NewScreen(w, output.IsTerminal(w))
	return nil
}

// keepIfFailed runs a demo and removes its directory, unless the demo failed.
func keepIfFailed(ctx context.Context, o demo.Options, run func() (passed bool, err error)) error {
	remove := true // also after a panic
	defer func() {
		if remove {
			_ = os.RemoveAll(o.Dir)
		}
	}()
	passed, err := run()
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted")
	case err != nil:
		remove = false
		return fmt.Errorf("demo with seed %d: %w\nData and logs are kept in %s", o.Seed, err, o.Dir)
	case !passed:
		remove = false
		return fmt.Errorf("demo with seed %d failed; data and logs are kept in %s", o.Seed, o.Dir)
	}
	return nil
}

func printVerdict(env *cli.Env, v demo.Verdict) error {
	if env.Print.JSON() {
		return env.Print.Object(v)
	}
	verdict := "passed: no acknowledged message was lost, duplicated or reordered, both stores are identical"
	if !v.Passed() {
		verdict = "FAILED"
	}
	digest := func(i int) string { return fmt.Sprintf("%.16s… at LSN %d", v.Digests[i], v.LSN) }
	if err := env.Print.Sentence(""); err != nil {
		return err
	}
	return env.Print.Table([]string{"Verdict", verdict}, append([][]any{
		{"published", output.Count(v.Published)},
		{"acknowledged", output.Count(v.Acknowledged)},
		{"delivered", output.Count(v.Delivered)},
		{"lost", output.Count(v.Lost)},
		{"duplicated", output.Count(v.Duplicated)},
		{"out of order", output.Count(v.OutOfOrder)},
		{"redelivered before the acknowledgement was confirmed", output.Count(v.Redelivered)},
		{"from kill to next acknowledged publish", fmt.Sprintf("%.1f ms", v.FailoverMS)},
		{"from restart of the killed node to in sync", fmt.Sprintf("%.1f s", v.CatchUp.Seconds())},
		{"digest of node a", digest(0)},
		{"digest of node b", digest(1)},
		{"coordinator", v.Coordinator},
	}, violations(v)...))
}

func violations(v demo.Verdict) (rows [][]any) {
	const most = 10
	for _, broken := range v.Violations[:min(most, len(v.Violations))] {
		rows = append(rows, []any{"violated rule", broken.String()})
	}
	return rows
}

// keepRunning adds a console to each node, and sets o.Keep to a function that prints instructions for the pair and
// waits for Ctrl-C.
func keepRunning(ctx context.Context, env *cli.Env, o *demo.Options) error {
	s := devPair{ports: make(served)}
	if err := listen(ctx, []devPair{s}, "--console", consoleSetting, consoleAddress); err != nil {
		return err
	}
	o.NodeSettings = s.ports
	o.Keep = func(ctx context.Context, p *harness.Pair) {
		s.pair = p
		printPair(screen(env), &s)
		<-ctx.Done()
	}
	return nil
}

// screen returns the writer for progress and events.
func screen(env *cli.Env) io.Writer {
	if env.Print.JSON() {
		return env.Stderr
	}
	return env.Stdout
}

func printPair(w io.Writer, s *devPair) {
	p := s.pair
	addrs := strings.Join(p.Addresses(), ",")
	fmt.Fprintf(w, "\nThe pair runs until Ctrl-C; %s.\n", p.Coordinator())
	printNodes(w, s)
	if url := jmsURL([]devPair{*s}); url != "" {
		fmt.Fprintf(w, "  AMQP 1.0, for Qpid JMS   %s\n", url)
	}
	prefix := ""
	if addrs != cli.DefaultAddr {
		prefix = "\n  export " + cli.EnvAddr + "=" + addrs
	}
	fmt.Fprintf(w, `
Try in another terminal:%s
  lockstep queue create orders
  lockstep publish orders "first message"
  lockstep consume orders
  lockstep status --watch
  lockstep switchover
  kill -9 %d
`, prefix, p.Nodes[0].PID())
}
