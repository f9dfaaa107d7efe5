// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
	"github.com/spf13/cobra"
)

// part is the command line of a benchmark, in a short and a long form.
type part struct{ short, long string }

// parts returns the benchmarks that run after the comparisons with peers.
func parts() []part {
	return []part{
		{
			"store --messages 200000 --bursts 6 --sync off --memory 32MiB --memory-limit 512MiB --far --warm " +
				"--rounds 1",
			"store --messages 2000000 --bursts 16 --sync off --memory-limit 2GiB --far --warm --rounds 1",
		},
		{
			"fanout --subscriptions 1,10,100 --messages 20000 --memory 64MiB --sync off",
			"fanout --subscriptions 1,10,100,1000 --messages 200000 --memory 64MiB --sync off --rounds 3",
		},
		{
			"knobs --knob commit-delay --values 0s,1ms --duration 2s",
			"knobs --knob commit-delay --duration 10s --rounds 3",
		},
		{
			"knobs --knob checkpoint-bytes --values 64MiB,256MiB --duration 4s",
			"knobs --knob checkpoint-bytes --duration 40s --rounds 3",
		},
		{"queues --messages 200000", "queues --messages 1000000"},
		{"growth --levels 100000,1000000", "growth --levels 100000,1000000,10000000,100000000 --slices 10"},
		{"failover --kills 5", "failover --kills 50"},
	}
}

func names() []string {
	all := []string{measure.PeerNATS, measure.PeerChronicle}
	for _, p := range parts() {
		name, _, _ := strings.Cut(p.short, " ")
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

func allCommand(env *cli.Env) *cobra.Command {
	var f compareFlags
	var long bool
	var only []string
	cmd := &cobra.Command{
		Use: "all", Short: "Run the main benchmarks and print a table",
		Long: `Run the comparisons with nats and chronicle, and the benchmarks store, fanout, knobs, queues, growth and
failover, by default in a short form of a few minutes. Then print one table with the results. Peers that are not found
are listed as not installed.

If a measurement fails, the others still run, and the exit code is 1.`,
		Example: `  lockstep-lab all
  lockstep-lab all --peers ~/peers
  lockstep-lab all --long --output json > results.json
  lockstep-lab all --only queues,growth`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.Memory, f.PageSize, f.Sizes, f.Messages, f.Rounds, f.Sync = "512MiB", "2KiB", []string{"512", "15000"},
				1_000_000, 1, "off"
			f.Duration, f.bursts, f.batch, f.configs = 2*time.Second, 2, 100, []string{"r1", "r3"}
			if long {
				f.Messages, f.Rounds, f.Duration, f.bursts = 2_000_000, 5, 10*time.Second, 4
			}
			for _, name := range only {
				if !slices.Contains(names(), name) {
					return cli.Usage("--only %q: must be one of %s", name, strings.Join(names(), ", "))
				}
			}
			if err := f.find(env, "", "", measure.PeerNATS, measure.PeerChronicle); err != nil {
				return err
			}
			p, err := f.Parse()
			if err != nil {
				return err
			}
			c := &comparer{env: env, cmd: cmd, f: f, p: p}
			failed := c.everything(cmd.Context(), long, only)
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			return errors.Join(c.print(), failed)
		},
	}
	f.register(cmd, env)
	cmd.Flags().StringVar(&f.Dir, "dir", "", benchcli.DirUsage)
	cmd.Flags().BoolVar(&long, "long", false, "run the long form, which takes hours")
	cmd.Flags().StringSliceVar(&only, "only", nil, "measurements to run: "+strings.Join(names(), ", "))
	return cmd
}

func (c *comparer) everything(ctx context.Context, long bool, only []string) (failed error) {
	try := func(name string, run func(context.Context) error) {
		if ctx.Err() != nil || len(only) > 0 && !slices.Contains(only, name) {
			return
		}
		if err := run(ctx); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	c.f.syncs = []string{"off", "always"}
	try(measure.PeerNATS, c.natsRounds)
	c.p.Sizes = []int{512}
	try(measure.PeerChronicle, c.bothChronicles)
	c.round = 1
	for _, p := range parts() {
		line := p.short
		if long {
			line = p.long
		}
		args := strings.Fields(line)
		try(args[0], func(ctx context.Context) error { return c.part(ctx, args) })
	}
	return failed
}

// bothChronicles runs the Chronicle comparison without syncs and then with syncs. Because syncs are slow, the
// second comparison uses a tenth of the messages.
func (c *comparer) bothChronicles(ctx context.Context) error {
	messages := c.f.Messages
	defer func() { c.f.Messages = messages }()
	c.f.syncs = []string{"off"}
	if err := c.chronicleRounds(ctx); err != nil {
		return err
	}
	c.f.syncs, c.f.Messages = []string{"always"}, messages/10
	return c.chronicleRounds(ctx)
}

func (c *comparer) part(ctx context.Context, args []string) error {
	return c.alone(ctx, func() error {
		c.logf("%s", strings.Join(args, " "))
		if c.f.Dir != "" {
			args = append(args, "--dir="+c.f.Dir)
		}
		results, err := benchProcess(ctx, c.env.Stderr, args...)
		for _, r := range results {
			if r.Median {
				continue // the comparison computes its own median
			}
			r.Case = r.Describe()
			c.c.Ours(r)
			if err := c.env.Print.Object(r); err != nil {
				return err
			}
		}
		return err
	})
}
