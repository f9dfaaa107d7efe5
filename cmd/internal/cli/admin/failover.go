// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// forceTime is added to --timeout, because the lease of a node that has just failed takes a few seconds to expire.
const forceTime = 40 * time.Second

var errNoForce = cli.WithHint(errors.New("no changes made: --force and --accept-data-loss are required"),
	"`lockstep switchover` if both nodes run, `lockstep failover --dry-run` to show what may be lost, or `--force "+
		"--accept-data-loss` if the node with all messages is permanently lost")

type forceFlags struct {
	force, accept, dryRun, yes bool
	reason, other              string
}

// FailoverCommand returns the `lockstep failover` command.
func FailoverCommand(env *cli.Env) *cobra.Command {
	var f forceFlags
	cmd := &cobra.Command{
		Use: "failover [ADDRESS]", GroupID: "operate",
		Short: "Force failover (may lose data)",
		Long: `Make a node active that was not in sync when the active failed. This is the last resort: such a node may lack
acknowledged messages, and waits for the lost node. If the lost node or its disk can be recovered, recover it instead. A
node that is in sync takes over automatically, unless the pair is paused (lockstep resume).

The new active is the node at ADDRESS (default: the node in --addr that responds). Messages that this node lacks are
lost; --dry-run reports their range, as far as the node knows it. MAKE SURE THAT THE OTHER NODE DOES NOT RUN: if clients
can still reach it, messages that it acknowledges are lost as well. The command is refused if this node is in sync, or
if the other node responds or has a lease.

Without --dry-run, the command requires --force and --accept-data-loss. On a terminal, it also asks for the name of the
new active, unless --yes is given. Without a terminal, it requires --yes.`,
		Example: `  lockstep failover --dry-run
  lockstep failover 10.0.0.2:7420 --force --accept-data-loss --reason "machine a destroyed"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !f.dryRun && (!f.force || !f.accept) {
				return errNoForce
			}
			if f.dryRun {
				f.yes = false
			}
			return env.WithPair(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				ctx, cancel := context.WithTimeout(ctx, env.Timeout+forceTime)
				defer cancel()
				n, err := nodeToForce(ctx, env, c, args, &f)
				if err != nil {
					return err
				}
				return forceFailover(ctx, env, cmd, n, &f)
			})
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.force, "force", false, "activate a node that is not in sync")
	flags.BoolVar(&f.accept, "accept-data-loss", false,
		"accept the loss of acknowledged messages that exist only on the lost node")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only report which messages may be lost")
	flags.BoolVar(&f.yes, "yes", false, "skip the confirmation prompt")
	flags.StringVar(&f.reason, "reason", "", "reason, shown in the status, up to 200 bytes")
	flags.StringVar(&f.other, "other", "", "address of the lost node, if the coordinator does not know it (default: "+
		"another address in --addr)")
	return cmd
}

// nodeToForce returns the node in args or, without args, the only node that responds. If f.other is empty, it sets
// f.other to another address in --addr.
func nodeToForce(
	ctx context.Context, env *cli.Env, c *client.Client, args []string, f *forceFlags,
) (*admin.Node, error) {
	addrs, err := env.Addresses()
	if err != nil {
		return nil, err
	}
	target := ""
	if len(args) > 0 {
		target = args[0]
	} else {
		var answer []string
		status := env.QueryNodes(ctx, c, min(env.Timeout, 2*time.Second))
		for i, n := range status.Nodes {
			if n.Error == "" {
				answer = append(answer, addrs[i])
			}
		}
		switch len(answer) {
		case 1:
			target = answer[0]
		case 0:
			return nil, cli.NoAnswer(ctx, status)
		default:
			return nil, cli.WithHint(fmt.Errorf("a failover cannot be forced while both nodes respond (%s)",
				strings.Join(answer, ", ")), "stopping the failed node; `lockstep status` shows the log position of both")
		}
	}
	if i := slices.IndexFunc(addrs, func(s string) bool { return s != target }); f.other == "" && i >= 0 {
		f.other = addrs[i]
	}
	return cli.NodeAt(c, target)
}

func forceFailover(ctx context.Context, env *cli.Env, cmd *cobra.Command, n *admin.Node, f *forceFlags) error {
	req := &pb.ForceFailoverRequest{OtherAddress: f.other, By: currentUser(), Reason: f.reason}
	plan, err := n.ForceFailover(ctx, req)
	if err != nil {
		return err
	}
	if f.dryRun || !env.Print.JSON() {
		if err := printForce(env, plan); err != nil || f.dryRun {
			return err
		}
	}
	if !f.yes {
		if err := confirmForce(cmd, plan); err != nil {
			return err
		}
	}
	req.Confirm, req.AcceptDataLoss, req.Config = true, f.accept, plan.GetConfig()
	done, err := n.ForceFailover(ctx, req)
	if err != nil {
		return err
	}
	if env.Print.JSON() {
		return printForce(env, done)
	}
	return env.Print.Sentence("done: node %s becomes active in term %d (config %d); lockstep status shows the progress",
		forcedName(done), done.GetTerm(), done.GetConfig())
}

// confirmForce prompts on a terminal. Without one, --yes is required.
func confirmForce(cmd *cobra.Command, plan *pb.ForceFailoverResponse) error {
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return cli.ErrNeedsYes
	}
	word := forcedName(plan)
	if _, err := fmt.Fprintf(cmd.ErrOrStderr(),
		"To confirm the loss of these messages, type the name of the new active (%s): ", word); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != word {
		return cli.ErrNotConfirmed
	}
	return nil
}

func currentUser() string {
	identity := "unknown"
	if u, err := user.Current(); err == nil {
		identity = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		identity += "@" + host
	}
	return identity[:min(len(identity), 200)]
}

func forcedName(r *pb.ForceFailoverResponse) string { return cmp.Or(r.GetNodeName(), r.GetNodeId()) }

func printForce(env *cli.Env, r *pb.ForceFailoverResponse) error {
	if env.Print.JSON() {
		return env.Print.Object(map[string]any{
			"done": r.GetDone(), "pair_id": r.GetPairId(), "node_id": r.GetNodeId(), "node_name": r.GetNodeName(),
			"config": r.GetConfig(),
			"term":   r.GetTerm(), "lost_node_id": r.GetLostNodeId(), "lost_node_name": r.GetLostNodeName(),
			"lost_address": r.GetLostAddress(),
			"in_sync":      r.GetInSync(), "log_end": map[string]any{
				"term": r.GetLogEnd().GetTerm(),
				"lsn":  r.GetLogEnd().GetLsn(),
			},
			"heard_commit_lsn": r.GetHeardCommitLsn(), "lost_from_lsn": r.GetLostFromLsn(),
			"lost_to_lsn": r.GetLostToLsn(),
			"warnings":    r.GetWarnings(),
		})
	}
	lost := cmp.Or(r.GetLostNodeName(), r.GetLostNodeId())
	lines := []string{fmt.Sprintf("pair %s, config %d, term %d; in sync: %s", r.GetPairId(), r.GetConfig(), r.GetTerm(),
		strings.Join(r.GetInSync(), ", "))}
	if lost != "" {
		lines = append(lines, fmt.Sprintf("active: node %s (%s); it does not respond at %s and has no lease", lost,
			r.GetLostNodeId(), r.GetLostAddress()))
	}
	lines = append(lines, fmt.Sprintf("new active: node %s; its log ends at LSN %d of term %d",
		forcedName(r), r.GetLogEnd().GetLsn(),
		r.GetLogEnd().GetTerm()), lostRange(r))
	for _, w := range r.GetWarnings() {
		lines = append(lines, "WARNING: "+w)
	}
	return env.Print.Sentence("%s", strings.Join(lines, "\n"))
}

func lostRange(r *pb.ForceFailoverResponse) string {
	text := fmt.Sprintf("MAY BE LOST: all records acknowledged from LSN %d ", r.GetLostFromLsn())
	switch {
	case r.GetLostToLsn() >= r.GetLostFromLsn():
		return text + fmt.Sprintf("to LSN %d, the last known commit, and later ones: the end of the log on the lost node "+
			"is unknown", r.GetLostToLsn())
	case r.GetHeardCommitLsn() > 0:
		return text + fmt.Sprintf("on: this node has all records up to LSN %d, the last known commit; the end of the log on "+
			"the lost node is unknown", r.GetHeardCommitLsn())
	default:
		return text + "on: this node has received no commit position since it started; " +
			"the end of the log on the lost node is unknown"
	}
}
