// SPDX-License-Identifier: Apache-2.0

package site

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/ops/site/siteloss"
)

type promoteFlags struct {
	reason     string
	force, yes bool
}

func promoteCommand(env *cli.Env) *cobra.Command {
	var f promoteFlags
	cmd := &cobra.Command{
		Use: "promote --reason TEXT", Short: "Make a site the primary (may lose data)",
		Long: `Make the pair in --addr the primary if the other site is lost. The pair must be a replica, or a primary that
a failed lockstep site switch has left stopped (lockstep site status). Transactions that the pair has not received
are lost. If the primary works, use lockstep site switch, which loses nothing.

MAKE SURE THAT THE OTHER SITE DOES NOT RUN: it could still accept writes, and the new primary would lack them. The
command is refused while the other site responds as the primary, unless --force is given.

Before you start the other site again, disconnect its clients: it accepts writes until it reaches this site. If it does
not become a replica automatically, use lockstep site demote. On a terminal, the command asks for confirmation; scripts
use --yes.`,
		Example: `  lockstep site promote --addr west-a:7420,west-b:7420 --reason "fire in data center east"
  lockstep site promote --reason "link to east is lost" --yes --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return promote(ctx, env, c, &f)
			})
		},
	}
	cmd.Flags().StringVar(&f.reason, "reason", "", "reason, for the audit log")
	cmd.Flags().BoolVar(&f.force, "force", false, "promote even if the primary responds; its later transactions are lost")
	cli.AddYes(cmd, &f.yes)
	_ = cmd.MarkFlagRequired("reason")
	return cmd
}

// promotion is the output of lockstep site promote.
type promotion struct {
	Done   bool   `json:"done"`
	Site   string `json:"site"`
	Former string `json:"former_primary"`
	Epoch  uint64 `json:"epoch"`
	// Origin is the last record of the former primary that this site has.
	Origin      *position      `json:"origin,omitempty"`
	Replication *replication   `json:"replication,omitempty"`
	Loss        *siteloss.Loss `json:"promotion_loss,omitempty"`
}

func promote(ctx context.Context, env *cli.Env, c *client.Client, f *promoteFlags) error {
	addresses, err := env.Addresses()
	if err != nil {
		return err
	}
	find, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	here, err := waitActive(find, c, addresses)
	if err != nil {
		return err
	}
	there, _ := lookUpOther(find, c, here)
	state, remote := here.site(), here.state.GetRemote()
	switch {
	case is(state, pb.SiteRole_SITE_ROLE_PRIMARY):
		return cli.WithHint(fmt.Errorf("%s is already the primary", named(state)),
			"`--addr` with the addresses of the replica")
	case there != nil && there.active && is(there.site(), pb.SiteRole_SITE_ROLE_PRIMARY) && !f.force:
		return cli.WithHint(fmt.Errorf("the primary, %s, responds", named(there.site())),
			"`lockstep site switch --to %s` for a switch without loss, or `--force` to promote and lose the transactions "+
				"that the replica lacks", state.GetName())
	case there != nil:
		remote = there.site()
	}
	p := promotion{
		Site: state.GetName(), Former: remote.GetName(), Epoch: state.GetEpoch(), Origin: newPosition(state.GetUpstream()),
		Replication: newReplication(here.state.GetReplication(), here.state.GetError()),
	}
	if is(state, pb.SiteRole_SITE_ROLE_REPLICA) {
		p.Loss = siteloss.New(here.state, there.site())
	}
	if err := printPlan(env, here, there, &p); err != nil {
		return err
	}
	if err := env.ConfirmPlan(ctx, f.yes, &p, "Promote %s?", named(state)); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(ctx, env.Timeout+extraTime)
	defer cancel()
	r, err := here.node.PromoteSite(ctx, &pb.PromoteSiteRequest{Reason: f.reason, Force: f.force})
	if err != nil {
		return changeError(err)
	}
	return printPromotion(env, here, p, r)
}

func printPlan(env *cli.Env, here, there *pair, p *promotion) error {
	state := here.site()
	lines := []string{fmt.Sprintf("%s (%s, epoch %d) becomes the primary", named(state), newSiteState(state, true).Role,
		state.GetEpoch())}
	if there != nil {
		lines = append(lines, fmt.Sprintf("WARNING: %s responds as %s, epoch %d", named(there.site()),
			newSiteState(there.site(), true).Role, there.site().GetEpoch()))
	}
	if p.Origin != nil {
		lines = append(lines, "last record of the primary at this site: "+p.Origin.String())
	}
	if p.Replication != nil && p.Replication.PrimaryEnd != nil {
		lines = append(lines, "last known end of the primary's log: "+p.Replication.PrimaryEnd.String())
	}
	if p.Loss != nil {
		label := "WARNING: "
		if p.Loss.Nothing {
			label = ""
		}
		lines = append(lines, label+"the promotion "+p.Loss.Text(output.LocalTime))
	}
	return env.Print.Sentence("%s", strings.Join(lines, "\n"))
}

func printPromotion(env *cli.Env, here *pair, p promotion, r *pb.PromoteSiteResponse) error {
	p.Done, p.Epoch, p.Origin = true, r.GetEpoch(), newPosition(r.GetOrigin())
	if r.GetReplication() != nil {
		p.Replication = newReplication(r.GetReplication(), "")
		p.Loss = siteloss.New(&pb.GetSiteResponse{Site: here.site(), Replication: r.GetReplication()}, nil)
	}
	text := fmt.Sprintf("%s is now the primary, epoch %d", p.Site, p.Epoch)
	if p.Origin != nil {
		text += "; it has the records of the former primary up to " + p.Origin.String()
	}
	if len(here.site().GetAddresses()) > 0 {
		former := strings.Join(here.remote(), ",")
		text += fmt.Sprintf("\nbefore you start the former primary, disconnect its clients: it accepts writes until it "+
			"reaches this site. If it does not become a replica automatically, run:\n"+
			"lockstep site demote --addr %s --replica-of %s", cmp.Or(former, "ADDRESS"), here.site().GetAddresses()[0])
	}
	return env.Print.Result(p, "%s", text)
}
