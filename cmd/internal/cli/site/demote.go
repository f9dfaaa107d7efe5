// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func demoteCommand(env *cli.Env) *cobra.Command {
	var address string
	var yes bool
	cmd := &cobra.Command{
		Use: "demote --replica-of ADDRESS", Short: "Make a pair the replica of another pair",
		Long: `Make the pair in --addr the replica of the pair with a node at ADDRESS. That pair must not be a replica; if
it has no role, it becomes the primary. The pair in --addr then refuses clients, and copies the transactions of the
primary. Both pairs require the setting site.name, and the pair in --addr also requires site.remote.

Use the command for a former primary after lockstep site promote, or for an empty pair while the primary still has its
whole log; otherwise, create the replica with lockstep site seed. The command is refused if the log of the primary no
longer contains the records that the pair needs, or if the pair has transactions that the primary lacks. In the second
case, a former primary saves these transactions to a file on its active node, and lockstep status shows the path of the
file.

On a terminal, the command asks for confirmation; scripts use --yes.`,
		Example: `  lockstep site demote --addr east-a:7420,east-b:7420 --replica-of west-a:7420
  lockstep site demote --replica-of west-a:7420 --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, _, err := net.SplitHostPort(address); err != nil {
				return cli.Usage("--replica-of %q: must be host:port", address)
			}
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return demote(ctx, env, c, address, yes)
			})
		},
	}
	cmd.Flags().StringVar(&address, "replica-of", "", "address of a node of the primary, host:port")
	cli.AddYes(cmd, &yes)
	_ = cmd.MarkFlagRequired("replica-of")
	return cmd
}

// demotion is the output of lockstep site demote.
type demotion struct {
	Done    bool   `json:"done"`
	Site    string `json:"site"`
	Primary string `json:"primary"`
	Address string `json:"replica_of"`
	Epoch   uint64 `json:"epoch"`
	// Upstream is the record of the primary after which the replica continues.
	Upstream *position `json:"upstream,omitempty"`
}

func demote(ctx context.Context, env *cli.Env, c *client.Client, address string, yes bool) error {
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
	look, cancel := context.WithTimeout(find, otherTimeout)
	defer cancel()
	// Only for the displayed text: the node contacts the primary itself.
	there, otherErr := lookUp(look, c, []string{address})
	d := demotion{Site: here.site().GetName(), Address: address}
	if there != nil {
		d.Primary, d.Epoch = there.site().GetName(), there.site().GetEpoch()
	}
	if err := printDemotionPlan(env, here, there, address, otherErr); err != nil {
		return err
	}
	if err := env.ConfirmPlan(ctx, yes, &d, "Make %s a replica?", named(here.site())); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(ctx, env.Timeout+extraTime)
	defer cancel()
	r, err := here.node.DemoteSite(ctx, &pb.DemoteSiteRequest{ReplicaOf: address})
	if err != nil {
		return changeError(err)
	}
	d.Done, d.Primary, d.Epoch, d.Upstream = true, r.GetPrimary(), r.GetEpoch(), newPosition(r.GetUpstream())
	text := fmt.Sprintf("%s is now a replica of %s, epoch %d", d.Site, d.Primary, d.Epoch)
	if d.Upstream != nil {
		text += ", and continues after " + d.Upstream.String()
	}
	return env.Print.Result(d, "%s; lockstep site status shows the progress", text)
}

func printDemotionPlan(env *cli.Env, here, there *pair, address string, otherErr error) error {
	own := newSiteState(here.site(), true)
	store := here.status.GetStore()
	text := fmt.Sprintf("%s (%s, epoch %d, %s, %s with %s) becomes a replica of ", &own, own.Role, own.Epoch, own.Applied,
		output.Plural(store.GetQueues(), "queue"), output.Plural(store.GetMessages(), "message"))
	if there != nil {
		s := newSiteState(there.site(), true)
		text += fmt.Sprintf("%s (%s, epoch %d) at %s", &s, s.Role, s.Epoch, address)
	} else {
		text += fmt.Sprintf("the pair at %s, which does not respond to this machine: %v", address, otherErr)
	}
	return env.Print.Sentence("%s\nit then refuses clients, which continue at the primary", text)
}
