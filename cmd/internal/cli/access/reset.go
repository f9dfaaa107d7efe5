// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// resetDone is the requested reset, for programs.
type resetDone struct {
	DataDir string `json:"data_dir"`
	Marker  string `json:"marker"`
}

func resetCommand(env *cli.Env) *cobra.Command {
	var dir string
	var yes bool
	cmd := &cobra.Command{
		Use: "reset", Short: "Have a stopped node delete all rules when it is active next, if operators are locked out",
		Long: `For operators who are locked out: have a stopped node delete all rules when it is active next. Nothing is changed
now. The command leaves a file in the data directory; the node, when it is active, deletes all rules through the log, so
that both nodes have the same, says so in its log, and removes the file. Then everybody may do everything, unless
access.mode is deny, until there is a new first rule. Roles, tokens and quotas stay.

The node has to become active: stop the other one while this one starts, or run the command on both nodes.`,
		Example: "  lockstep access reset --data-dir /var/lib/lockstep\n" +
			"  lockstep access reset --data-dir /var/lib/lockstep --yes --output json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if dir == "" {
				return cli.Usage("--data-dir is missing: the directory of a stopped node")
			}
			if !yes && !env.Asks() {
				return cli.Usage("--yes is missing: all rules of the pair will be deleted")
			}
			lock, err := datadir.Lock(vfs.OS(), dir)
			if err != nil {
				return fmt.Errorf("access reset: %w", err)
			}
			defer func() { err = errors.Join(err, lock.Close()) }()
			if err := env.Confirm(cmd.Context(), yes, "All rules of the pair will be deleted when the node of %s is active "+
				"next; then everybody may do everything, unless access.mode is deny. Do it?", dir); err != nil {
				return err
			}
			if _, err := vfs.OS().Stat(datadir.PageFile(dir)); err != nil {
				return fmt.Errorf("access reset: %w: %w", datadir.ErrNone, err)
			}
			marker := datadir.AccessReset(dir)
			if err := vfs.WriteFileAtomic(vfs.OS(), marker, []byte("delete all rules of who may do what\n")); err != nil {
				return fmt.Errorf("access reset: %w", err)
			}
			if err := env.Print.Object(resetDone{DataDir: dir, Marker: marker}); err != nil {
				return err
			}
			return env.Print.Sentence("the node of %s deletes all rules when it is active next; remove %s to undo this", dir,
				marker)
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "data directory of a stopped node")
	cli.AddYes(cmd, &yes)
	return cmd
}
