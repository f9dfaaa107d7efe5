// SPDX-License-Identifier: Apache-2.0

// Package pair implements the commands for the pair itself: its cluster record, the voters that store it, and the
// witness as the third voter.
package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/serve"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
)

func withAdmin(
	ctx context.Context, env *cli.Env, f *raftFlags, fn func(context.Context, *raft.Admin) error,
) (err error) {
	if len(f.voters) == 0 {
		if f.voters, f.secured, err = votersOfPair(ctx, env); err != nil {
			return err
		}
	}
	if f.secured && f.ca == "" {
		return cli.Usage("the voters of this pair use TLS: set --raft-ca, --raft-cert and --raft-key, as in " +
			"coordinator.raft.tls of a node")
	}
	secure, _, err := f.tls(nil)
	if err != nil {
		return err
	}
	admin, err := raft.NewAdmin(raft.AdminOptions{Voters: f.voters, TLS: secure})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, admin.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	err = fn(ctx, admin)
	if !errors.Is(err, raft.ErrNoQuorum) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no response within %v: %w", env.Timeout, raft.ErrNoQuorum)
	}
	if f.ca == "" {
		err = cli.WithHint(err, "`--raft-ca`, `--raft-cert` and `--raft-key` if the voters use TLS")
	}
	return err
}

func printVoters(env *cli.Env, members []raft.Member) error {
	rows := make([][]any, 0, len(members))
	now := time.Now()
	for _, m := range members {
		if m.Leader {
			now = m.LastContact // the leader's clock, as for the other voters
		}
	}
	for _, m := range members {
		if err := env.Print.Object(m); err != nil {
			return err
		}
		contact := "never"
		if !m.LastContact.IsZero() {
			contact = now.Sub(m.LastContact).Round(time.Millisecond).String() + " ago"
		}
		rows = append(rows, []any{m.ID, m.Address, string(m.Kind), roleOf(m, now), contact})
	}
	return env.Print.Table([]string{"ID", "Address", "Kind", "State", "Last contact"}, rows)
}

// noResponseAfter is the time without contact after which a voter is reported as not responding. Voters respond to the
// leader several times per second.
const noResponseAfter = 5 * time.Second

// roleOf describes the state of a voter. After a restart with an empty disk, a voter has a new ID, and the leader
// still waits for the voter with the old ID.
func roleOf(m raft.Member, now time.Time) string {
	switch {
	case m.Leader:
		return "leader"
	case now.Sub(m.LastContact) > noResponseAfter:
		return "DOES NOT RESPOND; if its disk is new: lockstep pair replace"
	case !m.Voter:
		return "catching up"
	default:
		return "follower"
	}
}

func votersCommand(env *cli.Env) *cobra.Command {
	var f raftFlags
	cmd := &cobra.Command{
		Use: "voters", Short: "List the voters of a raft coordinator",
		Long: `List the voters of a pair with coordinator.type: raft, with their states and last contact, as reported by
the leader. The leader of the voters is independent of the active node.`,
		Example: "  lockstep pair voters\n  lockstep pair voters --voters 10.0.0.1:7430,10.0.0.2:7430,10.0.0.3:7430",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAdmin(cmd.Context(), env, &f, func(ctx context.Context, admin *raft.Admin) error {
				members, err := admin.Members(ctx)
				if err != nil {
					return err
				}
				return printVoters(env, members)
			})
		},
	}
	f.register(cmd)
	return cmd
}

func addCommand(env *cli.Env) *cobra.Command {
	var f raftFlags
	cmd := &cobra.Command{
		Use: "add ADDRESS", Short: "Add a running voter to the quorum",
		Long: `Add the voter that runs at ADDRESS with an empty directory. A quorum has at most three voters. To replace a
lost voter, use lockstep pair replace.`,
		Example: "  lockstep pair add 10.0.0.4:7430 --voters 10.0.0.1:7430,10.0.0.2:7430",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAdmin(cmd.Context(), env, &f, func(ctx context.Context, admin *raft.Admin) error {
				m, err := admin.Add(ctx, args[0])
				if err != nil {
					return err
				}
				return printVoters(env, []raft.Member{m})
			})
		},
	}
	f.register(cmd)
	return cmd
}

func removeCommand(env *cli.Env) *cobra.Command {
	var f raftFlags
	cmd := &cobra.Command{
		Use: "remove ID|ADDRESS", Short: "Remove a voter from the quorum",
		Long: "Remove a voter from the quorum. At least two voters must remain; with two, the quorum requires both. To " +
			"replace a voter, use lockstep pair replace.",
		Example: "  lockstep pair remove 10.0.0.3:7430 --voters 10.0.0.1:7430,10.0.0.2:7430",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAdmin(cmd.Context(), env, &f, func(ctx context.Context, admin *raft.Admin) error {
				if err := admin.Remove(ctx, args[0]); err != nil {
					return err
				}
				return env.Print.Result(map[string]string{"removed": args[0]}, "removed voter %s from the quorum", args[0])
			})
		},
	}
	f.register(cmd)
	return cmd
}

func replaceCommand(env *cli.Env) *cobra.Command {
	var f raftFlags
	cmd := &cobra.Command{
		Use: "replace OLD NEW-ADDRESS", Short: "Replace a lost or wiped voter",
		Long: `Replace the voter OLD (an ID or an address) with the voter that runs at NEW-ADDRESS with an empty directory.
If a node or witness returned with an empty disk, give the same address twice. If the command fails, it can be
repeated.`,
		Example: `  lockstep pair replace 10.0.0.3:7430 10.0.0.3:7430 --voters 10.0.0.1:7430,10.0.0.2:7430
  lockstep pair replace 10.0.0.3:7430 10.0.0.4:7430 --voters 10.0.0.1:7430,10.0.0.2:7430`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAdmin(cmd.Context(), env, &f, func(ctx context.Context, admin *raft.Admin) error {
				m, err := admin.Replace(ctx, args[0], args[1])
				if err != nil {
					return err
				}
				return printVoters(env, []raft.Member{m})
			})
		},
	}
	f.register(cmd)
	return cmd
}

func recoverCommand(env *cli.Env) *cobra.Command {
	var o raft.RecoverOptions
	var yes bool
	cmd := &cobra.Command{
		Use: "recover-quorum", Short: "Rebuild the quorum from one stopped voter",
		Long: `If all voters except one are permanently lost, make the stopped voter in --dir the only voter of a new
quorum. Then start the voter, and add two voters with empty directories (lockstep pair add).

The last changes of the cluster record can be lost. NEVER START THE LOST VOTERS AGAIN with their old directories:
both quorums could activate a node. Without --yes, nothing is changed, and the exit code is 1.`,
		Example: `  lockstep pair recover-quorum --dir /var/lib/lockstep/raft --by alice --reason "b and c destroyed" --yes`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) (err error) {
			if o.Logger, _, err = serve.NewLogger(env.Stderr, "info", "text"); err != nil {
				return err
			}
			if !yes {
				return fmt.Errorf("%w. The last changes of the cluster record may be lost: use this command only if no "+
					"other voter can be recovered", cli.ErrNeedsYes)
			}
			r, err := raft.Recover(o)
			if err != nil {
				return err
			}
			return env.Print.Result(r, "the voter in %s is now the only voter; start it, and add two voters with "+
				"lockstep pair add", o.Dir)
		},
	}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "data directory of the voter")
	cmd.Flags().StringVar(&o.Address, "address", "", "new advertised address of the voter, host:port; default: unchanged")
	cmd.Flags().StringVar(&o.By, "by", "", "operator, for the log")
	cmd.Flags().StringVar(&o.Reason, "reason", "", "reason, for the log")
	cmd.Flags().BoolVar(&yes, "yes", false, "rebuild the quorum; without this flag, change nothing")
	for _, name := range []string{"dir", "by", "reason"} {
		_ = cmd.MarkFlagRequired(name)
	}
	return cmd
}

// votersOfPair returns the addresses of the voters, and reports whether they use TLS.
func votersOfPair(ctx context.Context, env *cli.Env) (voters []string, secured bool, err error) {
	addrs, err := env.Addresses()
	if err != nil {
		return nil, false, err
	}
	err = env.WithPair(ctx, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeout(ctx, min(env.Timeout, 2*time.Second))
		defer cancel()
		var last error
		for _, addr := range addrs {
			st, err := pairstatus.Query(ctx, c, addr)
			if err != nil {
				last = err
				continue
			}
			switch kind := st.GetPair().GetCoordinator(); kind {
			case config.CoordinatorRaft:
			case "":
				last = fmt.Errorf("%s is not a member of a pair, or has not read the cluster record yet", addr)
				continue
			default:
				return fmt.Errorf("the coordinator of this pair is %s; it has no voters", kind)
			}
			voters = st.GetPair().GetCoordinatorAddresses()
			secured = slices.ContainsFunc(st.GetCertificates(),
				func(c *pb.CertificateStatus) bool { return c.GetUse() == "raft" })
			if len(voters) > 0 {
				return nil
			}
		}
		if last == nil {
			return errors.New("the nodes report no voter addresses; set --voters")
		}
		return fmt.Errorf("the voter addresses are unknown; set --voters: %w", last)
	})
	return voters, secured, err
}

// Command returns the `lockstep pair` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pair", GroupID: "operate",
		Short: "Manage the cluster record and raft voters",
		Args:  cli.KnownSubcommand,
		RunE:  cli.NeedsSubcommand,
	}
	cmd.AddCommand(
		rebuildCommand(env), votersCommand(env), addCommand(env), removeCommand(env), replaceCommand(env),
		recoverCommand(env),
	)
	return cmd
}
