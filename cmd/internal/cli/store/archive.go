// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

type archived struct {
	Node      string    `json:"node"`
	Directory string    `json:"directory"`
	LastLSN   uint64    `json:"last_lsn"`
	LastTime  time.Time `json:"last_time,omitzero"`
	Gap       uint64    `json:"gap"`
	Former    string    `json:"former,omitempty"`
}

func flushArchiveCommand(env *cli.Env) *cobra.Command {
	var w location
	cmd := &cobra.Command{
		Use: "flush-archive", Short: "Write the log to the archive now",
		Long: `Write all applied transactions of a node, by default of the standby, to its log archive (setting
wal.archive) now, instead of within wal.archive-interval.`,
		Example: "  lockstep store flush-archive\n  lockstep store flush-archive --node active",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onNode(cmd.Context(), env, w.node, func(ctx context.Context, t target) error {
				ctx, cancel := context.WithTimeout(ctx, env.Timeout)
				defer cancel()
				r, err := t.FlushArchive(ctx)
				if err != nil {
					return err
				}
				j := archived{
					Node: t.label(), Directory: r.GetDirectory(), LastLSN: r.GetLastLsn(), Gap: r.GetGap(),
					Former: r.GetFormer(),
				}
				if r.GetLastTime() != nil {
					j.LastTime = r.GetLastTime().AsTime()
				}
				if err := env.Print.Object(j); err != nil {
					return err
				}
				if j.Former != "" {
					if err := env.Print.Sentence("%s: moved the archive of another history to %s", j.Node, j.Former); err != nil {
						return err
					}
				}
				if j.Gap != 0 {
					if err := env.Print.Sentence("%s: the archive has a gap before record %d: create a backup", j.Node,
						j.Gap); err != nil {
						return err
					}
				}
				when := "no transaction yet"
				if !j.LastTime.IsZero() {
					when = j.LastTime.Format(time.RFC3339Nano)
				}
				return env.Print.Sentence("%s: %s contains all records up to %s (%s)", j.Node, j.Directory,
					output.Count(j.LastLSN), when)
			})
		},
	}
	w.register(cmd, false)
	return cmd
}
