// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// settings is the effective configuration of a queue. It is immutable.
//
// A queue stores only the fields set on the queue itself, not by a policy. The effective configuration is a function
// of these fields and the policies (INV-25).
type settings struct {
	txn.Config // effective

	fields         txn.ConfigMask // fields set on the queue itself
	mostDeliveries uint64         // limit of a policy on MaxDeliveries; 0 if none
	own            *txn.Config    // values of fields; nil if equal to those in Config
}

// noConfig is shared by all queues with the default configuration. It must not be modified.
var noConfig settings //nolint:gochecknoglobals // a constant, but for its address

func (c *settings) ownConfig() *txn.Config {
	if c.own != nil {
		return c.own
	}
	return &c.Config
}

// altered returns the configuration set on the queue itself after an OpAlterQueue, and the mask of the fields that are
// then set.
func (c *settings) altered(o *txn.Op) (own txn.Config, fields txn.ConfigMask) {
	return c.ownConfig().With(*o.Config, o.Mask), c.fields&^o.Mask | o.Own()
}

// policyTable contains the encoded policies by pattern, and lists for lookups.
type policyTable struct {
	entryTable[string]

	// defaults and limits contain the policies with defaults and with limits, in descending order of precedence.
	defaults, limits []rule
	// ends contains the dead-letter queues of policies, and all queues to which these queues dead-letter without a
	// policy. A policy does not set the dead-letter queue of a queue in ends.
	ends map[uint64]bool
	// shared contains the settings of queues without fields set on the queue itself.
	shared map[applied]*settings
}

// applied contains the policies that apply to a queue.
type applied struct {
	defaults, limits *Policy // nil for none
	last             bool    // the queue is in policyTable.ends
}

// Policy is a queue policy and its pattern of queue names.
type Policy struct {
	Pattern string
	txn.QueuePolicy
}

// rule is a policy prepared for lookups. Most lookups compare only prefix and suffix.
type rule struct {
	prefix, suffix string // common to all matching names
	policy         *Policy
}

func (r *rule) matches(name string) bool {
	return strings.HasPrefix(name, r.prefix) && strings.HasSuffix(name, r.suffix) &&
		txn.MatchGlob(r.policy.Pattern, name)
}

// Policies returns all policies, ordered by pattern.
func (s *State) Policies() (policies []Policy) {
	for _, pattern := range slices.Sorted(maps.Keys(s.policies.entries)) {
		policies = append(policies, s.policies.get(pattern))
	}
	return policies
}

// Own returns the configuration set on the queue itself, and the mask of the fields set. The value of a set field
// may be 0.
func (q *Queue) Own() (c txn.Config, fields txn.ConfigMask) {
	return *q.config.ownConfig(), q.config.fields
}

// Sources contains the patterns of the policies that set defaults and limits of a queue; "" for none.
type Sources struct {
	Defaults, Limits string
	// Limited contains the fields that the limits have changed.
	Limited txn.ConfigMask
}

// Sources returns the patterns of the policies that apply to a queue, and the fields that the limits have changed.
func (s *State) Sources(q *Queue) (from Sources) {
	p := s.policiesOf(q, q.name)
	if p.defaults != nil {
		from.Defaults = p.defaults.Pattern
	}
	if p.limits != nil {
		from.Limits = p.limits.Pattern
		p.limits = nil
		within := p.settings(q.config.ownConfig(), q.config.fields)
		for field, v := range q.config.Values {
			if field&txn.LimitFields != 0 && within.With(q.config.Config, field) != within.Config && v != 0 {
				from.Limited |= field
			}
		}
	}
	return from
}

// get returns the policy of a pattern, or a policy without options if the pattern has none.
func (t *policyTable) get(pattern string) Policy {
	p := Policy{Pattern: pattern}
	if e := t.entries[pattern]; e != nil {
		p.QueuePolicy, _ = txn.DecodeQueuePolicy(e.value) // was verified
	}
	return p
}

func (t *policyTable) compile() {
	t.defaults, t.limits, t.shared = nil, nil, make(map[applied]*settings)
	for pattern := range t.entries {
		p := t.get(pattern)
		r := rule{txn.LiteralPrefix(pattern), pattern[strings.LastIndexAny(pattern, "*?")+1:], &p}
		if p.Defaults.Fields() != 0 {
			t.defaults = append(t.defaults, r)
		}
		if p.Limits.Fields() != 0 {
			t.limits = append(t.limits, r)
		}
	}
	first := func(a, b rule) int {
		return cmp.Or(cmp.Compare(b.policy.Priority, a.policy.Priority), strings.Compare(a.policy.Pattern, b.policy.Pattern))
	}
	slices.SortFunc(t.defaults, first)
	slices.SortFunc(t.limits, first)
}

// lookup returns the policies that set the defaults and the limits of a queue; nil for none.
func (t *policyTable) lookup(name string) (defaults, limits *Policy) {
	find := func(list []rule) *Policy {
		for i := range list {
			if list[i].matches(name) {
				return list[i].policy
			}
		}
		return nil
	}
	return find(t.defaults), find(t.limits)
}

// policiesOf returns the policies of a queue; q is nil for a new queue.
func (s *State) policiesOf(q *Queue, name string) (p applied) {
	if t := &s.policies; len(t.defaults)+len(t.limits) > 0 {
		p.defaults, p.limits = t.lookup(name)
		p.last = q != nil && t.ends[q.id] && !mutate.Off("INV-25-policy-creates-a-dead-letter-cycle")
	}
	return p
}

// settings returns the settings of a queue. own is the configuration set on the queue itself, and fields the mask of
// the fields that are set.
func (p applied) settings(own *txn.Config, fields txn.ConfigMask) *settings {
	c := &settings{fields: fields}
	var defaults, limits *txn.QueuePolicy
	if p.defaults != nil {
		defaults = &p.defaults.QueuePolicy
	}
	if p.limits != nil {
		limits, c.mostDeliveries = &p.limits.QueuePolicy, p.limits.Limits.MaxDeliveries
	}
	if c.Config = own.Apply(fields, defaults, limits, p.last); c.Config != *own {
		values := *own
		c.own = &values
	}
	return c
}

// settingsOf returns the settings of a queue. own is the configuration set on the queue itself, and fields the mask of
// the fields that are set. q is nil for a new queue. Queues without set fields share their settings.
func (s *State) settingsOf(q *Queue, name string, own *txn.Config, fields txn.ConfigMask) *settings {
	p := s.policiesOf(q, name)
	switch {
	case fields != 0:
		return p.settings(own, fields)
	case p.defaults == nil && p.limits == nil:
		return &noConfig
	}
	c := s.policies.shared[p]
	if c == nil {
		c = p.settings(own, fields)
		s.policies.shared[p] = c
	}
	return c
}

// checkTable verifies an operation on the access table, the policies or the fleet.
func (s *State) checkTable(o *txn.Op) txn.Code {
	switch o.Code { //nolint:exhaustive // the caller handles the others
	case txn.OpAccess:
		return s.checkAccess(o)
	case txn.OpFleet:
		return s.checkFleet(o)
	case txn.OpOwn:
		return s.checkOwn(o)
	}
	return s.checkPolicy(o)
}

func (s *State) checkPolicy(o *txn.Op) txn.Code {
	t := &s.policies
	p, set := o.Policy()
	exists := t.entries[string(o.Name)] != nil
	switch target := p.Defaults.DeadLetter; {
	case !set && !exists:
		return txn.ErrPolicyNotFound
	case set && !exists && len(t.entries) >= s.limits.policies:
		return txn.ErrTooManyPolicies
	case target != txn.NoQueue && s.queues.get(target) == nil:
		return txn.ErrQueueNotFound
	case target != txn.NoQueue && s.queues.get(target).checkServed() != txn.OK:
		return txn.ErrMoved
	}
	return s.checkFencedPolicy(string(o.Name))
}

func (s *State) changePolicy(o *txn.Op) {
	t, pattern := &s.policies, string(o.Name)
	s.digest = mix(mix(s.digest, uint64(o.Code)),
		uint64(crc32.Checksum(o.Name, s.crc))<<32|uint64(crc32.Checksum(o.Raw, s.crc)))
	addReferences(s.deadLettersTo, t.get(pattern).Defaults.DeadLetter, -1)
	if p, set := o.Policy(); set {
		t.set(pattern, o.Raw)
		addReferences(s.deadLettersTo, p.Defaults.DeadLetter, 1)
	} else {
		t.remove(pattern)
	}
	t.compile()
	s.updateEnds()
	s.matching(pattern, s.reconfigure)
}

func (s *State) matching(pattern string, yield func(q *Queue)) {
	prefix := txn.LiteralPrefix(pattern)
	s.names.from(prefix, func(q *Queue) bool {
		if !strings.HasPrefix(q.name, prefix) {
			return false
		}
		if txn.MatchGlob(pattern, q.name) {
			yield(q)
		}
		return true
	})
}

// reconfigure applies the current policies to a queue.
func (s *State) reconfigure(q *Queue) {
	c := s.settingsOf(q, q.name, q.config.ownConfig(), q.config.fields)
	if c.Config == q.config.Config && c.mostDeliveries == q.config.mostDeliveries {
		q.config = c
		return
	}
	s.mark(q)
	s.configure(q, c)
}

// deadLettersChanged updates policyTable.ends if it contains q. It must be called after the dead-letter queue set
// on q itself or on one of its subscriptions has changed.
func (s *State) deadLettersChanged(q *Queue) {
	if s.policies.ends[q.id] {
		s.updateEnds()
	}
}

func (s *State) updateEnds() {
	before := s.policies.ends
	s.policies.ends = s.findEnds()
	ids := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(s.policies.ends))
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if q := s.queues.get(id); q != nil && before[id] != s.policies.ends[id] {
			s.reconfigure(q)
		}
	}
}

func (s *State) findEnds() map[uint64]bool {
	ends := make(map[uint64]bool)
	var list []uint64
	for i := range s.policies.defaults {
		if id := s.policies.defaults[i].policy.Defaults.DeadLetter; id != txn.NoQueue {
			list = append(list, id)
		}
	}
	for len(list) > 0 {
		id := list[len(list)-1]
		list = list[:len(list)-1]
		q := s.queues.get(id)
		if ends[id] || q == nil {
			continue
		}
		ends[id] = true
		list = slices.AppendSeq(list, q.ownDeadLetters)
	}
	return ends
}

func policyKey(dst []byte, pattern string) []byte { return append(append(dst, keyPolicy), pattern...) }

func (l *Loader) policy(k, v *cursor) {
	pattern := string(k.b)
	k.b = nil
	v.version()
	value := slices.Clone(v.b)
	v.b = nil
	if v.err != nil {
		return
	}
	p, err := txn.DecodeQueuePolicy(value)
	if v.err = err; err != nil {
		return
	}
	t := &l.s.policies
	if txn.CheckPattern(pattern) != nil || t.entries[pattern] != nil || len(t.entries) >= MaxPolicies {
		k.fail("invalid or duplicate policy")
		return
	}
	t.entries[pattern] = &tableEntry{value: value, stored: true}
	addReferences(l.s.deadLettersTo, p.Defaults.DeadLetter, 1)
}

// finishPolicies computes the effective configurations of a loaded state.
func (s *State) finishPolicies() error {
	t := &s.policies
	if len(t.entries) == 0 {
		return nil
	}
	t.compile()
	for i := range t.defaults {
		p := t.defaults[i].policy
		if id := p.Defaults.DeadLetter; id != txn.NoQueue && s.queues.get(id) == nil {
			return fmt.Errorf("%w: policy %.40q: dead-letter queue %d is missing", ErrCorrupt, p.Pattern, id)
		}
	}
	t.ends = s.findEnds()
	for q := range s.Queues {
		s.setConfig(q, s.settingsOf(q, q.name, q.config.ownConfig(), q.config.fields))
	}
	return nil
}

func (t *policyTable) check(s *State, bad func(string, ...any)) {
	if want := s.findEnds(); !maps.Equal(want, t.ends) {
		bad("dead-letter queues of policies lead to %d queues, counted %d", len(want), len(t.ends))
	}
	for _, p := range s.Policies() {
		if id := p.Defaults.DeadLetter; id != txn.NoQueue && s.queues.get(id) == nil {
			bad("policy %.40q: dead-letter queue %d is missing", p.Pattern, id)
		}
	}
}
