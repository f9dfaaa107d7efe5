// SPDX-License-Identifier: Apache-2.0

// Package benchcli implements the commands of `lockstep bench`, and the flags, rounds and tables that cmd/lockstep-lab
// shares with it. The measurements are in cmd/internal/bench.
package benchcli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// Command returns `lockstep bench`.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", GroupID: "operate",
		Short: "Measure publishing, consuming and failover",
		Long:  long,
		Args:  cli.KnownSubcommand,
		RunE:  cli.NeedsSubcommand,
	}
	cmd.AddCommand(Commands(env)...)
	return cmd
}

// Commands returns the benchmarks of the lockstep command.
func Commands(env *cli.Env) []*cobra.Command {
	return []*cobra.Command{publishCommand(env), consumeCommand(env), failoverCommand(env)}
}

const long = `By default, the benchmarks start a pair on this machine with its data in a temporary directory. failover
always does. With --addr, publish and consume use running nodes, ` + deletes + `

` + Units

const deletes = `and queues named bench-0, bench-1 and so on. Existing queues with these names are deleted with their
messages, without confirmation.`

// Units describes the units of the results of all benchmarks.
const Units = `1 MB is 10^6 bytes. The columns "CPU s" and "RSS MB" are totals of the nodes and this process; with
--addr, of this process only. The column "Disk MB" is the amount that all programs wrote to the disk that contains the
data; with --addr, it is 0. On systems other than Linux, these three columns are 0.`

// DirUsage is the help text of --dir.
const DirUsage = "parent directory of the temporary data; default: the directory for temporary files"

// Flags contains the values of the flags shared by benchmarks, and settings that benchmarks add.
type Flags struct {
	Pair, Standalone bool
	Raft             bool
	TLS              bool // use TLS with generated certificates
	Links            bool // use proxies, which can be cut, between the nodes and to etcd
	Sync             string
	PageSize         string
	Memory           string
	PageCache        string
	Sizes            []string
	Messages         int
	Queues           int
	Rounds           int
	Duration         time.Duration
	Dir              string
	Settings         map[string]string            // node settings in addition to those with a flag
	Set              map[string]string            // --set: settings of the nodes; they take precedence
	NodeSettings     map[string]map[string]string // additional settings by node name
}

// Register adds the flags of benchmarks that use a client.
func (f *Flags) Register(cmd *cobra.Command) {
	f.RegisterNodes(cmd)
	cmd.Flags().IntVar(&f.Queues, "queues", 1, "number of queues")
	f.RegisterStore(cmd)
}

// RegisterNodes adds the flags for the nodes to start.
func (f *Flags) RegisterNodes(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.Pair, "pair", false, "start a pair (default unless --addr is given)")
	cmd.Flags().BoolVar(&f.Standalone, "standalone", false, "start a standalone node")
	cmd.Flags().StringToStringVar(&f.Set, "set", nil,
		"settings of the started nodes, such as commit-delay=1ms,limits.delivery-share=10")
	cmd.MarkFlagsMutuallyExclusive("pair", "standalone")
}

// RegisterStore adds the flags that also apply to the embedded store.
func (f *Flags) RegisterStore(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Sync, "sync", "always", "sync mode of the started nodes: always, interval or off")
	f.RegisterCommon(cmd)
}

// RegisterCommon adds the flags of all measurements.
func (f *Flags) RegisterCommon(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.PageSize, "page-size", "2KiB", "page size of the started nodes")
	cmd.Flags().StringVar(&f.Memory, "memory", "512MiB", "memory budget of the started nodes")
	cmd.Flags().StringVar(&f.PageCache, "page-cache", "auto",
		"page cache mode, see memory.page-cache: "+strings.Join(store.PageCacheNames(), ", "))
	cmd.Flags().StringSliceVar(&f.Sizes, "size", []string{"512"},
		"message size in bytes; several sizes, such as 512,15000, are measured in sequence")
	cmd.Flags().IntVar(&f.Messages, "messages", 200_000, "messages per round")
	cmd.Flags().IntVar(&f.Rounds, "rounds", 3, "number of rounds")
	cmd.Flags().StringVar(&f.Dir, "dir", "", DirUsage)
}

// Params contains the parsed and validated flag values.
type Params struct {
	Sizes            []int
	PageSize, Memory config.Size
	PageCache        store.PageCache
}

// Parse parses and checks the flags, and sets an empty PageCache to the default. Errors are usage errors.
func (f *Flags) Parse() (p Params, err error) {
	for _, s := range f.Sizes {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 0 || n > 64<<20 {
			return p, cli.Usage("--size %q is not a number of bytes up to 64 MiB", s)
		}
		p.Sizes = append(p.Sizes, n)
	}
	if f.Messages < 1 || f.Rounds < 1 || f.Queues < 0 || f.Duration < 0 {
		return p, cli.Usage("--messages, --rounds and --queues must be at least 1, and --duration must not be negative")
	}
	if p.PageSize, err = config.ParseSize(f.PageSize); err != nil {
		return p, cli.Usage("--page-size: %v", err)
	}
	if p.Memory, err = config.ParseSize(f.Memory); err != nil {
		return p, cli.Usage("--memory: %v", err)
	}
	f.PageCache = cmp.Or(f.PageCache, store.PageCacheNames()[store.CacheAuto])
	if p.PageCache, err = store.ParsePageCache(f.PageCache); err != nil {
		return p, cli.Usage("--page-cache: %v", err)
	}
	if f.Sync != "always" && f.Sync != "interval" && f.Sync != "off" {
		return p, cli.Usage("--sync %q: must be always, interval or off", f.Sync)
	}
	return p, nil
}

// AllSettings returns the settings of the nodes to start.
func (f *Flags) AllSettings(p Params) map[string]string {
	settings := harness.SmallNodes()
	settings["log.format"] = "json"
	settings["sync"], settings["page-size"], settings["memory.budget"] = f.Sync, p.PageSize.String(), p.Memory.String()
	settings["memory.page-cache"] = f.PageCache
	delete(settings, "wal.segment-bytes")
	maps.Copy(settings, f.Settings)
	for name, value := range f.Set { // name is the key of a setting, or the name of its flag
		flag := strings.ReplaceAll(name, ".", "-")
		maps.DeleteFunc(settings, func(k, _ string) bool { return strings.ReplaceAll(k, ".", "-") == flag })
		settings[name] = value
	}
	return settings
}

// WithTarget runs fn with the system under test: the nodes in --addr if that flag is given without --pair and
// --standalone, or else a new pair or standalone node. WithTarget stops a new pair or node after fn, and removes its
// data.
func WithTarget(
	ctx context.Context, env *cli.Env, cmd *cobra.Command, f Flags, p Params, fn func(bench.Target) error,
) (err error) {
	if cmd.Flags().Changed("addr") && !f.Pair && !f.Standalone {
		return env.WithClient(ctx, func(ctx context.Context, c *client.Client) error {
			if _, err := env.WaitActive(ctx, c); err != nil {
				return err
			}
			return fn(bench.Target{Client: c, Setup: "remote"})
		})
	}
	dir, remove, err := bench.NewDir(f.Dir)
	if err != nil {
		return err
	}
	defer remove()
	settings := f.AllSettings(p)
	start := harness.Options{
		Dir: dir, Standalone: f.Standalone, Raft: f.Raft, Links: f.Links, EtcdLinks: f.Links,
		Settings: settings, NodeSettings: f.NodeSettings,
	}
	var o client.Options
	if f.TLS {
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
	c, err := client.OpenWith(ctx, o)
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
	t := bench.Target{Client: c, Setup: "pair", Sync: f.Sync, Dir: dir, Pair: nodes, Processes: map[string]int{}}
	if f.Standalone {
		t.Setup = "standalone"
	}
	for _, n := range nodes.Nodes {
		t.Processes[n.Name] = n.PID()
	}
	return fn(t)
}

// Rounds runs a measurement for each size and round, and prints the results and the median of each size. In the JSON
// format, each result is printed when it is available.
func Rounds(env *cli.Env, f Flags, sizes []int, measure func(sizeBytes int) (bench.Result, error)) error {
	for _, size := range sizes {
		var all []bench.Result
		for round := range f.Rounds {
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
		if err := PrintResults(env, append(all, median)); err != nil {
			return err
		}
	}
	return nil
}

// PrintResults prints results as a table, with a column for ratios if a result has one.
func PrintResults(env *cli.Env, results []bench.Result) error {
	columns := []string{
		"Measured", "Round", "Setup", "Sync", "Bytes", "Messages", "Rate/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms",
		"max ms", "CPU s", "RSS MB", "Disk MB",
	}
	compared := slices.ContainsFunc(results, func(r bench.Result) bool { return r.Ratio > 0 })
	if compared {
		columns = append(columns, "Ratio")
	}
	rows := make([][]any, 0, len(results))
	for _, r := range results {
		name := fmt.Sprint(r.Round)
		if r.Burst > 0 {
			name = fmt.Sprint(r.Burst)
		}
		if r.Median {
			name = "median"
		}
		row := []any{
			r.Workload + " " + r.Phase, name, r.Setup, r.Sync, r.SizeBytes, r.Messages, fmt.Sprintf("%.0f", r.Rate),
			fmt.Sprintf("%.1f", r.MB),
			Digits(r.P50), Digits(r.P99), Digits(r.P999), Digits(r.Max),
			fmt.Sprintf("%.1f", r.CPU), fmt.Sprintf("%.0f", r.RSS), fmt.Sprintf("%.0f", r.DiskWritten),
		}
		switch {
		case r.Ratio > 0:
			row = append(row, fmt.Sprintf("%.2f", r.Ratio))
		case compared:
			row = append(row, "")
		}
		rows = append(rows, row)
	}
	return env.Print.Table(columns, rows)
}

// Digits formats milliseconds with about three significant digits.
func Digits(ms float64) string {
	switch {
	case ms < 1:
		return fmt.Sprintf("%.3f", ms)
	case ms < 100:
		return fmt.Sprintf("%.2f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

// SetDefaults changes the defaults of registered flags.
func SetDefaults(cmd *cobra.Command, values map[string]string) {
	for name, v := range values {
		flag := cmd.Flags().Lookup(name)
		set := flag.Value.Set
		if list, ok := flag.Value.(pflag.SliceValue); ok { // otherwise, the user's first Set would append to this value
			set = func(v string) error { return list.Replace(strings.Split(v, ",")) }
		}
		if err := set(v); err != nil {
			panic(err) // a bug in this program
		}
		flag.DefValue = v
	}
}
