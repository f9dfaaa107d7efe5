// SPDX-License-Identifier: Apache-2.0

// Package site implements the commands for a second site: a pair that copies the primary pair asynchronously.
package site

import (
	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

// Command returns the `lockstep site` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "site", GroupID: "operate",
		Short: "Show and change the roles of two sites",
		Long: `Show and change the roles of two sites: the pair of one site is the primary, and the pair of the other site
is its replica.

Commands for messages, queues and access rules use the primary, even with the addresses of the replica. Commands that
operate a pair, such as lockstep switchover, pause, settings and job, use the pair in --addr. For these commands,
--addr must not contain nodes of both sites.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(statusCommand(env), switchCommand(env), promoteCommand(env), demoteCommand(env), drillCommand(env),
		seedCommand(env))
	return cmd
}
