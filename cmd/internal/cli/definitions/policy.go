// SPDX-License-Identifier: Apache-2.0

package definitions

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/queueconfig"
)

// policyFields returns the options that a policy can set, and those that it can limit.
func policyFields() (defaults, limits []queueconfig.Field) {
	for _, f := range queueconfig.Fields() {
		if f.Name != "priorities" {
			defaults = append(defaults, f)
		}
		if slices.Contains(admin.LimitFields(), f.Name) {
			limits = append(limits, f)
		}
	}
	return defaults, limits
}

func policyObject(p *admin.Policy) object {
	o := object{{"pattern", p.Pattern}}
	if p.Priority != 0 {
		o = append(o, entry{"priority", uint64(p.Priority)})
	}
	values := func(c admin.QueueConfig) (o object) {
		for _, f := range queueconfig.Fields() {
			if v := f.Get(&c); v != nil {
				o = append(o, entry{f.Name, v})
			}
		}
		return o
	}
	o = append(o, values(p.Defaults)...)
	if limits := values(p.Limits.Config()); len(limits) > 0 {
		o = append(o, entry{"limits", limits})
	}
	return o
}

func (d *decoder) policy(n *yaml.Node) (p admin.Policy) {
	defaults, limits := policyFields()
	d.mapping(n, "a policy", func(key string, v *yaml.Node) bool {
		switch key {
		case "pattern":
			p.Pattern = d.scalar(v)
		case "priority":
			priority, err := strconv.ParseUint(d.scalar(v), 10, 32)
			if p.Priority = uint32(priority); err != nil {
				d.fail(v, "priority is %q; use an integer", v.Value)
			}
		case "limits":
			var c admin.QueueConfig
			d.mapping(v, "limits", func(key string, v *yaml.Node) bool { return d.field(limits, key, &c, v) })
			p.Limits = admin.LimitsOf(c)
		default:
			return d.field(defaults, key, &p.Defaults, v)
		}
		return true
	})
	if p.Pattern == "" {
		d.fail(n, "missing pattern of a policy")
	}
	return p
}

func policyChanges(from, to *admin.Policy) (changes []change) {
	add := func(name, a, b string) {
		if a != b {
			changes = append(changes, change{name, a, b})
		}
	}
	priority := func(p *admin.Policy) string { return cmp.Or(fmt.Sprint(p.Priority), "0") }
	add("priority", priority(from), priority(to))
	defaults, limits := policyFields()
	for _, f := range defaults {
		add(f.Name, f.Text(&from.Defaults), f.Text(&to.Defaults))
	}
	for _, f := range limits {
		a, b := from.Limits.Config(), to.Limits.Config()
		add("limits."+f.Name, f.Text(&a), f.Text(&b))
	}
	return changes
}

// policies adds the changes of policies. Both lists are sorted by pattern. wanted is nil if the file does not have the
// key policies: no policy is then deleted.
func (p *plan) policies(wanted, there []admin.Policy) {
	find := func(list []admin.Policy, pattern string) *admin.Policy {
		at := slices.IndexFunc(list, func(p admin.Policy) bool { return p.Pattern == pattern })
		if at < 0 {
			return nil
		}
		return &list[at]
	}
	for _, want := range wanted {
		action, have := alterPolicy, find(there, want.Pattern)
		if have == nil {
			action, have = createPolicy, &admin.Policy{}
		}
		if changes := policyChanges(have, &want); len(changes) > 0 || action == createPolicy {
			p.steps = append(p.steps, step{Action: action, Policy: want.Pattern, Changes: changes, policy: want})
		}
	}
	for _, have := range there {
		if wanted != nil && find(wanted, have.Pattern) == nil {
			p.prune = append(p.prune, step{Action: deletePolicy, Policy: have.Pattern})
		}
	}
}
