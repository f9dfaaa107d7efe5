// SPDX-License-Identifier: Apache-2.0

package definitions

import (
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	createRole = "create-role"
	alterRole  = "alter-role"
	deleteRole = "delete-role"
	createRule = "create-access-rule"
	alterRule  = "alter-access-rule"
	deleteRule = "delete-access-rule"
)

const rightPrefix = "ACCESS_RIGHT_"

// subject returns the text that identifies an access rule in output and comparisons: its principal or group and, if
// set, its queue.
func subject(r *pb.AccessRule) string {
	text := r.GetPrincipal()
	if r.GetGroup() != "" {
		text = "group " + r.GetGroup()
	}
	if r.GetQueue() != "" {
		text += " on " + r.GetQueue()
	}
	return text
}

func rightsText(rights []pb.AccessRight) (names []string) {
	for _, r := range slices.Sorted(slices.Values(rights)) {
		names = append(names, strings.ToLower(strings.TrimPrefix(r.String(), rightPrefix)))
	}
	return slices.Compact(names)
}

func grants(r *pb.AccessRule) []string {
	all := rightsText(r.GetRights())
	for _, name := range slices.Sorted(slices.Values(r.GetRoles())) {
		all = append(all, "role "+name)
	}
	return all
}

func ruleObject(r *pb.AccessRule) object {
	o := object{}
	for _, e := range []struct{ key, value string }{
		{"principal", r.GetPrincipal()}, {"group", r.GetGroup()}, {"queue", r.GetQueue()},
	} {
		if e.value != "" {
			o = append(o, entry{e.key, e.value})
		}
	}
	if len(r.GetRights()) > 0 {
		o = append(o, entry{"rights", rightsText(r.GetRights())})
	}
	if len(r.GetRoles()) > 0 {
		o = append(o, entry{"roles", slices.Sorted(slices.Values(r.GetRoles()))})
	}
	return o
}

func roleObject(r *pb.AccessRole) object {
	return object{{"name", r.GetName()}, {"rights", append([]string{}, rightsText(r.GetRights())...)}}
}

func (d *decoder) rights(n *yaml.Node) (rights []pb.AccessRight) {
	for _, e := range d.sequence(n) {
		name := d.scalar(e)
		right, known := pb.AccessRight_value[rightPrefix+strings.ToUpper(name)]
		if !known || right == 0 || name != strings.ToLower(name) {
			d.fail(e, "unknown right %q; the rights are publish, consume, browse, manage, operate and audit", name)
		}
		rights = append(rights, pb.AccessRight(right))
	}
	return rights
}

func (d *decoder) accessRule(n *yaml.Node) *pb.AccessRule {
	r := &pb.AccessRule{}
	d.mapping(n, "an access rule", func(key string, v *yaml.Node) bool {
		switch key {
		case "principal":
			r.Principal = d.scalar(v)
		case "group":
			r.Group = d.scalar(v)
		case "queue":
			r.Queue = d.scalar(v)
		case "rights":
			r.Rights = d.rights(v)
		case "roles":
			for _, e := range d.sequence(v) {
				r.Roles = append(r.Roles, d.scalar(e))
			}
		default:
			return false
		}
		return true
	})
	if (r.GetPrincipal() == "") == (r.GetGroup() == "") {
		d.fail(n, "an access rule requires either principal or group")
	}
	return r
}

func (d *decoder) role(n *yaml.Node) *pb.AccessRole {
	r := &pb.AccessRole{}
	d.mapping(n, "a role", func(key string, v *yaml.Node) bool {
		switch key {
		case "name":
			r.Name = d.scalar(v)
		case "rights":
			r.Rights = d.rights(v)
		default:
			return false
		}
		return true
	})
	if r.GetName() == "" {
		d.fail(n, "missing role name")
	}
	return r
}

func sortRules(rules []*pb.AccessRule) {
	slices.SortFunc(rules, func(a, b *pb.AccessRule) int { return cmp.Compare(subject(a), subject(b)) })
}

func sortRoles(roles []*pb.AccessRole) {
	slices.SortFunc(roles, func(a, b *pb.AccessRole) int { return cmp.Compare(a.GetName(), b.GetName()) })
}

// access adds the changes of roles and access rules. If the file lacks the key access or roles, the field of wanted is
// nil, and nothing of that kind is deleted. Roles are created before the rules that contain them, and deleted after the
// rules.
func (p *plan) access(wanted, there *settings) {
	for _, r := range wanted.roles {
		action, from := createRole, "-"
		if at := slices.IndexFunc(there.roles, func(o *pb.AccessRole) bool { return o.GetName() == r.GetName() }); at >= 0 {
			action, from = alterRole, strings.Join(rightsText(there.roles[at].GetRights()), " ")
		}
		if to := strings.Join(rightsText(r.GetRights()), " "); from != to {
			p.steps = append(p.steps, step{Action: action, Role: r.GetName(), role: r, Changes: []change{{"rights", from, to}}})
		}
	}
	for _, r := range operatorsFirst(wanted) {
		action, from, have := createRule, "-", (*pb.AccessRule)(nil)
		if at := slices.IndexFunc(there.access, func(o *pb.AccessRule) bool { return subject(o) == subject(r) }); at >= 0 {
			have = there.access[at]
			action, from = alterRule, strings.Join(grants(have), ", ")
		}
		if to := strings.Join(grants(r), ", "); from != to {
			p.steps = append(p.steps, step{
				Action: action, Rule: subject(r), rule: r, was: have, Changes: []change{{"grants", from, to}},
			})
		}
	}
	for _, r := range there.access {
		named := func(o *pb.AccessRule) bool { return subject(o) == subject(r) }
		if wanted.access != nil && !slices.ContainsFunc(wanted.access, named) {
			p.prune = append(p.prune, step{Action: deleteRule, Rule: subject(r), rule: r})
		}
	}
	for _, r := range there.roles {
		named := func(o *pb.AccessRole) bool { return o.GetName() == r.GetName() }
		if wanted.roles != nil && !slices.ContainsFunc(wanted.roles, named) {
			p.prune = append(p.prune, step{Action: deleteRole, Role: r.GetName(), role: r})
		}
	}
}

// operatorsFirst returns the access rules of a file, those with the operate right first: otherwise, the first rule
// could deny the following changes.
func operatorsFirst(s *settings) []*pb.AccessRule {
	roles := map[string]bool{}
	for _, r := range s.roles {
		roles[r.GetName()] = slices.Contains(r.GetRights(), pb.AccessRight_ACCESS_RIGHT_OPERATE)
	}
	rank := func(r *pb.AccessRule) int {
		if slices.Contains(r.GetRights(), pb.AccessRight_ACCESS_RIGHT_OPERATE) ||
			slices.ContainsFunc(r.GetRoles(), func(name string) bool { return roles[name] }) {
			return 0
		}
		return 1
	}
	return slices.SortedStableFunc(slices.Values(s.access), func(a, b *pb.AccessRule) int {
		return cmp.Compare(rank(a), rank(b))
	})
}

// without returns the rights and roles of a that b does not contain, as a rule with the same subject.
func without(a, b *pb.AccessRule) *pb.AccessRule {
	r := &pb.AccessRule{Principal: a.GetPrincipal(), Group: a.GetGroup(), Queue: a.GetQueue()}
	for _, right := range a.GetRights() {
		if !slices.Contains(b.GetRights(), right) {
			r.Rights = append(r.Rights, right)
		}
	}
	for _, role := range a.GetRoles() {
		if !slices.Contains(b.GetRoles(), role) {
			r.Roles = append(r.Roles, role)
		}
	}
	return r
}
