// SPDX-License-Identifier: Apache-2.0

package storetool

import (
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/spf13/cobra"
)

// takeDir accepts the directory of a stopped node as --data-dir or, for compatibility, as the first argument. need: the
// directory is required. rest is the number of arguments after the directory.
func takeDir(cmd *cobra.Command, need bool, rest int) {
	var dir string
	run := cmd.RunE
	cmd.Flags().StringVar(&dir, "data-dir", "", "directory of a stopped node; same as the argument DIR")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch n := len(args); {
		case dir != "" && n > rest:
			return cli.Usage("the directory is given twice, as an argument and as --data-dir")
		case dir != "" && n == rest, dir == "" && n == rest+1, dir == "" && n == 0 && !need:
			return nil
		case dir == "" && n <= rest:
			return cli.Usage("%s requires a directory: --data-dir", cmd.CommandPath())
		default:
			return cli.Usage("%s: invalid number of arguments; see --help", cmd.CommandPath())
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if dir != "" {
			args = append([]string{dir}, args...)
		}
		return run(cmd, args)
	}
}
