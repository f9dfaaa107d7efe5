package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/demo"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/pair"
)

func (a *app) demoCommand() *cobra.Command {
	o := demo.Options{}
	var keep bool
	var coordinator string
	cmd := &cobra.Command{
		Use: "demo", GroupID: "run",
		Short: "Kill the active node of a pair in mid-stream, and see that nothing is lost (20 seconds)",
		Long: `Starts an etcd (or a witness) and two node processes on this machine with their data in a temporary directory, publishes and consumes,
kills the active node with SIGKILL, starts it again, waits until it has caught up, and compares.

The exit code is 0 only if no acknowledged message was lost or doubled and both stores hold the same.`,
		Example: "  lockstep demo\n  lockstep demo --coordinator raft\n  lockstep demo --output json\n  lockstep " +
			"demo --keep",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Duration < time.Second || o.Rate < 1 || o.Rate > 1_000_000 {
				return usage("--duration must be at least 1s and --rate 1 to 1000000")
			}
			var err error
			if o.Raft, err = wantsRaft(coordinator); err != nil {
				return err
			}
			if keep {
				o.Keep = a.keepRunning
			}
			return a.demo(cmd.Context(), o)
		},
	}
	cmd.Flags().DurationVar(&o.Duration, "duration", 14*time.Second, "how long to publish")
	cmd.Flags().IntVar(&o.Rate, "rate", 4000, "messages per second")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 0, "decides over the content and the moment of the kill; 0: any")
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the pair running until Ctrl-C")
	cmd.Flags().StringVar(&coordinator, "coordinator", "etcd",
		"what holds the pair's record: etcd, or raft, with a witness process")
	cmd.AddCommand(a.demoResizeCommand())
	return cmd
}

// wantsRaft reads the flag --coordinator.
func wantsRaft(coordinator string) (bool, error) {
	switch coordinator {
	case "etcd":
		return false, nil
	case "raft":
		return true, nil
	default:
		return false, usage("--coordinator %q is neither etcd nor raft", coordinator)
	}
}

// smallNodes are settings for nodes that share one machine with others, perhaps a nearly full one.
func smallNodes() map[string]string {
	return map[string]string{"disk-low-watermark": "16MiB", "log-segment-bytes": "16MiB", "memory-budget": "128MiB"}
}

func (a *app) demo(ctx context.Context, o demo.Options) error {
	if err := a.demoOptions(&o); err != nil {
		return err
	}
	return keepIfFailed(ctx, o, func() (passed bool, err error) {
		v, err := demo.Run(ctx, o)
		if err != nil {
			return false, err
		}
		return v.Passed(), a.printVerdict(v)
	})
}

// demoOptions fills in what all demos have in common.
func (a *app) demoOptions(o *demo.Options) error {
	if o.Seed == 0 {
		o.Seed = uint64(rand.Uint32()) //nolint:gosec // any number will do; a short one is easier to type
	}
	dir, err := os.MkdirTemp("", "lockstep-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	o.Dir, o.Settings = dir, smallNodes()
	w := a.stdout
	if a.print.JSON() {
		w = a.stderr
	}
	o.Screen = demo.NewScreen(w, isTerminal(w))
	return nil
}

// keepIfFailed runs a demo and removes its directory, unless it failed.
func keepIfFailed(ctx context.Context, o demo.Options, run func() (passed bool, err error)) error {
	remove := true // also when it panics
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
		return fmt.Errorf("the demo with seed %d FAILED; data and logs are kept in %s", o.Seed, o.Dir)
	}
	return nil
}

func (a *app) printVerdict(v demo.Verdict) error {
	if a.print.JSON() {
		return a.print.Object(v)
	}
	verdict := "passed: nothing acknowledged was lost, doubled or out of order, both stores hold the same"
	if !v.Passed() {
		verdict = "FAILED"
	}
	digest := func(i int) string { return fmt.Sprintf("%.16s… at LSN %d", v.Digests[i], v.LSN) }
	if err := a.print.Sentence(""); err != nil {
		return err
	}
	return a.print.Table([]string{"Verdict", verdict}, [][]any{
		{"published", out.Count(v.Published)},
		{"acknowledged", out.Count(v.Acknowledged)},
		{"delivered", out.Count(v.Delivered)},
		{"lost", out.Count(v.Lost)},
		{"duplicated", out.Count(v.Duplicated)},
		{"out of order", out.Count(v.OutOfOrder)},
		{"delivered again before its acknowledgement was confirmed", out.Count(v.Redelivered)},
		{"from the kill to the next acknowledged publish", fmt.Sprintf("%.1f ms", v.FailoverMS)},
		{"from the restart of the killed node to in sync", fmt.Sprintf("%.1f s", v.CatchUp.Seconds())},
		{"digest of node a", digest(0)},
		{"digest of node b", digest(1)},
		{"coordinator", v.Coordinator},
	})
}

// keepRunning tells how to use a pair and waits for Ctrl-C.
func (a *app) keepRunning(ctx context.Context, p *pair.Pair) {
	// The events go where the demo's screen is; what fails here is a terminal that is gone, and ctx ends with that.
	w := a.stdout
	if a.print.JSON() {
		w = a.stderr
	}
	printPair(w, p)
	<-ctx.Done()
}

// printPair tells where a pair is and what to try.
func printPair(w io.Writer, p *pair.Pair) {
	addrs := p.Addresses()[0]
	if len(p.Nodes) > 1 {
		addrs += "," + p.Nodes[1].Address
	}
	fmt.Fprintf(w, "\nThe pair runs until Ctrl-C; %s.\n", p.Coordinator())
	for _, n := range p.Nodes {
		fmt.Fprintf(w, "  node %s   %s   process %d   log %s\n", n.Name, n.Address, n.PID(), n.LogFile())
	}
	prefix := ""
	if addrs != defaultAddr {
		prefix = "\n  export " + envAddr + "=" + addrs
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

// isTerminal tells whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
