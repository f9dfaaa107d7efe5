// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// leastSection is the minimum CPU time of a printed section, in µs per message.
const leastSection = 0.01

func capacityCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var processors []int
	cmd := &cobra.Command{
		Use: "capacity", Short: "Profile nodes and derive the maximum throughput",
		Long: `Publish --messages to --queues queues, then consume as many from one queue, and profile both nodes. The table
has the CPU time per message of each kind of goroutine, and its ceiling: the message rate that it could reach with one
processor per goroutine. A second table derives the maximum throughput of a pair with 2 to 64 processors per node,
without the limits of memory bandwidth, disk, network and locks.

With --processors, the load is repeated with each value of GOMAXPROCS for the nodes, and another table has the holders
of the most contended locks.`,
		Example: `  lockstep-lab capacity
  lockstep-lab capacity --messages 2000000 --duration 60s --output json
  lockstep-lab capacity --processors 2,4,8`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if f.Queues < 1 || f.Duration < time.Second {
				return cli.Usage("--queues must be at least 1, and --duration at least 1s")
			}
			for _, n := range processors {
				if n < 1 || n > 1024 {
					return cli.Usage("--processors %d must be 1 to 1,024", n)
				}
			}
			if len(processors) == 0 {
				processors = []int{0}
			}
			f.Pair = true
			for _, n := range processors {
				if err := capacity(env, cmd, f, p, n); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f.RegisterStore(cmd)
	benchcli.SetDefaults(cmd, map[string]string{"sync": "off", "messages": "1000000", "rounds": "1"})
	cmd.Flags().Lookup("messages").Usage = "messages to publish, and then to consume, per round"
	cmd.Flags().IntVar(&f.Queues, "queues", 5,
		"number of queues for publishing, and of concurrent producers and consumers")
	cmd.Flags().DurationVar(&f.Duration, "duration", 30*time.Second,
		"profiling time; must be longer than each of the two loads")
	cmd.Flags().IntSliceVar(&processors, "processors", nil,
		"values of GOMAXPROCS for the nodes, measured in sequence; default: unchanged")
	cmd.Flags().StringToStringVar(&f.Set, "set", nil, "settings of the pair, such as commit-delay=1ms")
	return cmd
}

// capacity measures each size in each round. processors is the value of GOMAXPROCS for the nodes; 0 means
// unchanged.
func capacity(env *cli.Env, cmd *cobra.Command, f benchcli.Flags, p benchcli.Params, processors int) (err error) {
	metrics := map[string]string{}
	f.NodeSettings = map[string]map[string]string{}
	var ports []*harness.Port
	defer func() {
		for _, port := range ports {
			err = errors.Join(err, port.Close())
		}
	}()
	for _, name := range []string{"a", "b"} {
		port, err := harness.ReservePort()
		if err != nil {
			return err
		}
		ports = append(ports, port)
		metrics[name] = port.Address()
		f.NodeSettings[name] = map[string]string{"metrics.listen": port.Address()}
	}
	if processors > 0 {
		defer restoreEnvironment("GOMAXPROCS")()
		if err := os.Setenv("GOMAXPROCS", strconv.Itoa(processors)); err != nil { // inherited by the nodes
			return fmt.Errorf("bench: %w", err)
		}
	}
	return benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
		for _, size := range p.Sizes {
			for round := range f.Rounds {
				publish, consume, err := measure.MeasureCapacity(cmd.Context(), t, measure.CapacityOptions{
					SizeBytes: size, Messages: f.Messages, Queues: f.Queues, Profile: f.Duration, Metrics: metrics,
					Locks: processors > 0,
				})
				if err != nil {
					return err
				}
				for _, c := range []measure.Capacity{publish, consume} {
					c.Round, c.Processors = round+1, processors
					if err := printCapacity(env, c); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

func restoreEnvironment(name string) func() {
	before, was := os.LookupEnv(name)
	return func() {
		if was {
			_ = os.Setenv(name, before) // cannot fail: the value was set before
		} else {
			_ = os.Unsetenv(name) // as above
		}
	}
}

func printCapacity(env *cli.Env, c measure.Capacity) error {
	if err := env.Print.Object(c); err != nil {
		return err
	}
	var waits []string
	for _, node := range slices.Sorted(maps.Keys(c.LockWait)) {
		waits = append(waits, fmt.Sprintf("%.2f µs on the %s", c.LockWait[node], node))
	}
	of := ""
	if c.Processors > 0 {
		of = fmt.Sprintf(", GOMAXPROCS=%d", c.Processors)
	}
	if err := env.Print.Sentence(
		"%s of %d bytes%s: %.0f messages/s, %.1f µs of CPU per message including the client; lock wait per "+
			"message: %s.", c.Phase, c.SizeBytes, of, c.Rate, c.CPUPerMessage(), strings.Join(waits, ", ")); err != nil {
		return err
	}
	var rows [][]any
	for _, s := range c.Sections {
		if s.CPU < leastSection {
			continue
		}
		count, ceiling := "", ""
		if s.Ceiling > 0 {
			count, ceiling = strconv.Itoa(s.Goroutines), fmt.Sprintf("%.0f", s.Ceiling)
		}
		rows = append(rows, []any{s.Node, s.Function, count, fmt.Sprintf("%.2f", s.CPU), ceiling})
	}
	head := []string{"Node", "Goroutine", ">Goroutines", ">CPU µs/message", ">Ceiling/s"}
	if err := env.Print.Table(head, rows); err != nil {
		return err
	}
	if err := printLocks(env, c); err != nil {
		return err
	}
	return printSizes(env, c)
}

func printLocks(env *cli.Env, c measure.Capacity) error {
	if len(c.Locks) == 0 {
		return nil
	}
	rows := make([][]any, 0, len(c.Locks))
	for _, l := range c.Locks {
		rows = append(rows, []any{l.Node, l.Function, fmt.Sprintf("%.0f %%", 100*l.Share)})
	}
	return env.Print.Table([]string{"Node", "Lock holder", ">Of lock wait"}, rows)
}

func printSizes(env *cli.Env, c measure.Capacity) error {
	if len(c.Sizes) == 0 {
		return nil
	}
	of := ""
	if c.Phase == "consume" {
		of = "; of one queue: others have their own goroutines"
	}
	if err := env.Print.Sentence("Derived from these times, not measured: maximum messages/s if each "+
		"node has its own machine%s.", of); err != nil {
		return err
	}
	rows := make([][]any, 0, len(c.Sizes))
	for _, s := range c.Sizes {
		rows = append(rows, []any{
			strconv.Itoa(s.Processors), fmt.Sprintf("%.0f", s.ByProcessors), fmt.Sprintf("%.0f", s.BySerial),
			fmt.Sprintf("%.0f", s.Rate()), s.Limit,
		})
	}
	return env.Print.Table([]string{">Processors", ">CPU limit/s", ">Serial limit/s", ">Maximum/s", "Limited by"}, rows)
}
