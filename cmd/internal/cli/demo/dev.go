// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// restartAfter is the delay before a node is restarted. It leaves time to observe the other node alone.
const restartAfter = 5 * time.Second

// DevCommand returns the `lockstep dev` command.
func DevCommand(env *cli.Env) *cobra.Command {
	var dir, listenA, listenB, coordinator, console, amqp string
	cmd := &cobra.Command{
		Use: "dev", GroupID: "run",
		Short: "Run a local pair for development",
		Long: `Run etcd (or a witness) and two nodes on this machine until Ctrl-C. Data is kept in --dir, and the
next start continues with it. A node that is killed is restarted after 5 seconds.`,
		Example: "  lockstep dev\n  lockstep dev --dir /tmp/pair --listen-a 127.0.0.1:8001 --listen-b 127.0.0.1:8002",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raft, err := cli.WantsRaft(coordinator)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o750); err != nil {
				return fmt.Errorf("--dir: %w", err)
			}
			for _, flag := range [][2]string{{"--listen-a", listenA}, {"--listen-b", listenB}} {
				if _, _, err := net.SplitHostPort(flag[1]); err != nil {
					return cli.Usage("%s: %q is not host:port", flag[0], flag[1])
				}
			}
			ports := make(served)
			if err := errors.Join(ports.listen(cmd.Context(), "--console", consoleSetting, console),
				ports.listen(cmd.Context(), "--amqp", amqpSetting, amqp)); err != nil {
				return err
			}
			return dev(cmd.Context(), env, harness.Options{
				Dir: dir, Listen: [2]string{listenA, listenB},
				Settings: harness.SmallNodes(), NodeSettings: ports, Raft: raft,
			})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "lockstep-data", "data directory")
	cmd.Flags().StringVar(&coordinator, "coordinator", "etcd",
		"coordinator: etcd, or raft with a witness process")
	cmd.Flags().StringVar(&console, "console", consoleAddress,
		"console address of node a; b uses the next port. Ports in use are skipped; empty: none")
	cmd.Flags().StringVar(&amqp, "amqp", amqpAddress,
		"AMQP 1.0 address of node a; b uses the next port. Ports in use are skipped; empty: none")
	cmd.Flags().StringVar(&listenA, "listen-a", "127.0.0.1:7420", "address of node a")
	cmd.Flags().StringVar(&listenB, "listen-b", "127.0.0.1:7421", "address of node b")
	return cmd
}

func dev(ctx context.Context, env *cli.Env, o harness.Options) (err error) {
	p, err := harness.Start(ctx, o)
	switch {
	case errors.Is(err, harness.ErrInUse):
		return cli.WithHint(err, "stopping that process, or `--dir` with another directory")
	case errors.Is(err, harness.ErrAddressInUse):
		return cli.WithHint(err, "stopping that process, or `--listen-a` and `--listen-b` with other addresses")
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := client.OpenWith(ctx, client.Options{Addresses: p.Addresses()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	err = p.WaitReady(ready, nil)
	cancel()
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	printPair(env.Stdout, p, o.NodeSettings)
	supervise(ctx, env, p)
	return nil
}

func supervise(ctx context.Context, env *cli.Env, p *harness.Pair) {
	done := make(chan struct{})
	all := p.Processes()
	for _, n := range all {
		go func() {
			defer func() { done <- struct{}{} }()
			restart(ctx, env, n, restartAfter)
		}()
	}
	for range all {
		<-done
	}
}

// restart restarts a node each time it exits, after a delay, and retries failed starts. It returns when ctx ends.
func restart(ctx context.Context, env *cli.Env, n *harness.Node, after time.Duration) {
	for {
		select {
		case <-n.Exited():
		case <-ctx.Done():
			return
		}
		fmt.Fprintf(env.Stdout, "node %s exited; restarting it in %v\n", n.Name, after)
		for started := false; !started; {
			timer := time.NewTimer(after)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			if err := n.Start(); err != nil {
				fmt.Fprintf(env.Stderr, "lockstep: %v; retrying in %v\n", err, after)
				continue
			}
			started = true
		}
		fmt.Fprintf(env.Stdout, "node %s is running again, process %d\n", n.Name, n.PID())
	}
}
