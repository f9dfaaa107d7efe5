// SPDX-License-Identifier: Apache-2.0

// Package audit implements the command that shows the audit records of the nodes.
package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth/audit"
)

// Command returns the `lockstep audit` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", GroupID: "operate",
		Short: "Show administrative calls and denied requests",
		Long: `Each node records administrative calls and denied requests in audit.file or, if this setting is empty, in its
log. Records contain no message bodies, properties or secrets.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(tailCommand(env))
	return cmd
}

func tailCommand(env *cli.Env) *cobra.Command {
	var last uint32
	req := &pb.TailAuditRequest{}
	cmd := &cobra.Command{
		Use: "tail", Short: "Show recent audit records",
		Long: `Show the most recent administrative calls and denied requests of the nodes in --addr, oldest first. The
command requires the audit right. Repetitions of a denied request within ten seconds are counted in one record. Records
from before the last start of a node are shown only if its setting audit.file is set.

With --follow, also print new records until Ctrl-C, in the order of their arrival. The command then reports a node that
does not respond on standard error, and connects to this node again. Without --follow, the records of such a node are
missing, and the exit code is 1.`,
		Example: "  lockstep audit tail\n  lockstep audit tail --follow --output json\n" +
			"  lockstep audit tail --principal 'ci-*' --method DeleteQueue",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req.Last = last
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if req.GetFollow() {
					return follow(ctx, env, c, req)
				}
				ctx, cancel := context.WithTimeout(ctx, env.Timeout)
				defer cancel()
				return newest(ctx, env, c, req)
			})
		},
	}
	f := cmd.Flags()
	f.Uint32VarP(&last, "last", "n", 20, "number of recent records to search on each node, up to 1000")
	f.BoolVarP(&req.Follow, "follow", "f", false, "also print new records, until Ctrl-C")
	f.StringVar(&req.Principal, "principal", "", "only calls of principals that match this pattern, such as 'ci-*'")
	f.StringVar(&req.Method, "method", "", "only calls of methods that match this pattern, such as Switchover or '*Queue'")
	return cmd
}

type answer struct {
	address string
	resp    *pb.TailAuditResponse
	err     error
}

// query queries all nodes concurrently. The channel is closed when all queries have ended.
func query(ctx context.Context, env *cli.Env, c *client.Client, req *pb.TailAuditRequest) (<-chan answer, error) {
	nodes, err := env.Nodes(c)
	if err != nil {
		return nil, err
	}
	answers := make(chan answer)
	var requests sync.WaitGroup
	for _, n := range nodes {
		requests.Go(func() {
			for resp, err := range n.TailAudit(ctx, req) {
				select {
				case answers <- answer{n.Address(), resp, err}:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	go func() {
		requests.Wait()
		close(answers)
	}()
	return answers, nil
}

func newest(ctx context.Context, env *cli.Env, c *client.Client, req *pb.TailAuditRequest) error {
	answers, err := query(ctx, env, c, req)
	if err != nil {
		return err
	}
	var records []audit.Record
	var failed []error
	for a := range answers {
		if a.err != nil {
			failed = append(failed, a.err)
		}
		for _, r := range a.resp.GetRecords() {
			records = append(records, audit.FromProto(r))
		}
	}
	slices.SortStableFunc(records, func(a, b audit.Record) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Node, b.Node))
	})
	for i := range records {
		if err := show(env, &records[i]); err != nil {
			return err
		}
	}
	if len(records) == 0 && len(failed) == 0 {
		return env.Print.Sentence("no matching records")
	}
	return errors.Join(failed...)
}

func show(env *cli.Env, r *audit.Record) error {
	if env.Print.JSON() {
		return env.Print.Object(r)
	}
	text := fmt.Sprintf("%s %s %s %s %s", output.LocalTime(r.Time), r.Node, r.Outcome, r.Principal,
		r.Method[strings.LastIndexByte(r.Method, '/')+1:])
	if r.Object != "" {
		text += " " + r.Object
	}
	text += " from " + r.Address
	if len(r.Arguments) > 0 {
		text += " " + string(r.Arguments)
	}
	if r.Code != "" {
		text += ": " + r.Code
	}
	if r.Error != "" {
		text += ": " + r.Error
	}
	if r.Repeated > 0 {
		text += fmt.Sprintf(" (%d more times)", r.Repeated)
	}
	return env.Print.Sentence("%s", text)
}
