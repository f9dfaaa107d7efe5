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
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
)

// flagCheck is the flag that checks the settings and exits. Releases before 0.2.0 do not have it.
const flagCheck = "--check"

func checkNode(env *cli.Env, cfg config.Config) error {
	if _, _, err := NewLogger(env.Stderr, cfg.Log.Level, cfg.Log.Format); err != nil {
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

// checkRestart validates the settings with the program that is now on disk, and the arguments of this process. A
// release without --check is accepted.
func checkRestart(ctx context.Context, program string, args []string) error {
	cmd := exec.CommandContext(ctx, program, append(slices.Clone(args), flagCheck)...) //nolint:gosec // the path of this program
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
