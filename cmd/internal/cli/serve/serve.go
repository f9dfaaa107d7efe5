// SPDX-License-Identifier: Apache-2.0

// Package serve implements the command that runs one node, and the common parts of the long-running processes:
// logger, SIGHUP handling and memory limit.
package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
)

// Foreground runs a node until ctx ends, like `lockstep serve`, but does not restart it. listening is called with the
// address when the node listens.
func Foreground(ctx context.Context, env *cli.Env, cfg config.Config, listening func(address string)) error {
	logger, level, err := NewLogger(env.Stderr, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	defer LimitMemory(ctx, cfg.Memory.Budget)()
	return node.Run(ctx, cfg, logger, node.Options{
		Version: env.Version, SetLogLevel: level, OnReady: func(r node.Ready) { listening(r.Address) },
	})
}

// Command returns the `lockstep serve` command.
func Command(env *cli.Env) *cobra.Command {
	var file string
	var check bool
	cmd := &cobra.Command{
		Use: "serve", GroupID: "run",
		Short: "Run a node, paired or standalone",
		Long: `Run a node until SIGINT or SIGTERM. A pair is two nodes with the same coordinator: the same etcd
and coordinator.etcd.prefix, or the same coordinator.raft.voters.

Settings are read from flags, environment variables (wal.keep-bytes is LOCKSTEP_WAL_KEEP_BYTES) and the file in
--config, in this order of precedence. Values stored with lockstep settings set override them. An unknown key in
the file is an error.`,
		Example: `  lockstep serve --config /etc/lockstep/node.yaml
  lockstep serve --config /etc/lockstep/node.yaml --check
  lockstep serve --data-dir /var/lib/lockstep --listen 10.0.0.1:7420 --coordinator-etcd-endpoints etcd-1:2379,etcd-2:2379
  lockstep serve --standalone --data-dir ./data --listen 127.0.0.1:7420`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// This variable configures the other commands, not a node.
			environ := slices.DeleteFunc(slices.Clone(env.Environ),
				func(s string) bool { return strings.HasPrefix(s, cli.EnvAddr+"=") })
			cfg, err := config.Load(file, environ, cmd.Flags())
			if err != nil {
				return err
			}
			if check {
				return checkNode(env, cfg)
			}
			logger, level, err := NewLogger(env.Stderr, cfg.Log.Level, cfg.Log.Format)
			if err != nil {
				return err
			}
			program, err := os.Executable() // before an upgrade replaces the file
			if err != nil {
				return fmt.Errorf("find the path of this program for a restart: %w", err)
			}
			reload := make(chan struct{}, 1)
			defer OnHangup(cmd.Context(), logger, func() {
				select {
				case reload <- struct{}{}:
				default: // a reload is already pending
				}
			})()
			defer LimitMemory(cmd.Context(), cfg.Memory.Budget)()
			address := ""
			err = node.Run(cmd.Context(), cfg, logger,
				node.Options{
					Version: env.Version, CanRestart: canRestart, SetLogLevel: level, Reload: reload,
					CheckRestart: func(ctx context.Context) error { return checkRestart(ctx, program, os.Args[1:]) },
					OnReady: func(r node.Ready) {
						address = r.Address
						// Ignore write errors: the node works without a reader of its output (a closed pipe).
						_ = env.Print.Sentence("lockstep %s is listening on %s", env.Version, r.Address)
						_ = env.Print.Object(map[string]string{
							"address": r.Address, "advertise": r.Advertise,
							"node_id": r.NodeID,
						})
					},
				})
			if errors.Is(err, node.ErrRestart) {
				logger.Info("restarting", zap.String("program", program))
				return execAgain(program, cfg.Listen, address)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "YAML file with settings")
	cmd.Flags().BoolVar(&check, "check", false,
		"check settings, certificates, keys and secrets, and exit; the exit code is 0 only if they are valid")
	config.RegisterFlags(cmd.Flags())
	return cmd
}
