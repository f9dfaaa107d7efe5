// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func rebuildCommand(env *cli.Env) *cobra.Command {
	var yes bool
	req := &pb.AdoptRecordRequest{}
	cmd := &cobra.Command{
		Use:   "adopt [ADDRESS]",
		Short: "Rebuild the cluster record after coordinator data loss",
		Long: `Rebuild the cluster record if the coordinator has lost it, or was restored from an old copy. Until then,
nodes that start wait; lockstep status shows this. If the correct record can be restored, restore it instead.

The node at ADDRESS (default: the first of --addr) becomes the active and the only node in sync, and the other node
catches up from it. RECORDS THAT ONLY THE OTHER NODE HAS ARE DISCARDED. If a node is still active, choose that node:
it stays active, and the in-sync nodes do not change.

The command is refused if the other node is active or has more records. If the other node does not respond, add
--without-other, but only if that node is permanently lost, or is stopped and does not have additional records.

Without --yes, the command only prints the new record, and the exit code is 1.`,
		Example: `  lockstep pair adopt 10.0.0.1:7420
  lockstep pair adopt 10.0.0.1:7420 --other 10.0.0.2:7420 --yes`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			addrs, err := env.Addresses()
			if err != nil {
				return err
			}
			target := addrs[0]
			if len(args) > 0 {
				target = args[0]
			}
			if i := slices.IndexFunc(addrs, func(s string) bool { return s != target }); req.OtherAddress == "" && i >= 0 {
				req.OtherAddress = addrs[i]
			}
			return env.WithPairTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				n, err := cli.NodeAt(c, target)
				if err != nil {
					return err
				}
				return rebuild(ctx, env, n, req, yes)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&yes, "yes", false, "write the record; without this flag, only print it")
	f.StringVar(&req.OtherAddress, "other", "",
		"address of the other node, if the coordinator does not know it; default: another address in --addr")
	f.BoolVar(&req.WithoutOther, "without-other", false, "proceed although the other node cannot be reached")
	f.BoolVar(&req.AcceptDataLoss, "accept-data-loss", false,
		"proceed although acknowledged messages may be missing on the node at ADDRESS")
	return cmd
}

func rebuild(ctx context.Context, env *cli.Env, n *admin.Node, req *pb.AdoptRecordRequest, confirmed bool) error {
	plan, err := n.AdoptRecord(ctx, req)
	if err != nil {
		return err
	}
	if !confirmed {
		return errors.Join(printRebuild(env, plan), cli.ErrNeedsYes)
	}
	if !env.Print.JSON() {
		if err := printRebuild(env, plan); err != nil {
			return err
		}
	}
	req.Confirm = true
	done, err := n.AdoptRecord(ctx, req)
	if err != nil {
		return err
	}
	if env.Print.JSON() {
		return printRebuild(env, done)
	}
	return env.Print.Sentence("done: %s is the active of pair %s, config %d, term %d", nameOf(done),
		done.GetPairId(), done.GetConfig(), done.GetTerm())
}

func nameOf(r *pb.AdoptRecordResponse) string {
	return "node " + cmp.Or(r.GetNodeName(), r.GetNodeId())
}

func printRebuild(env *cli.Env, r *pb.AdoptRecordResponse) error {
	if env.Print.JSON() {
		return env.Print.Object(rebuildObject(r))
	}
	found := "no record"
	if r.GetFoundConfig() > 0 {
		found = fmt.Sprintf("a record of config %d", r.GetFoundConfig())
	}
	lines := []string{
		fmt.Sprintf("the coordinator has %s of pair %s; %s is at config %d", found, r.GetPairId(), nameOf(r),
			r.GetOwnConfig()),
		fmt.Sprintf("new record: config %d, term %d, active %s, in sync %s", r.GetConfig(), r.GetTerm(), r.GetNodeId(),
			strings.Join(r.GetInSync(), ", ")),
		fmt.Sprintf("the log of %s ends at LSN %d of term %d", nameOf(r), r.GetLogEnd().GetLsn(), r.GetLogEnd().GetTerm()),
	}
	switch other := r.GetOther(); {
	case other.GetReached():
		lines = append(lines, fmt.Sprintf("the other node, %s at %s, has config %d; its log ends at LSN %d of term "+
			"%d: it does not have more records", other.GetName(),
			other.GetAddress(), other.GetConfig(), other.GetLogEnd().GetLsn(), other.GetLogEnd().GetTerm()))
	case other != nil:
		lines = append(lines, fmt.Sprintf("the other node does not respond at %s", other.GetAddress()))
	default:
		lines = append(lines, "the address of the other node is unknown; set --other")
	}
	for _, w := range r.GetWarnings() {
		lines = append(lines, "WARNING: "+w)
	}
	return env.Print.Sentence("%s", strings.Join(lines, "\n"))
}

func rebuildObject(r *pb.AdoptRecordResponse) map[string]any {
	out := map[string]any{
		"done": r.GetDone(), "pair_id": r.GetPairId(), "node_id": r.GetNodeId(), "node_name": r.GetNodeName(),
		"config": r.GetConfig(),
		"term":   r.GetTerm(), "in_sync": r.GetInSync(), "found_config": r.GetFoundConfig(),
		"own_config": r.GetOwnConfig(),
		"log_end":    map[string]any{"term": r.GetLogEnd().GetTerm(), "lsn": r.GetLogEnd().GetLsn()},
		"warnings":   r.GetWarnings(),
	}
	if o := r.GetOther(); o != nil {
		out["other"] = map[string]any{
			"address": o.GetAddress(), "reached": o.GetReached(), "node_id": o.GetNodeId(), "name": o.GetName(),
			"config":  o.GetConfig(),
			"log_end": map[string]any{"term": o.GetLogEnd().GetTerm(), "lsn": o.GetLogEnd().GetLsn()},
		}
	}
	return out
}
