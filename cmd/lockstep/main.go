// Command lockstep is all of Lockstep in one binary: the node, the commands that use and look after a pair, the tools
// for a stopped node's files, the demonstration and the benchmarks.
//
// Each file of this directory holds one group of commands; root.go has what they share.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/server/config"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
	// exitUnknown: what was asked for may have been done or not. See client.ErrOutcomeUnknown.
	exitUnknown = 3
)

// version is set by the linker: -X main.version=v1.2.3.
var version string //nolint:gochecknoglobals // the linker can set nothing else

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first signal asks to stop, a second one kills
	code := execute(ctx, os.Args[1:], &environment{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(), lookup: os.LookupEnv,
	})
	stop()
	os.Exit(code)
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string, env *environment) int {
	a := &app{environment: env}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case !a.started, errors.Is(err, errUsage), errors.Is(err, config.ErrInvalid):
		// Cobra found it, before any command began: an unknown command or flag, or a wrong number of arguments.
		fmt.Fprintf(env.stderr, "lockstep: %v\n", err)
		fmt.Fprintln(env.stderr, "Try `lockstep --help`, or --help after the command.")
		return exitUsage
	case errors.Is(err, errSilent), errors.Is(err, syscall.EPIPE): // nobody reads any more
		return exitError
	case ctx.Err() != nil && errors.Is(err, context.Canceled) && !errors.Is(err, client.ErrOutcomeUnknown):
		fmt.Fprintln(env.stderr, "lockstep: interrupted")
		return exitError
	default:
		fmt.Fprintf(env.stderr, "lockstep: %v\n", err)
		if errors.Is(err, client.ErrOutcomeUnknown) {
			return exitUnknown
		}
		return exitError
	}
}
