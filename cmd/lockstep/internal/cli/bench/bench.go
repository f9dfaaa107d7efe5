// SPDX-License-Identifier: Apache-2.0

// Package bench implements the `lockstep bench` commands: flags, rounds and tables. The measurements are in
// internal/bench.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/harness"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/cli"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store"
)

// Command returns the `lockstep bench` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", GroupID: "operate",
		Short: "Measure publishing, consuming and the embedded store",
		Long: `Measures on this machine: by default against a pair that is started for it, with its data in a temporary directory. With
--addr it loads nodes that run already, in queues named bench-0, bench-1 and so on, which are deleted afterwards.

Several rounds are run; the last line is the one with the median rate. With --output json there is one object per line.
Latencies are in milliseconds, MB are 10^6 bytes of message bodies; CPU and memory are those of the nodes and of this
process together (in JSON also of each); disk is what was written to the disk that holds the data, by whomever.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(publishCommand(env), consumeCommand(env), failoverCommand(env), wipeCommand(env),
		maintenanceCommand(env), fanoutCommand(env),
		expireCommand(env),
		pageSizeCommand(env), storeCommand(env), queuesCommand(env), growthCommand(env), boundCommand(env),
		capacityCommand(env), mixedCommand(env),
		knobsCommand(env), compareCommand(env), allCommand(env))
	return cmd
}

// benchFlags are the flags of the measurements through the client.
type benchFlags struct {
	pair, standalone bool
	raft             bool
	tls              bool // with generated certificates
	links            bool // use proxies, which can be cut, between the nodes and to etcd
	sync             string
	pageSize         string
	memory           string
	pageCache        string
	sizes            []string
	messages         int
	queues           int
	rounds           int
	duration         time.Duration
	dir              string
	settings         map[string]string            // of the nodes, in addition to those with a flag
	set              map[string]string            // --set: settings of the nodes; they take precedence
	nodeSettings     map[string]map[string]string // of one node, by its name
}

func (f *benchFlags) register(cmd *cobra.Command) {
	f.registerNodes(cmd)
	cmd.Flags().IntVar(&f.queues, "queues", 1, "queues to spread the messages over")
	f.registerStore(cmd)
}

// registerNodes adds the flags about the started nodes.
func (f *benchFlags) registerNodes(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.pair, "pair", false, "start a pair for it (the default, unless --addr is given)")
	cmd.Flags().BoolVar(&f.standalone, "standalone", false, "start one node alone for it")
	cmd.Flags().StringToStringVar(&f.set, "set", nil,
		"settings of what is started, such as commit-delay=1ms,limits.delivery-share=10")
	cmd.MarkFlagsMutuallyExclusive("pair", "standalone")
}

// registerStore adds the flags that the embedded store also has.
func (f *benchFlags) registerStore(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.sync, "sync", "always", "sync mode of what is started: always, interval or off")
	f.registerCommon(cmd)
}

// registerCommon adds the flags of all measurements.
func (f *benchFlags) registerCommon(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.pageSize, "page-size", "2KiB", "page size of what is started")
	cmd.Flags().StringVar(&f.memory, "memory", "512MiB", "memory budget of what is started")
	cmd.Flags().StringVar(&f.pageCache, "page-cache", "auto",
		"what becomes of the system's page cache, see memory.page-cache: "+strings.Join(store.PageCacheNames(), ", "))
	cmd.Flags().StringSliceVar(&f.sizes, "size", []string{"512"},
		"bytes of a message; several, such as 512,15000, are measured one after the other")
	cmd.Flags().IntVar(&f.messages, "messages", 200_000, "messages of a round")
	cmd.Flags().IntVar(&f.rounds, "rounds", 3, "rounds")
	cmd.Flags().StringVar(&f.dir, "dir", "", "directory for the data; default: a temporary one")
}

// parsed are the checked flags.
type parsed struct {
	sizes            []int
	pageSize, memory config.Size
	pageCache        store.PageCache
}

func (f *benchFlags) parse() (p parsed, err error) {
	for _, s := range f.sizes {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 0 || n > 64<<20 {
			return p, cli.Usage("--size %q is no number of bytes up to 64 MiB", s)
		}
		p.sizes = append(p.sizes, n)
	}
	if f.messages < 1 || f.rounds < 1 || f.queues < 0 || f.duration < 0 {
		return p, cli.Usage("--messages, --rounds and --queues must be at least 1, and --duration not below 0")
	}
	if p.pageSize, err = config.ParseSize(f.pageSize); err != nil {
		return p, cli.Usage("--page-size: %v", err)
	}
	if p.memory, err = config.ParseSize(f.memory); err != nil {
		return p, cli.Usage("--memory: %v", err)
	}
	f.pageCache = cmp.Or(f.pageCache, store.PageCacheNames()[store.CacheAuto])
	if p.pageCache, err = store.ParsePageCache(f.pageCache); err != nil {
		return p, cli.Usage("--page-cache: %v", err)
	}
	if f.sync != "always" && f.sync != "interval" && f.sync != "off" {
		return p, cli.Usage("--sync %q is none of always, interval and off", f.sync)
	}
	return p, nil
}

// withTarget starts the system under test, or connects to it, and runs fn.
func withTarget(
	ctx context.Context, env *cli.Env, cmd *cobra.Command, f benchFlags, p parsed, fn func(bench.Target) error,
) (err error) {
	if cmd.Flags().Changed("addr") && !f.pair && !f.standalone {
		return env.WithClient(ctx, func(ctx context.Context, c *client.Client) error {
			ctx, cancel := context.WithTimeout(ctx, env.Timeout)
			_, err := c.WaitActive(ctx)
			cancel()
			if err != nil {
				return err
			}
			return fn(bench.Target{Client: c, Setup: "remote"})
		})
	}
	dir, remove, err := bench.NewDir(f.dir)
	if err != nil {
		return err
	}
	defer remove()
	settings := harness.SmallNodes()
	settings["log.format"] = "json"
	settings["sync"], settings["page-size"], settings["memory.budget"] = f.sync, p.pageSize.String(), p.memory.String()
	settings["memory.page-cache"] = f.pageCache
	delete(settings, "wal.segment-bytes")
	maps.Copy(settings, f.settings)
	for name, value := range f.set { // by its key, or by the name of its flag
		flag := strings.ReplaceAll(name, ".", "-")
		maps.DeleteFunc(settings, func(k, _ string) bool { return strings.ReplaceAll(k, ".", "-") == flag })
		settings[name] = value
	}
	start := harness.Options{
		Dir: dir, Standalone: f.standalone, Raft: f.raft, Links: f.links, EtcdLinks: f.links,
		Settings: settings, NodeSettings: f.nodeSettings,
	}
	var o client.Options
	if f.tls {
		if err := secured(dir, &start, &o); err != nil {
			return err
		}
	}
	nodes, err := harness.Start(ctx, start)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nodes.Close()) }()
	o.Addresses, o.DialOptions = nodes.Addresses(), nodes.DialOptions()
	c, err := client.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	err = nodes.WaitReady(ready, nil)
	cancel()
	if err != nil {
		return err
	}
	t := bench.Target{Client: c, Setup: "pair", Sync: f.sync, Dir: dir, Pair: nodes, Processes: map[string]int{}}
	if f.standalone {
		t.Setup = "standalone"
	}
	for _, n := range nodes.Nodes {
		t.Processes[n.Name] = n.PID()
	}
	return fn(t)
}

// rounds runs a measurement for each size and round, and prints each result when it is available.
func rounds(env *cli.Env, f benchFlags, sizes []int, measure func(sizeBytes int) (bench.Result, error)) error {
	for _, size := range sizes {
		var all []bench.Result
		for round := range f.rounds {
			r, err := measure(size)
			if err != nil {
				return err
			}
			r.Round = round + 1
			all = append(all, r)
			if err := env.Print.Object(r); err != nil {
				return err
			}
		}
		median := bench.Median(all)
		if err := env.Print.Object(median); err != nil {
			return err
		}
		if err := printResults(env, append(all, median)); err != nil {
			return err
		}
	}
	return nil
}

// printResults prints results as a table.
func printResults(env *cli.Env, results []bench.Result) error {
	rows := make([][]any, 0, len(results))
	for _, r := range results {
		name := fmt.Sprint(r.Round)
		if r.Burst > 0 {
			name = fmt.Sprint(r.Burst)
		}
		if r.Median {
			name = "median"
		}
		rows = append(rows, []any{
			r.Workload + " " + r.Phase, name, r.Setup, r.Sync, r.SizeBytes, r.Messages, fmt.Sprintf("%.0f", r.Rate),
			fmt.Sprintf("%.1f", r.MB),
			digits(r.P50), digits(r.P99), digits(r.P999), digits(r.Max),
			fmt.Sprintf("%.1f", r.CPU), fmt.Sprintf("%.0f", r.RSS), fmt.Sprintf("%.0f", r.DiskWritten),
		})
	}
	return env.Print.Table([]string{
		"Measured", "Round", "Setup", "Sync", "Bytes", "Messages", "Rate/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms",
		"max ms", "CPU s", "RSS MB", "Disk MB",
	}, rows)
}

// digits formats milliseconds with a suitable number of digits.
func digits(ms float64) string {
	switch {
	case ms < 1:
		return fmt.Sprintf("%.3f", ms)
	case ms < 100:
		return fmt.Sprintf("%.2f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}
