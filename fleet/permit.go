// SPDX-License-Identifier: Apache-2.0

package fleet

// RuleOf returns the placement rule that applies to a queue name. found is false if no rule matches.
func RuleOf(rules []Rule, queue string) (rule Rule, found bool) { return match(rules, queue) }

// Permits reports whether the rule permits queues on a pair, regardless of the state and the load of the pair.
func (r Rule) Permits(m Member) bool { return r.permits(m) }
