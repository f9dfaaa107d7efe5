// SPDX-License-Identifier: Apache-2.0

// Package store implements the commands for the files of a store: scan, resize, compact, shrink, backup, restore and
// the maintenance settings. Read-only commands are in package inspect, the rolling plan is in package plan.
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
		Short: "Look after the files of a store: page size, backups, checks",
		Long: `Maintenance is done by running nodes, the standby if nothing else is said, while messages go on. With --data-dir some of
it works on the files of a node that is stopped: the directory that was given as data.dir.

` + "`check`, `digest` and the `dump` commands" + ` read the files of a stopped node and change nothing; ` + "`check` and `digest`" + ` without a
directory ask the running nodes.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddGroup(&cobra.Group{ID: "maintain", Title: "Maintain:"}, &cobra.Group{ID: "look", Title: "Look:"})
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
