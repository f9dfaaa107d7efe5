// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// extraTime is the time for the response after the time limits of a role change, because a failed switch is rolled
// back first.
const extraTime = 20 * time.Second

func switchCommand(env *cli.Env) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "switch --to SITE", Short: "Move the primary role to the other site without loss",
		Long: `Make the replica the primary, and the primary its replica. The primary first stops accepting writes, and the
replica applies the last transaction: no messages are lost. Clients wait for a short time, and continue at the other
site. The nodes in --addr can belong to either site.

The switch begins when the replica is connected and lacks at most 1 MiB of the log. If this takes longer than
--timeout, nothing is changed. If the replica then does not apply the last transaction within --timeout, the switch
is rolled back.

If the other site stops responding during the switch, the exit code is 3, and the former primary accepts no writes
until that site responds again (lockstep site status). If that site is lost, use lockstep site promote.`,
		Example: "  lockstep site switch --to west\n  lockstep site switch --to west --timeout 30s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return switchTo(ctx, env, c, to)
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "name of the site that becomes the primary")
	_ = cmd.MarkFlagRequired("to")
	return cmd
}

func switchTo(ctx context.Context, env *cli.Env, c *client.Client, to string) error {
	find, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	primary, replica, err := findPrimary(find, env, c)
	if err != nil {
		return err
	}
	from := primary.site().GetName()
	if from == to {
		return printSwitch(env, from, &pb.SwitchSiteResponse{
			Primary: to, Epoch: primary.site().GetEpoch(), Addresses: primary.site().GetAddresses(),
		}, true)
	}
	other := primary.state.GetRemote()
	if replica != nil {
		other = replica.site()
	}
	if other != nil && other.GetName() != to {
		return cli.WithHint(fmt.Errorf("no site %q: the sites are %s and %s", to, from, other.GetName()),
			"`--to %s`", other.GetName())
	}
	if err := env.Print.Sentence("%s stops accepting writes at LSN %d or later; %s applies its last transaction%s", from,
		primary.site().GetApplied().GetLsn(), to, behind(replica)); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(ctx, 2*env.Timeout+extraTime) // the primary waits twice for the replica
	defer cancel()
	stop := follow(ctx, env, replica)
	r, err := primary.node.SwitchSite(ctx, &pb.SwitchSiteRequest{To: to, Timeout: durationpb.New(env.Timeout)})
	stop()
	if err != nil {
		return changeError(err)
	}
	return printSwitch(env, from, r, false)
}

// behind describes the lag of the replica; empty if it is unknown.
func behind(replica *pair) string {
	if replica == nil || replica.state.GetReplication().GetHeardAt() == nil {
		return ""
	}
	r := replica.state.GetReplication()
	return fmt.Sprintf(" (lag: %s, %s)", output.Plural(r.GetLagRecords(), "record"), output.Bytes(r.GetLagBytes()))
}

// followEvery is the interval at which a switch reports its progress.
const followEvery = 500 * time.Millisecond

// follow prints the lag of the replica on stderr until the returned function is called. In the JSON format it prints
// nothing.
func follow(ctx context.Context, env *cli.Env, replica *pair) (stop func()) {
	if replica == nil || env.Print.JSON() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() {
		ticker := time.NewTicker(followEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			if r, err := replica.node.Site(ctx); err == nil && is(r.GetSite(), pb.SiteRole_SITE_ROLE_REPLICA) {
				// Write errors are ignored: the switch continues without a reader of its progress.
				_, _ = fmt.Fprintf(env.Stderr, "%s has applied %s%s\n", r.GetSite().GetName(),
					newPosition(r.GetSite().GetUpstream()), behind(&pair{state: r}))
			}
		}
	})
	return func() {
		cancel()
		following.Wait()
	}
}

// findPrimary returns the primary, with an active node, and the other site, which is nil if it does not respond.
func findPrimary(ctx context.Context, env *cli.Env, c *client.Client) (primary, replica *pair, err error) {
	addresses, err := env.Addresses()
	if err != nil {
		return nil, nil, err
	}
	here, err := waitActive(ctx, c, addresses)
	if err != nil {
		return nil, nil, err
	}
	there, otherErr := lookUpOther(ctx, c, here)
	replicates := is(here.site(), pb.SiteRole_SITE_ROLE_REPLICA)
	switch {
	case is(here.site(), pb.SiteRole_SITE_ROLE_PRIMARY):
		return here, there, nil
	case errors.Is(otherErr, errNoRemote):
		return nil, nil, otherErr
	case otherErr != nil && replicates:
		return nil, nil, cli.WithHint(fmt.Errorf("%s is a replica, and its primary does not respond at %s: %w",
			named(here.site()), strings.Join(here.remote(), ", "), otherErr),
			"`--addr` with the addresses of the primary, or `lockstep site promote` if the primary is lost")
	case is(there.site(), pb.SiteRole_SITE_ROLE_PRIMARY) && !there.active, replicates && !there.active:
		return nil, nil, errNoActive
	case is(there.site(), pb.SiteRole_SITE_ROLE_PRIMARY):
		return there, here, nil
	case replicates:
		here = there
	}
	return nil, nil, cli.WithHint(fmt.Errorf("%s is not a primary: its role is %s", named(here.site()),
		newSiteState(here.site(), true).Role), rolesHint)
}

const rolesHint = "`lockstep site status` to show the roles of both sites"

// changeError adds a hint to the error of a role change with an unknown outcome.
func changeError(err error) error {
	if !errors.Is(err, client.ErrOutcomeUnknown) {
		return err
	}
	return cli.WithHint(err, rolesHint)
}

func printSwitch(env *cli.Env, from string, r *pb.SwitchSiteResponse, already bool) error {
	pause := r.GetPause().AsDuration()
	text := fmt.Sprintf("%s is now the primary, epoch %d, at %s; no site accepted writes for %v", r.GetPrimary(),
		r.GetEpoch(), strings.Join(r.GetAddresses(), ", "), pause.Round(100*time.Microsecond))
	if already {
		text = fmt.Sprintf("%s is already the primary, epoch %d: no changes made", r.GetPrimary(), r.GetEpoch())
	}
	return env.Print.Result(map[string]any{
		"from": from, "primary": r.GetPrimary(), "epoch": r.GetEpoch(), "pause_ms": output.Milliseconds(pause),
		"addresses": list(r.GetAddresses()), "already": already,
	}, "%s", text)
}

// list returns an empty list instead of nil, which is null in JSON.
func list(all []string) []string { return append([]string{}, all...) }
