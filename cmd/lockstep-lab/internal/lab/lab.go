// SPDX-License-Identifier: Apache-2.0

// Package lab implements the commands of lockstep-lab: benchmarks of a pair and of the embedded store, and comparisons
// with other products. The measurements are in cmd/lockstep-lab/internal/measure.
package lab

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/pair"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/serve"
)

// Run runs one command line and returns the exit code.
func Run(ctx context.Context, args []string, process cli.Process) int {
	env := &cli.Env{Process: process}
	return cli.Run(ctx, env, Root(env), args) //nolint:contextcheck // commands receive it when they run
}

const rootLong = `The benchmarks start their nodes or stores on this machine, with the data in a temporary directory.
With the flag --addr, publish, consume, mixed, fanout, expire and search use running nodes, and queues named bench-0,
bench-1 and so on. Existing queues with these names are deleted, and the queues are deleted afterwards.

` + benchcli.Units

// Root returns the command lockstep-lab with all benchmarks.
func Root(env *cli.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "lockstep-lab",
		Short: "Benchmark Lockstep and compare it with other products",
		Long:  rootLong,
		Example: `  lockstep-lab all
  lockstep-lab maintenance --work resize,rejoin
  lockstep-lab compare --peer nats --peers ~/peers`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cli.Globals(env, root)
	for _, cmd := range benchcli.Commands(env) {
		cmd.Example = strings.ReplaceAll(cmd.Example, "lockstep bench ", "lockstep-lab ")
		root.AddCommand(cmd)
	}
	root.AddCommand(
		maintenanceCommand(env), moveCommand(env), fleetCommand(env), fanoutCommand(env), expireCommand(env),
		storeCommand(env), queuesCommand(env), growthCommand(env), boundCommand(env), capacityCommand(env), amqpCommand(env),
		mixedCommand(env), searchCommand(env), settingsCommand(env), compareCommand(env), allCommand(env),
	)
	// Benchmarks start this program again as a node or as a witness.
	for _, cmd := range []*cobra.Command{serve.Command(env), pair.WitnessCommand(env)} {
		cmd.GroupID, cmd.Hidden = "", true
		root.AddCommand(cmd)
	}
	cli.WrapHelp(root)
	cli.ShapeFlags(root)
	return root
}
