// SPDX-License-Identifier: Apache-2.0

package definitions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	createPlacement = "create-placement-rule"
	alterPlacement  = "alter-placement-rule"
	deletePlacement = "delete-placement-rule"
)

// ownerInterval is the interval at which the owner of a new queue is requested, until the node's copy of the directory
// contains it.
const ownerInterval = 100 * time.Millisecond

// findTimeout limits each request to a node for the state of the fleet, and the status queries that find the nodes of a
// pair.
const findTimeout = 5 * time.Second

var errNeedsFleet = errors.New("the file contains definitions of a fleet: add --fleet")

// settings are the objects that belong to a pair, except for its queues. A list is nil if the file does not have its
// key.
type settings struct {
	policies  []admin.Policy
	access    []*pb.AccessRule
	roles     []*pb.AccessRole
	schedules []*pb.Schedule
}

// pairSettings are the objects that differ from those of other pairs.
type pairSettings struct {
	settings

	name string
}

// ofFleet reports whether the document requires --fleet.
func (d *document) ofFleet() bool {
	return d.placements != nil || d.pairs != nil ||
		slices.ContainsFunc(d.queues, func(q queue) bool { return q.pair != "" })
}

func (s *settings) entries() (o object) {
	add := func(key string, present bool, n int, at func(i int) object) {
		if !present {
			return
		}
		list := []object{}
		for i := range n {
			list = append(list, at(i))
		}
		o = append(o, entry{key, list})
	}
	add("policies", s.policies != nil, len(s.policies), func(i int) object { return policyObject(&s.policies[i]) })
	add("roles", s.roles != nil, len(s.roles), func(i int) object { return roleObject(s.roles[i]) })
	add("access", s.access != nil, len(s.access), func(i int) object { return ruleObject(s.access[i]) })
	add("schedules", s.schedules != nil, len(s.schedules), func(i int) object { return scheduleObject(s.schedules[i]) })
	return o
}

// settings decodes a list that belongs to a pair. It returns false for an unknown key.
func (d *decoder) settings(key string, v *yaml.Node, s *settings) bool {
	switch key {
	case "policies":
		s.policies = []admin.Policy{}
		for _, p := range d.sequence(v) {
			s.policies = append(s.policies, d.policy(p))
		}
	case "roles":
		s.roles = []*pb.AccessRole{}
		for _, r := range d.sequence(v) {
			s.roles = append(s.roles, d.role(r))
		}
	case "access":
		s.access = []*pb.AccessRule{}
		for _, r := range d.sequence(v) {
			s.access = append(s.access, d.accessRule(r))
		}
	case "schedules":
		s.schedules = []*pb.Schedule{}
		for _, e := range d.sequence(v) {
			s.schedules = append(s.schedules, d.schedule(e))
		}
	default:
		return false
	}
	return true
}

// define calls the given function with the kind and the name of each object.
func (s *settings) define(define func(kind, name string)) {
	for _, p := range s.policies {
		define("policy", p.Pattern)
	}
	for _, r := range s.roles {
		define("role", r.GetName())
	}
	for _, r := range s.access {
		define("access rule", subject(r))
	}
	for _, e := range s.schedules {
		define("schedule", e.GetName())
	}
}

func (s *settings) sort() {
	slices.SortFunc(s.policies, func(a, b admin.Policy) int { return cmp.Compare(a.Pattern, b.Pattern) })
	slices.SortFunc(s.schedules, func(a, b *pb.Schedule) int { return cmp.Compare(a.GetName(), b.GetName()) })
	sortRules(s.access)
	sortRoles(s.roles)
}

func (d *decoder) pair(n *yaml.Node) (p pairSettings) {
	d.mapping(n, "a pair", func(key string, v *yaml.Node) bool {
		if key == "name" {
			p.name = d.scalar(v)
			return true
		}
		return d.settings(key, v, &p.settings)
	})
	if err := fleet.CheckPair(p.name); err != nil {
		d.fail(n, "%v", err)
	}
	return p
}

func placementObject(r *pb.PlacementRule) object {
	o := object{{"pattern", r.GetPattern()}}
	if r.GetPair() != "" {
		return append(o, entry{"pair", r.GetPair()})
	}
	labels := object{}
	for _, k := range slices.Sorted(maps.Keys(r.GetLabels())) {
		labels = append(labels, entry{k, r.GetLabels()[k]})
	}
	return append(o, entry{"labels", labels})
}

func placementText(r *pb.PlacementRule) string {
	if r.GetPair() != "" {
		return "pair " + r.GetPair()
	}
	var texts []string
	for _, k := range slices.Sorted(maps.Keys(r.GetLabels())) {
		texts = append(texts, k+"="+r.GetLabels()[k])
	}
	return strings.Join(texts, " ")
}

func (d *decoder) placement(n *yaml.Node) *pb.PlacementRule {
	r := &pb.PlacementRule{}
	d.mapping(n, "a placement rule", func(key string, v *yaml.Node) bool {
		switch key {
		case "pattern":
			r.Pattern = d.scalar(v)
		case "pair":
			r.Pair = d.scalar(v)
		case "labels":
			r.Labels = map[string]string{}
			d.mapping(v, "labels", func(key string, v *yaml.Node) bool {
				r.Labels[key] = d.scalar(v)
				return true
			})
		default:
			return false
		}
		return true
	})
	if r.GetPattern() == "" || (r.GetPair() == "") == (len(r.GetLabels()) == 0) {
		d.fail(n, "a placement rule requires a pattern, and either pair or labels")
	}
	return r
}

// fleetState is the state of a fleet, with connections to all of its pairs.
type fleetState struct {
	env *cli.Env
	// node has the copy of the directory, and any is a client with the addresses of --addr.
	node    *admin.Node
	any     *client.Client
	report  *pb.GetFleetResponse
	owners  map[string]*pb.Placement // by queue
	pairs   []string                 // sorted
	clients map[string]*client.Client
	there   map[string]*existing
}

// withFleet calls fn with the state of the fleet.
func withFleet(
	ctx context.Context, env *cli.Env, prefix string, fn func(context.Context, *fleetState) error,
) error {
	return env.WithClient(ctx, func(ctx context.Context, c *client.Client) error {
		f := &fleetState{
			env: env, any: c, owners: map[string]*pb.Placement{}, clients: map[string]*client.Client{},
			there: map[string]*existing{},
		}
		if err := f.load(ctx); err != nil {
			return err
		}
		return f.connect(ctx, f.pairs, prefix, fn)
	})
}

// load reads the directory from the first node in --addr that has a current copy.
func (f *fleetState) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.env.Timeout)
	defer cancel()
	nodes, err := f.env.Nodes(f.any)
	if err != nil {
		return err
	}
	failed := cli.WithHint(errors.New("no node has a current copy of the directory"), "`lockstep fleet status`")
	for _, n := range nodes {
		limited, cancel := context.WithTimeout(ctx, findTimeout)
		report, err := n.Fleet(limited)
		cancel()
		switch {
		case err != nil:
			failed = err
			continue
		case !report.GetDirectory().GetCurrent():
			continue
		}
		f.node, f.report = n, report
		break
	}
	if f.node == nil {
		return failed
	}
	for p, err := range f.node.Placements(ctx, admin.PlacementOptions{}) {
		if err != nil {
			return err
		}
		f.owners[p.GetQueue()] = p
	}
	for _, p := range f.report.GetPairs() {
		f.pairs = append(f.pairs, p.GetName())
	}
	return nil
}

// connect opens clients of the pairs, reads their objects, and calls fn.
func (f *fleetState) connect(
	ctx context.Context, pairs []string, prefix string, fn func(context.Context, *fleetState) error,
) error {
	if len(pairs) == 0 {
		return fn(ctx, f)
	}
	name := pairs[0]
	connection, err := f.env.Connection()
	if err != nil {
		return err
	}
	for _, p := range f.report.GetPairs() {
		if p.GetName() == name {
			st := pairstatus.QueryPair(ctx, f.any, p.GetAddresses(), min(f.env.Timeout, findTimeout))
			connection.Addresses = strings.Join(st.Addresses(), ",") // the directory may lack a node
		}
	}
	return f.env.With(ctx, connection, func(ctx context.Context, c *client.Client) error {
		limited, cancel := context.WithTimeout(ctx, f.env.Timeout)
		there, err := list(limited, c, prefix)
		if err == nil && prefix == "" {
			err = there.addAccess(limited, c)
		}
		cancel()
		if err != nil {
			return fmt.Errorf("pair %s: %w", name, err)
		}
		// The pair also lists queues that are being moved to it, or were just moved from it.
		there.queues = slices.DeleteFunc(there.queues, func(q admin.Queue) bool {
			owner := f.owners[q.Name]
			return owner != nil && owner.GetPair() != name
		})
		f.clients[name], f.there[name] = c, &there
		return f.connect(ctx, pairs[1:], prefix, fn)
	})
}

func (e *existing) addAccess(ctx context.Context, c *client.Client) error {
	all, err := admin.New(c).ListAccess(ctx)
	if err != nil {
		return err
	}
	e.access, e.roles = append([]*pb.AccessRule{}, all.GetRules()...), append([]*pb.AccessRole{}, all.GetRoles()...)
	for _, r := range e.access {
		r.ChangedBy, r.ChangedAt = "", nil
	}
	for _, r := range e.roles {
		r.ChangedBy, r.ChangedAt = "", nil
	}
	return nil
}

// export returns the definitions of the fleet.
func (f *fleetState) export(prefix string) document {
	var d document
	var all []*pairSettings
	for _, name := range f.pairs {
		there := f.there[name]
		for _, q := range there.queues {
			if temporary(q) {
				continue
			}
			out := fromClient(q)
			out.pair = name
			if group := f.owners[q.Name].GetGroup(); group != fleet.Tag(q.Name) {
				out.group = group
			}
			d.queues = append(d.queues, out)
		}
		all = append(all, &pairSettings{name: name, settings: there.settings})
	}
	slices.SortFunc(d.queues, func(a, b queue) int { return cmp.Compare(a.name, b.name) })
	if prefix != "" {
		return d
	}
	d.placements = append([]*pb.PlacementRule{}, f.report.GetRules()...)
	d.policies, d.roles, d.access, d.schedules = []admin.Policy{}, []*pb.AccessRole{}, []*pb.AccessRule{}, []*pb.Schedule{}
	d.policies = common(all, func(s *settings) *[]admin.Policy { return &s.policies }, func(a, b admin.Policy) bool {
		return a == b
	})
	d.roles = common(all, func(s *settings) *[]*pb.AccessRole { return &s.roles }, equalRoles)
	d.access = common(all, func(s *settings) *[]*pb.AccessRule { return &s.access }, equalRules)
	d.schedules = unique(all)
	d.sort()
	for _, p := range all {
		if len(p.policies)+len(p.roles)+len(p.access)+len(p.schedules) > 0 {
			p.trim()
			p.sort()
			d.pairs = append(d.pairs, *p)
		}
	}
	return d
}

// trim removes empty lists.
func (s *settings) trim() {
	if len(s.policies) == 0 {
		s.policies = nil
	}
	if len(s.roles) == 0 {
		s.roles = nil
	}
	if len(s.access) == 0 {
		s.access = nil
	}
	if len(s.schedules) == 0 {
		s.schedules = nil
	}
}

func equalRoles(a, b *pb.AccessRole) bool {
	return a.GetName() == b.GetName() && slices.Equal(rightsText(a.GetRights()), rightsText(b.GetRights()))
}

func equalRules(a, b *pb.AccessRule) bool {
	return subject(a) == subject(b) && slices.Equal(grants(a), grants(b))
}

// common returns the objects that all pairs have, and removes them from the lists of the pairs.
func common[T any](pairs []*pairSettings, of func(*settings) *[]T, equal func(a, b T) bool) (shared []T) {
	shared = []T{}
	if len(pairs) == 0 {
		return shared
	}
	for _, v := range *of(&pairs[0].settings) {
		everywhere := true
		for _, p := range pairs {
			everywhere = everywhere && slices.ContainsFunc(*of(&p.settings), func(o T) bool { return equal(o, v) })
		}
		if everywhere {
			shared = append(shared, v)
		}
	}
	for _, p := range pairs {
		list := of(&p.settings)
		*list = slices.DeleteFunc(slices.Clone(*list), func(v T) bool {
			return slices.ContainsFunc(shared, func(o T) bool { return equal(o, v) })
		})
	}
	return shared
}

// unique returns the schedules with names that only one pair has, and removes them from the lists of the pairs.
func unique(pairs []*pairSettings) (schedules []*pb.Schedule) {
	schedules = []*pb.Schedule{}
	count := map[string]int{}
	for _, p := range pairs {
		for _, s := range p.schedules {
			count[s.GetName()]++
		}
	}
	for _, p := range pairs {
		p.schedules = slices.DeleteFunc(slices.Clone(p.schedules), func(s *pb.Schedule) bool {
			if count[s.GetName()] == 1 {
				schedules = append(schedules, s)
			}
			return count[s.GetName()] == 1
		})
	}
	return schedules
}

// plan returns the plan that makes the fleet match a document.
func (f *fleetState) plan(d *document, prefix string) (p plan, _ error) {
	p.fleet = f
	p.placements(d.placements, f.report.GetRules())
	rules := rulesAfter(d.placements, f.report.GetRules())
	byPair := map[string]*document{"": {}}
	for _, name := range f.pairs {
		byPair[name] = f.settingsOf(d, name)
	}
	for _, part := range d.pairs {
		if byPair[part.name] == nil {
			return plan{}, fmt.Errorf("%w: pair %s is not registered", errFile, part.name)
		}
	}
	for _, q := range d.queues {
		owner := f.owners[q.name].GetPair()
		if q.pair != "" && byPair[q.pair] == nil {
			return plan{}, fmt.Errorf("%w: pair %s of queue %s is not registered", errFile, q.pair, q.name)
		}
		if owner != "" && q.pair != "" && owner != q.pair {
			p.misplaced = append(p.misplaced, misplaced{q.name, owner, q.pair})
		}
		rule, found := fleet.RuleOf(rules, q.name)
		at := cmp.Or(owner, q.pair)
		if at == "" && byPair[rule.Pair] != nil {
			at = rule.Pair
		}
		if byPair[at] == nil {
			return plan{}, fmt.Errorf("queue %s belongs to pair %s, which is not registered", q.name, at)
		}
		if owner != "" || found && rule.Pair == q.pair {
			q.pair = "" // the rules place the queue
		}
		byPair[at].queues = append(byPair[at].queues, q)
	}
	f.assignSchedules(d, byPair)
	for _, name := range append(slices.Clone(f.pairs), "") {
		there := f.there[name]
		if there == nil {
			there = &existing{}
		}
		part := compare(byPair[name], there)
		for _, steps := range [][]step{part.steps, part.prune} {
			for i := range steps {
				steps[i].Pair = name
			}
		}
		p.steps, p.prune = append(p.steps, part.steps...), append(p.prune, part.prune...)
		p.conflicts = append(p.conflicts, part.conflicts...)
	}
	if prefix == "" && d.placements != nil {
		p.prunePlacements(d.placements, f.report.GetRules())
	}
	return p, nil
}

// settingsOf returns the settings of a pair in the file: those of all pairs, except if the pair has its own with the
// same name, and the schedules of the pair. assignSchedules adds the other schedules.
func (f *fleetState) settingsOf(d *document, name string) *document {
	out := &document{settings: settings{
		policies: slices.Clone(d.policies), access: slices.Clone(d.access), roles: slices.Clone(d.roles),
	}}
	for _, p := range d.pairs {
		if p.name != name {
			continue
		}
		out.policies = override(out.policies, p.policies, func(a, b admin.Policy) bool { return a.Pattern == b.Pattern })
		out.roles = override(out.roles, p.roles, func(a, b *pb.AccessRole) bool { return a.GetName() == b.GetName() })
		out.access = override(out.access, p.access, func(a, b *pb.AccessRule) bool { return subject(a) == subject(b) })
		out.schedules = slices.Clone(p.schedules)
	}
	out.sort()
	return out
}

// override returns the objects of both lists. If both contain an object that is the same according to same, it returns
// the one from own.
func override[T any](all, own []T, same func(a, b T) bool) []T {
	all = slices.DeleteFunc(all, func(v T) bool {
		return slices.ContainsFunc(own, func(o T) bool { return same(o, v) })
	})
	return append(all, own...)
}

// assignSchedules adds each schedule to the pair of its queue.
func (f *fleetState) assignSchedules(d *document, byPair map[string]*document) {
	if d.schedules == nil {
		return
	}
	at := map[string]string{}
	for name, part := range byPair {
		for _, q := range part.queues {
			at[q.name] = name
		}
		part.schedules = append([]*pb.Schedule{}, part.schedules...)
	}
	for _, s := range d.schedules {
		name, inFile := at[s.GetQueue()]
		if !inFile {
			name = f.owners[s.GetQueue()].GetPair()
		}
		byPair[name].schedules = append(byPair[name].schedules, s)
	}
	for _, part := range byPair {
		part.sort()
	}
}

// rulesAfter returns the placement rules after the import.
func rulesAfter(wanted, there []*pb.PlacementRule) (rules []fleet.Rule) {
	byPattern := map[string]*pb.PlacementRule{}
	for _, r := range slices.Concat(there, wanted) {
		byPattern[r.GetPattern()] = r
	}
	for _, r := range byPattern {
		rules = append(rules, fleet.Rule{Pattern: r.GetPattern(), Pair: r.GetPair(), Labels: r.GetLabels()})
	}
	return rules
}

func (p *plan) placements(wanted, there []*pb.PlacementRule) {
	for _, r := range wanted {
		action, from := createPlacement, "-"
		if at := slices.IndexFunc(there, samePattern(r)); at >= 0 {
			action, from = alterPlacement, placementText(there[at])
		}
		if to := placementText(r); from != to {
			p.steps = append(p.steps, step{
				Action: action, Placement: r.GetPattern(), placement: r, Changes: []change{{"pairs", from, to}},
			})
		}
	}
}

func (p *plan) prunePlacements(wanted, there []*pb.PlacementRule) {
	for _, r := range there {
		if !slices.ContainsFunc(wanted, samePattern(r)) {
			p.prune = append(p.prune, step{Action: deletePlacement, Placement: r.GetPattern()})
		}
	}
}

func samePattern(r *pb.PlacementRule) func(*pb.PlacementRule) bool {
	return func(o *pb.PlacementRule) bool { return o.GetPattern() == r.GetPattern() }
}

// misplaced is a queue that belongs to a pair other than the one in the file.
type misplaced struct {
	Queue string `json:"queue"`
	Pair  string `json:"pair"`
	Want  string `json:"want"`
}

func (m *misplaced) text() string {
	return fmt.Sprintf("queue %s is on pair %s, not %s: lockstep fleet move %s --to %s", m.Queue, m.Pair, m.Want, m.Queue,
		m.Want)
}

// do executes a step.
func (f *fleetState) do(ctx context.Context, s *step) error {
	switch s.Action {
	case createPlacement, alterPlacement:
		return f.node.PutPlacementRule(ctx, s.placement)
	case deletePlacement:
		return f.node.DeletePlacementRule(ctx, s.Placement)
	}
	c, err := f.clientOf(ctx, s)
	if err != nil {
		return err
	}
	if s.Action == createQueue && s.want.pair != "" {
		return f.createAt(ctx, s.want.pair, s.Queue, func() error { return s.do(ctx, c) })
	}
	return s.do(ctx, c)
}

// clientOf returns the client for a step. A schedule of a queue without a pair in the file requires the pair on which
// the queue was created.
func (f *fleetState) clientOf(ctx context.Context, s *step) (*client.Client, error) {
	if s.Pair != "" {
		return f.clients[s.Pair], nil
	}
	if s.schedule == nil {
		return f.any, nil
	}
	for {
		for p, err := range f.node.Placements(ctx, admin.PlacementOptions{Pattern: s.schedule.GetQueue()}) {
			if err != nil {
				return nil, err
			}
			if c := f.clients[p.GetPair()]; c != nil {
				return c, nil
			}
		}
		timer := time.NewTimer(ownerInterval)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("the owner of queue %s is unknown: %w", s.schedule.GetQueue(), ctx.Err())
		}
	}
}

// createAt creates a queue on a pair that the placement rules do not select. During the creation, it sets a placement
// rule for the name of the queue; then it restores the previous rule, or deletes the rule if there was none.
func (f *fleetState) createAt(ctx context.Context, pair, queue string, create func() error) error {
	rule := &pb.PlacementRule{Pattern: queue, Pair: pair}
	if err := f.node.PutPlacementRule(ctx, rule); err != nil {
		return err
	}
	err := create()
	restore, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.env.Timeout)
	defer cancel()
	if at := slices.IndexFunc(f.report.GetRules(), samePattern(rule)); at >= 0 {
		return errors.Join(err, f.node.PutPlacementRule(restore, proto.CloneOf(f.report.GetRules()[at])))
	}
	return errors.Join(err, f.node.DeletePlacementRule(restore, queue))
}
