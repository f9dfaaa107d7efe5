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

type resetDone struct {
	DataDir string `json:"data_dir"`
	Marker  string `json:"marker"`
}

func resetCommand(env *cli.Env) *cobra.Command {
	var dir string
	var yes bool
	cmd := &cobra.Command{
		Use: "reset", Short: "Delete all access rules to recover access",
		Long: `Recover access if operators are locked out. To keep the rules, add an operator to the setting
access.operators instead.

The command writes a request into the data directory of a stopped node. When this node is started and becomes active,
it deletes all rules of the pair. Afterwards, all clients have all rights until a rule is created, unless access.mode
is deny. Roles, tokens and quotas are kept.

In a pair, stop the standby, run the command on it, and start it again. When it is in sync, stop the active node until
the standby has become active. The request is kept until its node is active, and then also deletes newer rules. It has
no effect if the other node deletes all rules first because of the same command. To cancel it, stop the node, and
delete the file access.reset. Without a terminal, the command requires --yes.`,
		Example: "  lockstep access reset --data-dir /var/lib/lockstep\n" +
			"  lockstep access reset --data-dir /var/lib/lockstep --yes --output json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if dir == "" {
				return cli.Usage("--data-dir is required: the directory of a stopped node")
			}
			if !yes && !env.Asks() {
				return cli.Usage("--yes is required: this deletes all access rules of the pair")
			}
			lock, err := datadir.Lock(vfs.OS(), dir)
			if err != nil {
				return fmt.Errorf("access reset: %w", err)
			}
			defer func() { err = errors.Join(err, lock.Close()) }()
			if err := env.Confirm(cmd.Context(), yes, "All access rules will be deleted when the node in %s becomes "+
				"active. All clients then have all rights, unless access.mode is deny. Continue?", dir); err != nil {
				return err
			}
			if _, err := vfs.OS().Stat(datadir.PageFile(dir)); err != nil {
				return fmt.Errorf("access reset: %w: %w", datadir.ErrNone, err)
			}
			marker := datadir.AccessReset(dir)
			if err := vfs.WriteFileAtomic(vfs.OS(), marker, []byte("delete all access rules\n")); err != nil {
				return fmt.Errorf("access reset: %w", err)
			}
			return env.Print.Result(resetDone{DataDir: dir, Marker: marker},
				"the node in %s will delete all rules when it becomes active; to cancel, remove %s", dir, marker)
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "data directory of a stopped node")
	cli.AddYes(cmd, &yes)
	return cmd
}
