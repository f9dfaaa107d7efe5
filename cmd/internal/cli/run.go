// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/server/config"
)

// Exit codes.
const (
	ExitOK    = 0
	ExitError = 1
	ExitUsage = 2
	// ExitUnknown means that the outcome of a request is unknown; see client.ErrOutcomeUnknown.
	ExitUnknown = 3
)

// Run runs one command line with root, which was created for env. It prints errors with advice, and returns the exit
// code.
func Run(ctx context.Context, env *Env, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	// Cobra would add the completion command after ShapeFlags.
	root.InitDefaultCompletionCmd(args...)
	ShapeFlags(root)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return ExitOK
	case !env.started, errors.Is(err, ErrUsage), errors.Is(err, config.ErrInvalid):
		// Without a started command, cobra reported the error: an unknown command or flag, or a wrong number of arguments.
		fmt.Fprintf(env.Stderr, "%s: %v\n", root.Name(), err)
		fmt.Fprintf(env.Stderr, "Try `%s --help`.\n", cmd.CommandPath())
		return ExitUsage
	case errors.Is(err, syscall.EPIPE): // the reader of the output has closed it
		return ExitError
	case ctx.Err() != nil && errors.Is(err, context.Canceled) && !errors.Is(err, client.ErrOutcomeUnknown):
		fmt.Fprintf(env.Stderr, "%s: interrupted\n", root.Name())
		return ExitError
	default:
		fmt.Fprintf(env.Stderr, "%s: %v\n", root.Name(), err)
		if next := env.hint(ctx, err); next != "" {
			fmt.Fprintf(env.Stderr, "Try %s.\n", next)
		}
		if errors.Is(err, client.ErrOutcomeUnknown) {
			return ExitUnknown
		}
		return ExitError
	}
}
