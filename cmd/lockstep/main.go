// SPDX-License-Identifier: Apache-2.0

// Command lockstep is the single binary of Lockstep. It contains the node, the commands to use and operate a pair, the
// tools for a stopped node's files, the demo and the benchmarks.
//
// The commands are in packages below cmd/internal/cli, one for each group. Package cmd/internal/commands assembles
// them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first signal stops the command gracefully, a second one kills the process
	code := commands.Run(ctx, os.Args[1:], cli.Process{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Lookup: os.LookupEnv,
		Version: version,
	})
	stop()
	os.Exit(code)
}
