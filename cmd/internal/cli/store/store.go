// SPDX-License-Identifier: Apache-2.0

// Package store implements the commands for the files of a store, such as scan, resize, compact, backup and restore,
// and the maintenance settings. The read-only commands for stopped nodes are in package storetool, and the rolling
// plan is in package plan.
package store

import (
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/plan"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/storetool"
	"github.com/spf13/cobra"
)

// Command returns the `lockstep store` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "store", GroupID: "operate",
		Short: "Manage store files: page size, backups, checks",
		Long: `Manage the files of nodes. Most commands use a running node, by default the standby or, if no standby is
available, the active. With --data-dir, some commands use the files of a stopped node: the directory in its setting
data.dir. Without --data-dir, check and digest use all nodes in --addr.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddGroup(&cobra.Group{ID: "maintain", Title: "Maintain:"}, &cobra.Group{ID: "look", Title: "Inspect:"})
	for _, c := range []*cobra.Command{
		scanCommand(env), resizeCommand(env), compactCommand(env), plan.Command(env), shrinkCommand(env),
		dropOldCommand(env), backupCommand(env), backupsCommand(env), restoreCommand(env), flushArchiveCommand(env),
		settingsCommand(env),
	} {
		c.GroupID = "maintain"
		cmd.AddCommand(c)
	}
	for _, c := range append(storetool.Commands(env), mapCommand(env)) {
		c.GroupID = "look"
		cmd.AddCommand(c)
	}
	return cmd
}
