// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
)

type token struct {
	Name      string     `json:"name"`
	Principal string     `json:"principal"`
	Groups    []string   `json:"groups"`
	ExpiresAt *time.Time `json:"expires_at"`
	CreatedBy string     `json:"created_by,omitempty"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	// Token is the secret token. It is set only when the token is created.
	Token string `json:"token,omitempty"`
}

func newToken(t *pb.AccessToken) token {
	j := token{
		Name: t.GetName(), Principal: t.GetPrincipal(), Groups: append([]string{}, t.GetGroups()...),
		CreatedBy: t.GetCreatedBy(),
	}
	if t.ExpiresAt != nil {
		j.ExpiresAt = new(t.GetExpiresAt().AsTime())
	}
	if t.CreatedAt != nil {
		j.CreatedAt = new(t.GetCreatedAt().AsTime())
	}
	return j
}

func tokenCommand(env *cli.Env) *cobra.Command {
	cmd := group("token", "Create, list and revoke tokens",
		`A token is a secret that authenticates a caller without a certificate. It is printed once, when it is
created: the pair stores only its SHA-256 hash.`)
	cmd.AddCommand(tokenCreateCommand(env), listPart(env, "token", "List tokens",
		"List tokens without their secrets. If a secret is lost, revoke the token and create a new one.",
		func(t table) []token { return t.Tokens }, tokenTable), tokenRevokeCommand(env))
	return cmd
}

func tokenCreateCommand(env *cli.Env) *cobra.Command {
	var principal string
	var groups []string
	var expires time.Duration
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a token and print it once",
		Long: `Create a token for a principal and print it once. The name is not secret; use it to revoke the token. To
grant rights to the principal, use lockstep access grant.`,
		Example: `  lockstep access token create ci --principal ci-bot --group deployers --expires 2160h
  lockstep access token create billing-1 --principal billing --output json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if principal == "" {
				return cli.Usage("--principal is required")
			}
			if expires < 0 {
				return cli.Usage("--expires must not be negative")
			}
			info := &pb.AccessToken{Name: args[0], Principal: principal, Groups: groups}
			if expires > 0 {
				info.ExpiresAt = timestamppb.New(time.Now().Add(expires).Truncate(time.Second))
			}
			secret := admin.NewToken()
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				made, err := admin.New(c).CreateToken(ctx, secret, info)
				if err != nil {
					return err
				}
				j := newToken(made)
				j.Token = secret
				if err := env.Print.Object(j); err != nil {
					return err
				}
				if env.Print.JSON() {
					return nil
				}
				if err := env.Print.Sentence("%s", secret); err != nil {
					return err
				}
				return env.Print.Sentence("created token %q for %s, expires: %s; the secret is not shown again",
					j.Name, j.Principal, stamp(j.ExpiresAt))
			})
		},
	}
	cmd.Flags().StringVar(&principal, "principal", "", "principal of the token")
	cmd.Flags().StringSliceVar(&groups, "group", nil, "groups of the principal; may be repeated")
	cmd.Flags().DurationVar(&expires, "expires", 0, "lifetime, such as 2160h; 0: unlimited")
	return cmd
}

func tokenTable(env *cli.Env, tokens []token) error {
	rows := make([][]any, 0, len(tokens))
	for _, t := range tokens {
		rows = append(rows, []any{t.Name, t.Principal, strings.Join(t.Groups, ", "), stamp(t.ExpiresAt), t.CreatedBy})
	}
	return env.Print.Table([]string{"Token", "Principal", "Groups", "Expires", "Created by"}, rows)
}

// listPart returns the command that lists one part of the access settings.
func listPart[T any](
	env *cli.Env, kind, short, long string, part func(table) []T, show func(*cli.Env, []T) error,
) *cobra.Command {
	path := "  lockstep access " + kind + " list"
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: short, Long: long,
		Example: path + "\n" + path + " --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withTable(cmd.Context(), env, func(t table) error {
				list := part(t)
				if len(list) == 0 {
					return env.Print.Result(list, "no %ss", kind)
				}
				if err := env.Print.Object(list); err != nil {
					return err
				}
				return show(env, list)
			})
		},
	}
}

type removedResult struct {
	Removed string `json:"removed"`
}

func tokenRevokeCommand(env *cli.Env) *cobra.Command {
	var lockOut bool
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "Revoke a token by its name",
		Long: `Revoke a token permanently. Access rules of its principal are kept. The command is refused if the caller would
lose its own operate right or, if it uses a token, the last valid token with this right. --lock-out overrides this
check.`,
		Example: "  lockstep access token revoke ci\n  lockstep access token revoke ci --output json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return removed(cmd.Context(), env, "token", args[0], func(ctx context.Context, c *client.Client) error {
				return admin.New(c).RevokeToken(ctx, args[0], lockOut)
			})
		},
	}
	addLockOut(cmd, &lockOut)
	return cmd
}

func removed(
	ctx context.Context, env *cli.Env, label, name string, remove func(context.Context, *client.Client) error,
) error {
	return env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		if err := remove(ctx, c); err != nil {
			return err
		}
		return env.Print.Result(removedResult{Removed: name}, "deleted %s %q", label, name)
	})
}

type role struct {
	Name   string   `json:"name"`
	Rights []string `json:"rights"`
}

func newRole(r *pb.AccessRole) role {
	return role{Name: r.GetName(), Rights: rightNames(r.GetRights())}
}

func roleTable(env *cli.Env, roles []role) error {
	rows := make([][]any, 0, len(roles))
	for _, r := range roles {
		rows = append(rows, []any{r.Name, strings.Join(r.Rights, ", ")})
	}
	return env.Print.Table([]string{"Role", "Rights"}, rows)
}

func roleCommand(env *cli.Env) *cobra.Command {
	cmd := group("role", "Manage roles (named sets of rights)",
		"A role is a named set of rights. Access rules can grant roles.")
	var lockOut bool
	put := &cobra.Command{
		Use: "put NAME RIGHT...", Short: "Create or replace a role",
		Long: `Create or replace a role. The change applies to all rules that refer to the role. The rights are publish,
consume, browse, manage, operate and audit. The command is refused if the caller would lose its own operate right,
unless --lock-out is given.`,
		Example: "  lockstep access role put deployer publish,manage\n  lockstep access role put operator operate audit",
		Args:    cobra.MinimumNArgs(2), //nolint:mnd // a name and a right
		RunE: func(cmd *cobra.Command, args []string) error {
			rights, err := parseRights(args[1:])
			if err != nil {
				return err
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				got, err := admin.New(c).PutRole(ctx, &pb.AccessRole{Name: args[0], Rights: rights}, lockOut)
				if err != nil {
					return err
				}
				j := newRole(got)
				return env.Print.Result(j, "role %q grants %s", j.Name, strings.Join(j.Rights, ", "))
			})
		},
	}
	addLockOut(put, &lockOut)
	list := listPart(env, "role", "List roles", "List each role with its rights.",
		func(t table) []role { return t.Roles }, roleTable)
	cmd.AddCommand(put, list, &cobra.Command{
		Use: "delete NAME", Short: "Delete an unused role",
		Long: `Delete a role. A role that a rule refers to cannot be deleted: first remove it from the rule with lockstep
access revoke.`,
		Example: "  lockstep access role delete deployer",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return removed(cmd.Context(), env, "role", args[0], func(ctx context.Context, c *client.Client) error {
				return admin.New(c).DeleteRole(ctx, args[0])
			})
		},
	})
	return cmd
}

// quota contains the limits of a pattern and its usage; a limit of 0 is unlimited.
type quota struct {
	Queue             string     `json:"queue"`
	Queues            uint64     `json:"queues"`
	Bytes             uint64     `json:"bytes"`
	MessagesPerSecond uint64     `json:"messages_per_second"`
	Connections       uint64     `json:"connections"`
	Used              *quotaUsed `json:"used,omitempty"`
}

type quotaUsed struct {
	Queues      uint64 `json:"queues"`
	Bytes       uint64 `json:"bytes"`
	Connections uint64 `json:"connections"`
}

func newQuota(q, used *pb.AccessQuota) quota {
	j := quota{
		Queue: q.GetQueue(), Queues: q.GetQueues(), Bytes: q.GetBytes(), MessagesPerSecond: q.GetMessagesPerSecond(),
		Connections: q.GetConnections(),
	}
	if used != nil {
		j.Used = &quotaUsed{used.GetQueues(), used.GetBytes(), used.GetConnections()}
	}
	return j
}

func quotaTable(env *cli.Env, quotas []quota) error {
	bound := func(used, limit uint64, text func(uint64) string) string {
		if limit == 0 {
			return "-"
		}
		return text(used) + " of " + text(limit)
	}
	count := output.Count[uint64]
	rows := make([][]any, 0, len(quotas))
	for _, q := range quotas {
		used := quotaUsed{}
		if q.Used != nil {
			used = *q.Used
		}
		rate := "-"
		if q.MessagesPerSecond > 0 {
			rate = output.Count(q.MessagesPerSecond) + "/s"
		}
		rows = append(rows, []any{
			q.Queue, bound(used.Queues, q.Queues, count), bound(used.Bytes, q.Bytes, output.Bytes[uint64]), rate,
			bound(used.Connections, q.Connections, count),
		})
	}
	return env.Print.Table([]string{"Quota", "Queues", "Bytes", "Messages", "Connections"}, rows)
}

func quotaCommand(env *cli.Env) *cobra.Command {
	cmd := group("quota", "Manage quotas of queue patterns",
		"A quota limits the total usage of all queues of a pair that match a name pattern. If several quotas match a "+
			"queue, all of them apply.")
	list := listPart(env, "quota", "List quotas and their usage",
		"List each quota with its usage.",
		func(t table) []quota { return t.Quotas }, quotaTable)
	cmd.AddCommand(quotaPutCommand(env), list, &cobra.Command{
		Use: "delete PATTERN", Short: "Delete the quota of a pattern",
		Long:    `Delete the quota with exactly this pattern. Queues and messages are kept.`,
		Example: "  lockstep access quota delete 'team-a/*'",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return removed(cmd.Context(), env, "quota", args[0], func(ctx context.Context, c *client.Client) error {
				return admin.New(c).DeleteQuota(ctx, args[0])
			})
		},
	})
	return cmd
}

func quotaPutCommand(env *cli.Env) *cobra.Command {
	var q quota
	var bytes string
	cmd := &cobra.Command{
		Use: "put PATTERN", Short: "Set the quota of a pattern",
		Long: `Limit the total usage of all queues that match a name pattern: * matches any text, and ? one byte. An
existing quota of the pattern is replaced: limits that are not given are unlimited. Publishes that exceed --rate
are delayed, and refused while the delay is more than 10 seconds. Requests that exceed another limit are refused.
Forwarded messages and dead letters count toward --bytes, but are not refused.`,
		Example: `  lockstep access quota put 'team-a/*' --queues 100 --bytes 10GiB --rate 5000 --connections 200
  lockstep access quota put '*' --bytes 100GiB --output json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if bytes != "" {
				n, err := config.ParseSize(bytes)
				if err != nil {
					return cli.Usage("--bytes: %v", err)
				}
				q.Bytes = uint64(n)
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				got, err := admin.New(c).PutQuota(ctx, &pb.AccessQuota{
					Queue: args[0], Queues: q.Queues, Bytes: q.Bytes, MessagesPerSecond: q.MessagesPerSecond,
					Connections: q.Connections,
				})
				if err != nil {
					return err
				}
				return env.Print.Result(newQuota(got, nil), "set the quota of %q", args[0])
			})
		},
	}
	cmd.Flags().Uint64Var(&q.Queues, "queues", 0, "maximum number of queues; 0: unlimited")
	cmd.Flags().StringVar(&bytes, "bytes", "",
		"maximum bytes of messages in the queues, such as 10GiB; empty: unlimited")
	cmd.Flags().Uint64Var(&q.MessagesPerSecond, "rate", 0,
		"maximum messages published per second to all queues together; 0: unlimited")
	cmd.Flags().Uint64Var(&q.Connections, "connections", 0,
		"maximum concurrent consumers and publish streams; 0: unlimited")
	return cmd
}
