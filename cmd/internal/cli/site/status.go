// SPDX-License-Identifier: Apache-2.0

package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/server/ops/site/siteloss"
	"github.com/lockstep-mq/lockstep/store/units"
)

var errProblems = cli.WithHint(errors.New("the sites have problems"),
	"`lockstep status` with the addresses of each site, for its conditions and their actions")

func statusCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show both sites and the lag of the replica",
		Long: `Show the name, role, epoch and log position of both sites, the lag of the replica, and the transactions that
a promotion of the replica would lose now. The nodes in --addr can belong to either site. The command also queries
the other site, with the same credentials. If that site cannot be reached from this machine, its last known state is
shown.

The lag refers to the time at which the replica last received the end of the primary's log. A promotion also loses
transactions that the primary accepted later.

The exit code is 1 if the command reports a problem.`,
		Example: "  lockstep site status\n  lockstep site status --output json | jq '.replication.lag_seconds'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				addresses, err := env.Addresses()
				if err != nil {
					return err
				}
				here, err := lookUp(ctx, c, addresses)
				if err != nil {
					return err
				}
				there, otherErr := lookUpOther(ctx, c, here)
				r := newReport(here, there, otherErr)
				if err := printReport(env, &r); err != nil {
					return err
				}
				if len(r.Problems) > 0 {
					return errProblems
				}
				return nil
			})
		},
	}
}

func printReport(env *cli.Env, r *report) error {
	if env.Print.JSON() {
		return env.Print.Object(r)
	}
	rows := [][]any{r.Site.row()}
	if r.Remote != nil {
		rows = append(rows, r.Remote.row())
	}
	err := env.Print.Table([]string{"Site", "Role", "Epoch", "Applied", "Upstream", "Addresses"}, rows)
	if err != nil {
		return err
	}
	if r.Remote == nil {
		return env.Print.Sentence("no other site: site.remote is not set")
	}
	if pairs := append(r.Replication.pairs(), lossPairs(r.Loss)...); len(pairs) > 0 {
		if err := env.Print.Sentence(""); err != nil {
			return err
		}
		if err := env.Print.Pairs(pairs); err != nil {
			return err
		}
	}
	for _, p := range r.Problems {
		if err := env.Print.Sentence("PROBLEM: %s", p); err != nil {
			return err
		}
	}
	return nil
}

func (s *siteState) row() []any {
	role := s.Role
	if !s.Responds && s.Role != roleUnknown {
		role += " (last reported)"
	}
	epoch := "-"
	if s.Role != roleUnknown {
		epoch = fmt.Sprint(s.Epoch)
	}
	return []any{
		cmp.Or(s.Name, "-"), role, epoch, s.Applied.String(), s.Upstream.String(), strings.Join(s.Addresses, ", "),
	}
}

func (p *position) String() string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("LSN %d of term %d", p.LSN, p.Term)
}

func (r *replication) pairs() [][2]string {
	if r == nil {
		return nil
	}
	state := "connected"
	if !r.Connected {
		state = "NOT connected"
		if r.Error != "" {
			state += ": " + r.Error
		}
	}
	lag := "unknown"
	heard := "never since the node started"
	if !r.HeardAt.IsZero() {
		lag = fmt.Sprintf("%s, %s, %s", output.Plural(r.LagRecords, "record"), output.Bytes(r.LagBytes), r.lag())
		heard = output.LocalTime(r.HeardAt) + ", " + r.PrimaryEnd.String()
	}
	return [][2]string{
		{"Replication", state},
		{"Lag", lag},
		{"End of the primary's log", heard},
		{"Throughput", output.Bytes(r.BytesPerSecond) + "/s"},
		{"Connections", output.Count(r.Connections)},
	}
}

func (r *replication) lag() string {
	return units.Age(seconds(r.LagSeconds))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func lossPairs(l *siteloss.Loss) [][2]string {
	if l == nil {
		return nil
	}
	return [][2]string{{"Promotion now", l.Text(output.LocalTime)}}
}
