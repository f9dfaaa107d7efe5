// SPDX-License-Identifier: Apache-2.0

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
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/cmd/internal/process"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
)

// withAdmin runs fn with a connection to the quorum.
func withAdmin(
	ctx context.Context, env *cli.Env, f *raftFlags, fn func(context.Context, *raft.Admin) error,
) (err error) {
	if len(f.voters) == 0 {
		if f.voters, f.secured, err = votersOfPair(ctx, env); err != nil {
			return err
		}
	}
	if f.secured && f.ca == "" {
		return cli.Usage("the voters of this pair use TLS: give --raft-ca, --raft-cert and --raft-key, the files of " +
			"coordinator.raft.tls on a node")
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
	if errors.Is(err, raft.ErrNoQuorum) && f.ca == "" {
		return fmt.Errorf("%w. If the voters use TLS, give --raft-ca, --raft-cert and --raft-key", err)
	}
	return err
}

func printVoters(env *cli.Env, members []raft.Member) error {
	rows := make([][]any, 0, len(members))
	now := time.Now()
	for _, m := range members {
		if m.Leader {
			now = m.LastContact // by the leader's clock, like the others
		}
	}
	for _, m := range members {
		if err := env.Print.Object(m); err != nil {
			return err
		}
		contact := "never"
		if !m.LastContact.IsZero() {
			contact = time.Since(m.LastContact).Round(time.Millisecond).String() + " ago"
		}
		rows = append(rows, []any{m.ID, m.Address, string(m.Kind), roleOf(m, now), contact})
	}
	return env.Print.Table([]string{"Id", "Address", "Kind", "In the quorum", "Last contact"}, rows)
}

// silentAfter is the maximum time since the last answer of a following voter to its leader. A voter answers several
// times per second.
const silentAfter = 5 * time.Second

// roleOf describes the role of a voter. One that does not answer is down, partitioned, or restarted with an empty disk.
// In the last case it has a new ID, and the leader waits for the old one.
func roleOf(m raft.Member, now time.Time) string {
	switch {
	case m.Leader:
		return "leads"
	case now.Sub(m.LastContact) > silentAfter:
		return "DOES NOT ANSWER; if its disk is new: lockstep pair replace"
	case !m.Voter:
		return "catches up"
	default:
		return "follows"
	}
}

func votersCommand(env *cli.Env) *cobra.Command {
	var f raftFlags
	cmd := &cobra.Command{
		Use: "voters", Short: "List the voters of a pair whose coordinator is raft",
		Long: `List the voters as their leader knows them. Leading the quorum has nothing to do with being the active node: the witness
leads when it can.`,
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
		Use: "add ADDRESS", Short: "Add a voter that runs and waits to the quorum",
		Long: `Have the quorum take in a voter that was started and waits: it catches up first and votes then. A
quorum of three loses one of them and goes on; to put a voter in the place of one that is gone use lockstep pair
replace.`,
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
		Use: "remove ID|ADDRESS", Short: "Take a voter out of the quorum",
		Long: "Take a voter out of the quorum. With two voters left both have to be up; to put another one in its " +
			"place, use replace.",
		Example: "  lockstep pair remove 10.0.0.3:7430 --voters 10.0.0.1:7430,10.0.0.2:7430",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAdmin(cmd.Context(), env, &f, func(ctx context.Context, admin *raft.Admin) error {
				if err := admin.Remove(ctx, args[0]); err != nil {
					return err
				}
				if err := env.Print.Object(map[string]string{"removed": args[0]}); err != nil {
					return err
				}
				return env.Print.Sentence("voter %s is out of the quorum", args[0])
			})
		},
	}
	f.register(cmd)
	return cmd
}

func replaceCommand(env *cli.Env) *cobra.Command {
	var f raftFlags
	cmd := &cobra.Command{
		Use: "replace OLD NEW-ADDRESS", Short: "Put a voter in the place of one that is gone, or that has lost its disk",
		Long: `Put the voter that runs at NEW-ADDRESS, with an empty directory, in the place of OLD (an id or an address). For a witness or node
that came back with an empty disk both are the same address: it is another voter then, with another id, and is not trusted to be
the one before. The command can be repeated until it succeeds.`,
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
		Use: "recover-quorum", Short: "Make one stopped voter the only one, when the other two are gone for good",
		Long: `When two of the three voters are lost for good, no node can change the pair's record any more. This makes the voter in --dir, which
must not run, the only voter of a new quorum with the record that it has; add the other two to it afterwards (lockstep pair add).

A change of the record that the lost two had agreed on and this one had not heard of is lost with them, and a lost voter that comes
back must never be started with its old directory: the two quorums would each let a node act. The recovery is written into a file
in --dir and into the log.`,
		Example: `  lockstep pair recover-quorum --dir /var/lib/lockstep/raft --by alice --reason "machines b and c burnt" --yes`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) (err error) {
			if o.Logger, _, err = process.NewLogger(env.Stderr, "info", "text"); err != nil {
				return err
			}
			if !yes {
				return fmt.Errorf("this can lose the last changes of the record, and must not be done while another "+
					"voter can come back: %w", cli.ErrNotConfirmed)
			}
			r, err := raft.Recover(o)
			if err != nil {
				return err
			}
			if err := env.Print.Object(r); err != nil {
				return err
			}
			return env.Print.Sentence("the voter in %s is the only one now; start it, and add the others", o.Dir)
		},
	}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "directory of the voter")
	cmd.Flags().StringVar(&o.Address, "address", "", "address of the voter from now on; default: as it was")
	cmd.Flags().StringVar(&o.By, "by", "", "who does it, for the record")
	cmd.Flags().StringVar(&o.Reason, "reason", "", "why, for the record")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	for _, name := range []string{"dir", "by", "reason"} {
		_ = cmd.MarkFlagRequired(name)
	}
	return cmd
}

// votersOfPair requests the voter addresses from the nodes, and whether the voters use TLS.
func votersOfPair(ctx context.Context, env *cli.Env) (voters []string, secured bool, err error) {
	addrs, err := env.Addresses()
	if err != nil {
		return nil, false, err
	}
	err = env.WithClient(ctx, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeout(ctx, min(env.Timeout, 2*time.Second))
		defer cancel()
		var last error
		for _, addr := range addrs {
			st, err := pairstatus.Ask(ctx, c, addr)
			if err != nil {
				last = err
				continue
			}
			switch kind := st.GetPair().GetCoordinator(); kind {
			case config.CoordinatorRaft:
			case "":
				last = fmt.Errorf("%s is no member of a pair, or has not read the pair's record yet", addr)
				continue
			default:
				return fmt.Errorf("the coordinator of this pair is %s, and has no voters", kind)
			}
			voters = st.GetPair().GetCoordinatorAddresses()
			secured = slices.ContainsFunc(st.GetCertificates(),
				func(c *pb.CertificateStatus) bool { return c.GetUse() == "raft" })
			if len(voters) > 0 {
				return nil
			}
		}
		return fmt.Errorf("no node says where the voters are: name them with --voters: %w", last)
	})
	return voters, secured, err
}
