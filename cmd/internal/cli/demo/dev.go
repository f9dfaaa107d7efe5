// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// devFlags are the flags of lockstep dev.
type devFlags struct {
	dir, coordinator, console, amqp string
	listen                          [2]string
	site                            bool
	listenSite                      string
	pairs                           int
	// restartAfter is the delay before a node is restarted. It leaves time to observe the other node alone.
	restartAfter time.Duration
}

// DevCommand returns the `lockstep dev` command.
func DevCommand(env *cli.Env) *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use: "dev", GroupID: "run",
		Short: "Run a local pair for development",
		Long: `Run a pair on this machine until Ctrl-C. No other software, such as etcd, is required. The data is
kept in --dir; the next start uses it again. Connections are not encrypted.

With --site, the pair in --dir is the site east, and a second pair, in its subdirectory west, is the site west. At
the first start with --site, west becomes the replica of east. Later starts keep the roles.

With --pairs, several pairs run as one fleet: pair-1 in --dir, the others in its subdirectories pair-2, pair-3 and so
on. Later starts can add pairs.`,
		Example: "  lockstep dev\n  lockstep dev --dir /tmp/pair --listen-a 127.0.0.1:8001 --listen-b 127.0.0.1:8002\n" +
			"  lockstep dev --site\n  lockstep dev --pairs 3",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pairs, err := f.start(cmd.Context())
			if err != nil {
				return err
			}
			return dev(cmd.Context(), env, pairs, f.restartAfter)
		},
	}
	cmd.Flags().StringVar(&f.dir, "dir", "lockstep-data", "data directory")
	cmd.Flags().StringVar(&f.coordinator, "coordinator", "etcd",
		"coordinator: etcd, or raft with a witness process")
	cmd.Flags().StringVar(&f.console, "console", consoleAddress,
		"first console address to try; each node uses the next free port; empty: no console")
	cmd.Flags().StringVar(&f.amqp, "amqp", amqpAddress,
		"first AMQP 1.0 address to try; each node uses the next free port; empty: no AMQP")
	cmd.Flags().StringVar(&f.listen[0], "listen-a", "127.0.0.1:7420", "client address of node a")
	cmd.Flags().StringVar(&f.listen[1], "listen-b", "127.0.0.1:7421",
		"client address of node b; with --pairs, further pairs use the next free ports")
	cmd.Flags().BoolVar(&f.site, "site", false, "run a second pair as another site; not with --pairs")
	cmd.Flags().StringVar(&f.listenSite, "listen-site", "127.0.0.1:7422",
		"first client address of the site west; ports in use are skipped")
	cmd.Flags().IntVar(&f.pairs, "pairs", 1, "number of pairs, 1 to 8; several pairs require --coordinator etcd")
	cmd.Flags().DurationVar(&f.restartAfter, "restart-after", 5*time.Second,
		"delay before a node or witness that has exited is restarted")
	return cmd
}

// maxPairs is the maximum of --pairs.
const maxPairs = 8

// start returns the pairs to start.
func (f *devFlags) start(ctx context.Context) ([]devPair, error) {
	raft, err := cli.WantsRaft(f.coordinator)
	if err == nil {
		err = f.check(raft)
	}
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(f.dir, 0o750); err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	pairs := []devPair{{ports: make(served), Options: harness.Options{Dir: f.dir, Listen: f.listen}}}
	switch {
	case f.site:
		pairs, err = f.twoSites(ctx)
	case f.pairs > 1:
		pairs, err = f.fleet(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(listen(ctx, pairs, "--console", consoleSetting, f.console),
		listen(ctx, pairs, "--amqp", amqpSetting, f.amqp)); err != nil {
		return nil, err
	}
	for i := range pairs {
		p := &pairs[i]
		p.Raft, p.NodeSettings = raft, p.ports
		p.Settings = harness.SmallNodes()
		maps.Copy(p.Settings, p.settings)
	}
	return pairs, nil
}

func (f *devFlags) check(raft bool) error {
	switch {
	case f.restartAfter < 0:
		return cli.Usage("--restart-after must not be negative")
	case f.pairs < 1 || f.pairs > maxPairs:
		return cli.Usage("--pairs %d: must be 1 to %d", f.pairs, maxPairs)
	case f.pairs > 1 && f.site:
		return cli.Usage("--pairs and --site cannot be used together")
	case f.pairs > 1 && raft:
		return cli.Usage("--pairs requires --coordinator etcd: the directory of a fleet is in etcd")
	}
	for i, flag := range []string{"--listen-a", "--listen-b"} {
		if _, _, err := net.SplitHostPort(f.listen[i]); err != nil {
			return cli.Usage("%s: %q is not host:port", flag, f.listen[i])
		}
	}
	return nil
}

func dev(ctx context.Context, env *cli.Env, pairs []devPair, restartAfter time.Duration) (err error) {
	defer func() {
		for i := range slices.Backward(pairs) { // the first pair may have the etcd of all pairs
			if p := pairs[i].pair; p != nil {
				err = errors.Join(err, p.Close())
			}
		}
	}()
	for i := range pairs {
		p := &pairs[i]
		if p.fleet && i > 0 {
			p.EtcdAddress = pairs[0].pair.EtcdAddress()
		}
		if p.pair, err = startPair(ctx, p.Options); err != nil {
			return err
		}
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i := range pairs {
		err = errors.Join(err, pairs[i].pair.WaitReady(ready, nil))
	}
	show := func() { printPair(env.Stdout, &pairs[0]) }
	switch {
	case err != nil:
	case pairs[0].fleet:
		err = joinFleet(ready, pairs)
		show = func() { printFleet(env.Stdout, pairs) }
	case len(pairs) > 1:
		err = connectSites(ready, pairs)
		show = func() { printSites(env.Stdout, pairs) }
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	show()
	supervise(ctx, env, pairs, restartAfter)
	return nil
}

func startPair(ctx context.Context, o harness.Options) (*harness.Pair, error) {
	p, err := harness.Start(ctx, o)
	switch {
	case errors.Is(err, harness.ErrInUse):
		return nil, cli.WithHint(err, "stopping that process, or `--dir` with another directory")
	case errors.Is(err, harness.ErrAddressInUse):
		return nil, cli.WithHint(err, "stopping that process, or `--listen-a` and `--listen-b` with other addresses")
	}
	return p, err
}

func supervise(ctx context.Context, env *cli.Env, pairs []devPair, after time.Duration) {
	var all sync.WaitGroup
	for i := range pairs {
		for _, n := range pairs[i].pair.Processes() {
			all.Go(func() { restart(ctx, env, pairs[i].label(n), n, after) })
		}
	}
	all.Wait()
}

// restart restarts a node each time it exits, after a delay, and retries failed starts. It returns when ctx ends.
func restart(ctx context.Context, env *cli.Env, label string, n *harness.Node, after time.Duration) {
	for {
		select {
		case <-n.Exited():
		case <-ctx.Done():
			return
		}
		fmt.Fprintf(env.Stdout, "node %s exited; restarting it in %v\n", label, after)
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
		fmt.Fprintf(env.Stdout, "node %s is running again, process %d\n", label, n.PID())
	}
}
