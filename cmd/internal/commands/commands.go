// SPDX-License-Identifier: Apache-2.0

// Package commands assembles the command groups into the command `lockstep`.
package commands

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/access"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/audit"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/cert"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/connection"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/definitions"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/demo"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/doctor"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/fleet"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/job"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/message"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/pair"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/podlabel"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/profile"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/queue"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/schedule"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/serve"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/settings"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/site"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/status"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/store"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/top"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/transaction"
	"github.com/lockstep-mq/lockstep/cmd/internal/completion"
)

// Run runs one command line and returns the exit code.
func Run(ctx context.Context, args []string, process cli.Process) int {
	if process.Version == "" {
		process.Version = versionOfBuild()
	}
	env := &cli.Env{Process: process}
	return cli.Run(ctx, env, Root(env), args) //nolint:contextcheck // commands receive it when they run
}

// Root returns the root command with all commands.
func Root(env *cli.Env) *cobra.Command {
	root := cli.Root(
		env,
		serve.Command(env), pair.WitnessCommand(env), podlabel.Command(env), demo.DevCommand(env), demo.Command(env),
		queue.Command(env), queue.SubscriptionCommand(env), queue.PolicyCommand(env), definitions.Command(env),
		message.PublishCommand(env), message.ConsumeCommand(env), message.BrowseCommand(env),
		schedule.Command(env), transaction.Command(env),
		profile.LoginCommand(env), profile.LogoutCommand(env), profile.Command(env),
		message.RequestCommand(env),
		doctor.Command(env), status.Command(env), top.Command(env),
		admin.SwitchoverCommand(env), admin.FailoverCommand(env), admin.RestartCommand(env),
		admin.PauseCommand(env), admin.ResumeCommand(env), admin.CheckpointCommand(env),
		admin.VerifyCommand(env), access.Command(env), pair.Command(env), site.Command(env), fleet.Command(env),
		store.Command(env),
		job.Command(env), settings.Command(env),
		cert.Command(env),
		audit.Command(env), connection.Command(env),
		benchcli.Command(env), versionCommand(env),
	)
	completion.Add(env, root)
	cli.ShapeFlags(root)
	return root
}
