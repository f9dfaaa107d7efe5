// SPDX-License-Identifier: Apache-2.0

// Command lockstep-lab runs benchmarks: those of `lockstep bench`, further benchmarks that are not part of the product,
// such as the embedded store, maintenance under load, growth and fan-out, and comparisons with other products.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first signal cancels the benchmark, a second one kills the process
	code := lab.Run(ctx, os.Args[1:], cli.Process{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Lookup: os.LookupEnv,
	})
	stop()
	os.Exit(code)
}
