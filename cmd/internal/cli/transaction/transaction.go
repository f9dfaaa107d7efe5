// SPDX-License-Identifier: Apache-2.0

// Package transaction implements the commands for prepared transactions.
package transaction

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// Command returns the `lockstep txn` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "txn", GroupID: "use",
		Short: "Resolve prepared transactions",
		Long: `In two-phase commit, a prepared transaction waits for the decision of the transaction coordinator, the
application that prepared it. Until then, the messages that the transaction publishes are hidden from consumers and
occupy space in queues, and the messages that it acknowledges are not delivered. If the coordinator does not return,
an operator can decide instead. With the setting txn.prepared-timeout, undecided transactions are rolled back after
this time.

In a fleet, the commands use the pair in --addr.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(listCommand(env), commitCommand(env), rollbackCommand(env))
	return cmd
}

type prepared struct {
	XID        string          `json:"xid"`
	LSN        uint64          `json:"lsn"`
	PreparedAt time.Time       `json:"prepared_at"`
	AgeSeconds float64         `json:"age_s"`
	Queues     []preparedQueue `json:"queues"`
	Bytes      uint64          `json:"bytes"`
}

type preparedQueue struct {
	Queue     string `json:"queue"`
	Publishes uint64 `json:"publishes"`
	Acks      uint64 `json:"acks"`
}

func newPrepared(p admin.PreparedTransaction, now time.Time) prepared {
	j := prepared{
		XID: p.XID, LSN: p.LSN, PreparedAt: p.PreparedAt.UTC(), Bytes: p.Bytes, Queues: []preparedQueue{},
		AgeSeconds: max(0, now.Sub(p.PreparedAt).Seconds()),
	}
	for _, q := range p.Queues {
		j.Queues = append(j.Queues, preparedQueue(q))
	}
	return j
}

func (p *prepared) what() string {
	parts := make([]string, 0, len(p.Queues))
	for _, q := range p.Queues {
		var does []string
		if q.Publishes > 0 {
			does = append(does, "publishes "+output.Count(q.Publishes))
		}
		if q.Acks > 0 {
			does = append(does, "acknowledges "+output.Count(q.Acks))
		}
		parts = append(parts, fmt.Sprintf("%s: %s", q.Queue, strings.Join(does, ", ")))
	}
	return strings.Join(parts, "; ")
}

func listCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List prepared transactions",
		Long: `List the prepared transactions of the pair in --addr, oldest first. If the transaction coordinator is
permanently lost, decide with lockstep txn commit or lockstep txn rollback.`,
		Example: "  lockstep txn list\n  lockstep txn list --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, rows := []prepared{}, [][]any{}
				for p, err := range admin.New(c).ListPrepared(ctx) {
					if err != nil {
						return err
					}
					j := newPrepared(p, time.Now())
					list = append(list, j)
					age := time.Duration(j.AgeSeconds * float64(time.Second)).Round(time.Second)
					rows = append(rows, []any{j.XID, age, j.what(), output.Bytes(j.Bytes)})
				}
				if err := env.Print.Object(list); err != nil {
					return err
				}
				if len(rows) == 0 {
					return env.Print.Sentence("no prepared transactions")
				}
				return env.Print.Table([]string{"XID", "Age", "Effect", "Size"}, rows)
			})
		},
	}
}

type decision struct {
	XID       string `json:"xid"`
	Committed bool   `json:"committed"`
}

func commitCommand(env *cli.Env) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "commit XID", Short: "Commit a prepared transaction",
		Long: `Commit a prepared transaction of the pair in --addr in place of the transaction coordinator. The messages of
the transaction are published, and its acknowledgements are applied. This cannot be undone: first find out whether
the coordinator has committed in the other systems. If the coordinator rolls back later, it receives
HEURISTIC_COMMIT. Without a terminal, the command does not ask for confirmation.`,
		Example: "  lockstep txn commit order/4711\n  lockstep txn commit order/4711 --yes --output json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return decide(cmd.Context(), env, yes, args[0], true)
		},
	}
	cli.AddYes(cmd, &yes)
	return cmd
}

func rollbackCommand(env *cli.Env) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "rollback XID", Short: "Roll back a prepared transaction",
		Long: `Roll back a prepared transaction of the pair in --addr in place of the transaction coordinator. The messages
that the transaction publishes are discarded, and the messages that it acknowledges are redelivered. This cannot be
undone: first find out whether the coordinator has committed in the other systems. If the coordinator commits later,
it receives HEURISTIC_ROLLBACK. Without a terminal, the command does not ask for confirmation.`,
		Example: "  lockstep txn rollback order/4711\n  lockstep txn rollback order/4711 --yes --output json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return decide(cmd.Context(), env, yes, args[0], false)
		},
	}
	cli.AddYes(cmd, &yes)
	return cmd
}

func decide(ctx context.Context, env *cli.Env, yes bool, xid string, commit bool) error {
	label, done := "Roll back", "rolled back"
	if commit {
		label, done = "Commit", "committed"
	}
	err := env.Confirm(ctx, yes,
		"%s the prepared transaction %q in place of the transaction coordinator? This cannot be undone.", label, xid)
	if err != nil {
		return err
	}
	return env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		call := admin.New(c).HeuristicRollbackPrepared
		if commit {
			call = admin.New(c).HeuristicCommitPrepared
		}
		if _, err := call(ctx, xid); err != nil {
			return err
		}
		return env.Print.Result(decision{XID: xid, Committed: commit}, "%s transaction %q", done, xid)
	})
}
