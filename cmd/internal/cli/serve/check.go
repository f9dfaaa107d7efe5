// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/process"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
)

// flagCheck of serve; a release before 0.2.0 does not have it.
const flagCheck = "--check"

// checkNode does what --check asks for.
func checkNode(env *cli.Env, cfg config.Config) error {
	if _, _, err := process.NewLogger(env.Stderr, cfg.Log.Level, cfg.Log.Format); err != nil {
		return err
	}
	if err := node.Check(cfg); err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintln(env.Stderr, "lockstep: "+w)
	}
	return env.Print.Sentence("the settings of node %s are valid", cfg.Node.Name)
}

// checkRestart has the program as it is on the disk now check the settings of this process as it would read them, with
// the arguments of this process. A former release that does not know --check is not checked.
func checkRestart(ctx context.Context, program string, args []string) error {
	cmd := exec.CommandContext(ctx, program, append(slices.Clone(args), flagCheck)...) //nolint:gosec // this very program
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	text := strings.TrimSpace(stderr.String())
	var exit *exec.ExitError
	switch {
	case err == nil, strings.Contains(text, "unknown flag: "+flagCheck):
		return nil
	case errors.As(err, &exit) && text != "":
		text, _, _ = strings.Cut(text, "\nTry `")
		return errors.New(strings.TrimPrefix(text, "lockstep: "))
	default:
		return fmt.Errorf("run %s serve %s: %w", program, flagCheck, err)
	}
}
