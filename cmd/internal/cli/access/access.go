// SPDX-License-Identifier: Apache-2.0

// Package access implements the commands for access control: rules, roles, tokens and quotas.
package access

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Command returns the `lockstep access` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := group("access", "Manage access rules, roles, tokens and quotas",
		`Until the first rule exists, all clients have all rights, unless access.mode is deny. Afterwards, requests
that no rule allows are denied, even if all rules are revoked later. The principals in access.operators always have
all rights. In a fleet, each pair has its own rules, roles, tokens and quotas. The commands use the pair in --addr.

Queue rights are publish, consume, browse and manage. Pair rights are operate and audit. In principals, groups and
queue patterns of rules, * matches any text, and ? one byte. Wildcards do not match the principal anonymous.`)
	cmd.GroupID = "operate"
	cmd.AddCommand(
		grantCommand(env), revokeCommand(env), listCommand(env), testCommand(env), whoAmICommand(env), resetCommand(env),
		tokenCommand(env), roleCommand(env), quotaCommand(env),
	)
	return cmd
}

func group(use, short, long string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Long: long, Args: cli.KnownSubcommand, RunE: cli.NeedsSubcommand}
}

func parseRights(texts []string) (rights []pb.AccessRight, err error) {
	for _, text := range texts {
		for name := range strings.SplitSeq(text, ",") {
			n, known := pb.AccessRight_value["ACCESS_RIGHT_"+strings.ToUpper(strings.TrimSpace(name))]
			if !known || n == 0 || name != strings.ToLower(name) {
				return nil, cli.Usage("unknown right %q; the rights are publish, consume, browse, manage, operate and audit",
					name)
			}
			rights = append(rights, pb.AccessRight(n))
		}
	}
	return rights, nil
}

func rightNames(rights []pb.AccessRight) []string {
	names := make([]string, 0, len(rights))
	for _, r := range rights {
		names = append(names, strings.ToLower(strings.TrimPrefix(r.String(), "ACCESS_RIGHT_")))
	}
	return names
}

type rule struct {
	Principal string     `json:"principal,omitempty"`
	Group     string     `json:"group,omitempty"`
	Queue     string     `json:"queue,omitempty"`
	Rights    []string   `json:"rights"`
	Roles     []string   `json:"roles"`
	ChangedBy string     `json:"changed_by,omitempty"`
	ChangedAt *time.Time `json:"changed_at,omitempty"`
}

func newRule(r *pb.AccessRule) rule {
	j := rule{
		Principal: r.GetPrincipal(), Group: r.GetGroup(), Queue: r.GetQueue(), Rights: rightNames(r.GetRights()),
		Roles: append([]string{}, r.GetRoles()...), ChangedBy: r.GetChangedBy(),
	}
	if r.ChangedAt != nil {
		j.ChangedAt = new(r.GetChangedAt().AsTime())
	}
	return j
}

func newRules(rules []*pb.AccessRule) []rule {
	list := make([]rule, 0, len(rules))
	for _, r := range rules {
		list = append(list, newRule(r))
	}
	return list
}

func (r *rule) who() string {
	if r.Group != "" {
		return "group " + r.Group
	}
	return r.Principal
}

func (r *rule) grants() string {
	all := append([]string{}, r.Rights...)
	for _, name := range r.Roles {
		all = append(all, "role "+name)
	}
	return strings.Join(all, ", ")
}

func ruleTable(env *cli.Env, rules []rule) error {
	if len(rules) == 0 {
		return env.Print.Sentence("no access rules; to create one, use lockstep access grant")
	}
	rows := make([][]any, 0, len(rules))
	for i := range rules {
		rows = append(rows, []any{rules[i].who(), rules[i].grants(), cmp.Or(rules[i].Queue, "-")})
	}
	return env.Print.Table([]string{"Principal", "Grants", "Queues"}, rows)
}

type ruleFlags struct {
	group, queue string
	roles        []string
	lockOut      bool
}

func (f *ruleFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.group, "group", "", "group pattern, instead of the principal")
	cmd.Flags().StringVar(&f.queue, "queue", "",
		"queue pattern of the rule, such as 'orders.*'; required for rights on queues")
	cmd.Flags().StringSliceVar(&f.roles, "role", nil, "roles, in addition to rights; may be repeated")
	addLockOut(cmd, &f.lockOut)
}

func addLockOut(cmd *cobra.Command, lockOut *bool) {
	cmd.Flags().BoolVar(lockOut, "lock-out", false, "execute the change even if it locks the caller out")
}

// rule parses [PRINCIPAL] [RIGHT...]; the principal is omitted if there is a group.
func (f *ruleFlags) rule(args []string) (*pb.AccessRule, error) {
	r := &pb.AccessRule{Group: f.group, Queue: f.queue, Roles: f.roles}
	if f.group == "" {
		if len(args) == 0 {
			return nil, cli.Usage("a principal or --group is required")
		}
		r.Principal, args = args[0], args[1:]
	}
	var err error
	r.Rights, err = parseRights(args)
	return r, err
}

func grantCommand(env *cli.Env) *cobra.Command {
	var f ruleFlags
	cmd := &cobra.Command{
		Use: "grant [PRINCIPAL] [RIGHT...]", Short: "Grant rights or roles to a principal or group",
		Long: `Grant rights or roles to a principal or a group. The command adds them to the rule with this principal or
group and this --queue, or creates the rule. After the first rule, requests that no rule allows are denied, except
those of the principals in access.operators. The command is refused if the caller itself would not have the operate
right afterwards, unless --lock-out is given.

The rights publish, consume, browse and manage require --queue. The rights operate and audit apply to the pair.`,
		Example: `  lockstep access grant alice operate,audit
  lockstep access grant billing publish --queue 'orders.*'
  lockstep access grant --group developers browse --queue '*'
  lockstep access grant ci-bot --role deployer --queue 'team-a/*'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			asked, err := f.rule(args)
			if err != nil {
				return err
			}
			rights := asked.GetRights()
			if f.queue != "" && len(asked.GetRoles()) == 0 && len(rights) > 0 && !slices.ContainsFunc(rights, ofQueue) {
				return cli.Usage("operate and audit are rights on the pair: omit --queue")
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				got, err := admin.New(c).Grant(ctx, asked, f.lockOut)
				if err != nil {
					return err
				}
				j := newRule(got)
				return env.Print.Result(j, "%s has %s%s", j.who(), j.grants(), onQueues(j.Queue))
			})
		},
	}
	f.add(cmd)
	return cmd
}

func ofQueue(right pb.AccessRight) bool {
	return right != pb.AccessRight_ACCESS_RIGHT_OPERATE && right != pb.AccessRight_ACCESS_RIGHT_AUDIT
}

func onQueues(pattern string) string {
	if pattern == "" {
		return ""
	}
	return fmt.Sprintf(" on queues %q", pattern)
}

func revokeCommand(env *cli.Env) *cobra.Command {
	var f ruleFlags
	cmd := &cobra.Command{
		Use: "revoke [PRINCIPAL] [RIGHT...]", Short: "Revoke rights or roles",
		Long: `Revoke rights or roles from a principal or a group. Only the rule with exactly this principal or group and
this --queue changes: other rules can still grant the rights. Without rights and roles, the whole rule is deleted. The
command is refused if the caller would lose its own operate right, unless --lock-out is given.`,
		Example: `  lockstep access revoke billing publish --queue 'orders.*'
  lockstep access revoke --group developers --queue '*'
  lockstep access revoke alice operate --output json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			asked, err := f.rule(args)
			if err != nil {
				return err
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				left, err := admin.New(c).Revoke(ctx, asked, f.lockOut)
				if err != nil {
					return err
				}
				if left == nil {
					left = &pb.AccessRule{Principal: asked.GetPrincipal(), Group: asked.GetGroup(), Queue: asked.GetQueue()}
				}
				j := newRule(left)
				if err := env.Print.Object(j); err != nil {
					return err
				}
				if len(j.Rights)+len(j.Roles) == 0 {
					return env.Print.Sentence("deleted the rule of %s%s", j.who(), onQueues(j.Queue))
				}
				return env.Print.Sentence("%s still has %s%s", j.who(), j.grants(), onQueues(j.Queue))
			})
		},
	}
	f.add(cmd)
	return cmd
}

type table struct {
	Version   uint64   `json:"version"`
	Mode      string   `json:"mode"`
	Operators []string `json:"operators"`
	Rules     []rule   `json:"rules"`
	Roles     []role   `json:"roles"`
	Tokens    []token  `json:"tokens"`
	Quotas    []quota  `json:"quotas"`
}

func newTable(r *pb.ListAccessResponse) table {
	t := table{
		Version: r.GetVersion(), Mode: r.GetMode(), Operators: append([]string{}, r.GetOperators()...),
		Rules: newRules(r.GetRules()), Roles: []role{}, Tokens: []token{}, Quotas: []quota{},
	}
	for _, one := range r.GetRoles() {
		t.Roles = append(t.Roles, newRole(one))
	}
	for _, one := range r.GetTokens() {
		t.Tokens = append(t.Tokens, newToken(one))
	}
	for i, one := range r.GetQuotas() {
		var used *pb.AccessQuota
		if i < len(r.GetUsed()) {
			used = r.GetUsed()[i]
		}
		t.Quotas = append(t.Quotas, newQuota(one, used))
	}
	return t
}

func withTable(ctx context.Context, env *cli.Env, show func(t table) error) error {
	return env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		all, err := admin.New(c).ListAccess(ctx)
		if err != nil {
			return err
		}
		return show(newTable(all))
	})
}

func listCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List rules, roles, tokens and quotas",
		Long: `List all rules, roles, tokens without their secrets, and quotas with their usage. The command requires the
operate right. To list your own rights, use lockstep access whoami.`,
		Example: "  lockstep access list\n  lockstep access list --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withTable(cmd.Context(), env, func(t table) error {
				if err := env.Print.Object(t); err != nil {
					return err
				}
				if len(t.Operators) > 0 {
					if err := env.Print.Sentence("access.operators (all rights): %s",
						strings.Join(t.Operators, ", ")); err != nil {
						return err
					}
				}
				if err := ruleTable(env, t.Rules); err != nil {
					return err
				}
				return showRest(env, &t)
			})
		},
	}
}

func showRest(env *cli.Env, t *table) error {
	if len(t.Roles) > 0 {
		if err := roleTable(env, t.Roles); err != nil {
			return err
		}
	}
	if len(t.Tokens) > 0 {
		if err := tokenTable(env, t.Tokens); err != nil {
			return err
		}
	}
	if len(t.Quotas) > 0 {
		return quotaTable(env, t.Quotas)
	}
	return nil
}

type answer struct {
	Allowed   bool     `json:"allowed"`
	Open      bool     `json:"open"`
	Operators []string `json:"operators"`
	Rules     []rule   `json:"rules"`
}

func testCommand(env *cli.Env) *cobra.Command {
	var principal string
	var groups []string
	cmd := &cobra.Command{
		Use: "test RIGHT [QUEUE]", Short: "List the rules that grant a right",
		Long: `List the rules and access.operators that grant a right. With --principal or --group, report whether a caller
with this principal and these groups has the right; the exit code is 0 even if it does not. The command requires the
operate right. The rights publish, consume, browse and manage require QUEUE.`,
		Example: `  lockstep access test publish orders.eu
  lockstep access test publish orders.eu --principal billing
  lockstep access test operate --principal alice --group ops --output json`,
		Args: cobra.RangeArgs(1, 2), //nolint:mnd // a right and a queue
		RunE: func(cmd *cobra.Command, args []string) error {
			rights, err := parseRights(args[:1])
			if err == nil && len(rights) != 1 {
				err = cli.Usage("exactly one right is required")
			}
			if err != nil {
				return err
			}
			req := &pb.TestAccessRequest{Right: rights[0], Principal: principal, Groups: groups}
			label := args[0]
			if len(args) > 1 {
				req.Queue = args[1]
				label += " " + args[1]
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				got, err := admin.New(c).TestAccess(ctx, req)
				if err != nil {
					return err
				}
				return showAnswer(env, req, label, got)
			})
		},
	}
	cmd.Flags().StringVar(&principal, "principal", "", "principal of the caller to test")
	cmd.Flags().StringSliceVar(&groups, "group", nil, "groups of the caller to test")
	return cmd
}

func showAnswer(env *cli.Env, req *pb.TestAccessRequest, label string, got *pb.TestAccessResponse) error {
	j := answer{
		Allowed: got.GetAllowed(), Open: got.GetOpen(), Operators: append([]string{}, got.GetOperators()...),
		Rules: newRules(got.GetRules()),
	}
	if err := env.Print.Object(j); err != nil {
		return err
	}
	if env.Print.JSON() {
		return nil
	}
	switch {
	case j.Open:
		return env.Print.Sentence("all clients may %s: no access rules exist", label)
	case !j.Allowed && req.GetPrincipal()+strings.Join(req.GetGroups(), "") != "":
		return env.Print.Sentence("no: %s may not %s",
			cmp.Or(req.GetPrincipal(), "group "+strings.Join(req.GetGroups(), ", ")), label)
	case !j.Allowed:
		return env.Print.Sentence("no client may %s", label)
	}
	if len(j.Operators) > 0 {
		if err := env.Print.Sentence("access.operators may %s: %s", label, strings.Join(j.Operators, ", ")); err != nil {
			return err
		}
	}
	if len(j.Rules) == 0 {
		return nil
	}
	return ruleTable(env, j.Rules)
}

type self struct {
	Principal string   `json:"principal"`
	Groups    []string `json:"groups"`
	Method    string   `json:"method"`
	Open      bool     `json:"open"`
	Operator  bool     `json:"bootstrap_operator"`
	Rules     []rule   `json:"rules"`
}

func whoAmICommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show the caller's identity and rights",
		Long: `Show the caller's principal and groups, how it was authenticated, and the rules that apply to it. The command
requires no right.`,
		Example: "  lockstep access whoami\n  lockstep access whoami --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				got, err := admin.New(c).WhoAmI(ctx)
				if err != nil {
					return err
				}
				j := self{
					Principal: got.GetPrincipal(), Groups: append([]string{}, got.GetGroups()...), Method: got.GetMethod(),
					Open: got.GetOpen(), Operator: got.GetBootstrapOperator(), Rules: newRules(got.GetRules()),
				}
				if err := env.Print.Object(j); err != nil {
					return err
				}
				if env.Print.JSON() {
					return nil
				}
				identity := j.Principal + ", not authenticated"
				if j.Method != "none" {
					identity = fmt.Sprintf("%s, authenticated by %s", j.Principal, j.Method)
				}
				if len(j.Groups) > 0 {
					identity += ", groups: " + strings.Join(j.Groups, ", ")
				}
				if err := env.Print.Sentence("%s", identity); err != nil {
					return err
				}
				switch {
				case j.Open:
					return env.Print.Sentence("all rights: no access rules exist")
				case j.Operator:
					return env.Print.Sentence("all rights: listed in access.operators")
				case len(j.Rules) == 0:
					return env.Print.Sentence("no rights: no access rule applies; operators grant rights with lockstep access grant")
				}
				return ruleTable(env, j.Rules)
			})
		},
	}
}

func stamp(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return output.LocalTime(*t)
}
