// SPDX-License-Identifier: Apache-2.0

package definitions

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/queueconfig"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	createQueue        = "create-queue"
	alterQueue         = "alter-queue"
	createSubscription = "create-subscription"
	alterSubscription  = "alter-subscription"
	setForwards        = "set-forwards"
	deleteSubscription = "delete-subscription"
	deleteQueue        = "delete-queue"
	createPolicy       = "create-policy"
	alterPolicy        = "alter-policy"
	deletePolicy       = "delete-policy"
	createSchedule     = "create-schedule"
	alterSchedule      = "alter-schedule"
	deleteSchedule     = "delete-schedule"
)

type step struct {
	Action       string   `json:"action"`
	Queue        string   `json:"queue,omitempty"`
	Policy       string   `json:"policy,omitempty"`
	Schedule     string   `json:"schedule,omitempty"`
	Role         string   `json:"role,omitempty"`
	Rule         string   `json:"access_rule,omitempty"`
	Placement    string   `json:"placement_rule,omitempty"`
	Pair         string   `json:"pair,omitempty"` // of a fleet
	Subscription string   `json:"subscription,omitempty"`
	Changes      []change `json:"changes,omitempty"`
	// Messages is the number of messages deleted with the object.
	Messages uint64 `json:"messages,omitempty"`

	want queue // for steps on a queue or its forwards
	sub  subscription

	policy    admin.Policy
	schedule  *pb.Schedule
	role      *pb.AccessRole
	rule      *pb.AccessRule
	was       *pb.AccessRule // the rule that is changed
	placement *pb.PlacementRule
}

// change is the change of a field. The value "-" means that the field is not set.
type change struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// plan is the difference between a pair and a file, as steps in an executable order.
type plan struct {
	// steps create and change objects; prune deletes objects that the file does not have.
	steps, prune []step
	// conflicts describe differences in immutable settings.
	conflicts []string
	// misplaced are queues that belong to pairs other than those in the file. They are not moved.
	misplaced []misplaced
	// fleet executes steps in a fleet; otherwise nil.
	fleet *fleetState
}

func (p *plan) empty() bool { return len(p.steps)+len(p.prune)+len(p.conflicts)+len(p.misplaced) == 0 }

func (s *step) deletes() bool {
	return strings.HasPrefix(s.Action, "delete-")
}

func (s *step) text() string {
	sign := "~"
	switch {
	case strings.HasPrefix(s.Action, "create-"):
		sign = "+"
	case s.deletes():
		sign = "-"
	}
	var parts []string
	for _, c := range s.Changes {
		text := c.Field + ": " + c.To
		if strings.HasPrefix(s.Action, "alter-") || c.From != "-" {
			text = fmt.Sprintf("%s: %s -> %s", c.Field, c.From, c.To)
		}
		parts = append(parts, text)
	}
	if s.Messages > 0 {
		parts = append(parts, "with "+output.Plural(s.Messages, "message"))
	}
	return strings.TrimRight(fmt.Sprintf("%s %s  %s", sign, s.what(), strings.Join(parts, ", ")), " ")
}

func (s *step) what() string {
	text := s.object()
	if s.Pair != "" {
		text += " at pair " + s.Pair
	}
	return text
}

func (s *step) object() string {
	switch {
	case s.Placement != "":
		return "placement rule " + s.Placement
	case s.Role != "":
		return "role " + s.Role
	case s.Rule != "":
		return "access rule of " + s.Rule
	case s.Policy != "":
		return "policy " + s.Policy
	case s.Schedule != "":
		return "schedule " + s.Schedule
	case s.Action == setForwards:
		return "forwards of " + s.Queue
	case s.Subscription != "":
		return "subscription " + s.Subscription + " of " + s.Queue
	default:
		return "queue " + s.Queue
	}
}

// compare returns the plan that makes a pair match a document. Queues and schedules are sorted by name, policies by
// pattern. Temporary queues that are not in the file belong to their clients and are ignored.
func compare(content *document, there *existing) plan {
	wanted := content.queues
	byName := make(map[string]admin.Queue, len(there.queues))
	for _, q := range there.queues {
		byName[q.Name] = q
	}
	var p plan
	p.access(&content.settings, &there.settings)
	named := make(map[string]bool, len(wanted))
	ordered, before := policiesFirst(targetsFirst(wanted), content.policies)
	for i, want := range ordered {
		if i == before {
			p.policies(content.policies, there.policies)
		}
		named[want.name] = true
		have, is := byName[want.name]
		if !is {
			p.create(want)
			continue
		}
		p.alter(want, fromClient(have))
		p.subscriptions(want, have)
	}
	if before == len(ordered) {
		p.policies(content.policies, there.policies)
	}
	for _, want := range wanted { // last, when all queues exist
		have := fromClient(byName[want.name])
		if !slices.Equal(have.forwards, want.forwards) {
			p.steps = append(p.steps, step{
				Action: setForwards, Queue: want.name, Changes: forwardChanges(have.forwards, want.forwards), want: want,
			})
		}
	}
	p.schedules(content.schedules, there.schedules)
	var unnamed []queue
	for _, q := range there.queues {
		if !named[q.Name] && !temporary(q) {
			unnamed = append(unnamed, fromClient(q))
		}
	}
	left := targetsFirst(unnamed)
	slices.Reverse(left) // a queue cannot be deleted while another one refers to it
	for _, q := range left {
		if len(q.forwards) > 0 {
			p.prune = append(p.prune, step{
				Action: setForwards, Queue: q.name, Changes: forwardChanges(q.forwards, nil), want: queue{name: q.name},
			})
		}
	}
	for _, q := range left {
		p.prune = append(p.prune, step{Action: deleteQueue, Queue: q.name, Messages: byName[q.name].Messages})
	}
	return p
}

// temporary reports whether a queue is temporary, because of its options or a policy.
func temporary(q admin.Queue) bool { return q.Config.TemporaryGrace != 0 }

// targetsFirst sorts dead-letter queues before the queues that refer to them, and a queue with the name of a placement
// group before the queues of the group, which are created on the same pair. The order within cycles, which no pair
// accepts, is unspecified.
func targetsFirst(queues []queue) []queue {
	byName := make(map[string]int, len(queues))
	for i, q := range queues {
		byName[q.name] = i
	}
	ordered, visited := make([]queue, 0, len(queues)), make([]bool, len(queues))
	var visit func(at int)
	visit = func(at int) {
		if visited[at] {
			return
		}
		visited[at] = true
		for _, name := range append(queues[at].deadLetters(), queues[at].group) {
			if target, is := byName[name]; is {
				visit(target)
			}
		}
		ordered = append(ordered, queues[at])
	}
	for i := range queues {
		visit(i)
	}
	return ordered
}

// policiesFirst moves the dead-letter queues of policies to the front, after the queues that they refer to. The
// policies must be set before the queue at the returned index, because that queue and later queues may depend on
// the policies.
func policiesFirst(queues []queue, policies []admin.Policy) (ordered []queue, before int) {
	needed := make(map[string]bool)
	for _, p := range policies {
		needed[p.Defaults.DeadLetter] = true
	}
	for _, q := range slices.Backward(queues) { // each queue follows its dead-letter queues
		for _, name := range q.deadLetters() {
			needed[name] = needed[name] || needed[q.name]
		}
	}
	for _, first := range []bool{true, false} {
		for _, q := range queues {
			if needed[q.name] == first {
				ordered = append(ordered, q)
			}
		}
		if first {
			before = len(ordered)
		}
	}
	return ordered, before
}

func (q *queue) deadLetters() []string {
	names := []string{q.config.DeadLetter}
	for _, s := range q.subscriptions {
		names = append(names, s.policy.DeadLetter)
	}
	return names
}

func (p *plan) create(want queue) {
	s := step{Action: createQueue, Queue: want.name, want: want}
	for _, f := range queueconfig.Fields() {
		if want.has(f.Name) {
			s.Changes = append(s.Changes, change{f.Name, "-", want.text(f)})
		}
	}
	if !isDefault(want.subscriptions) {
		names := cmp.Or(strings.Join(want.plain(), " "), "none")
		s.Changes = append(s.Changes, change{"subscriptions", "-", names})
	}
	p.steps = append(p.steps, s)
	for _, sub := range want.subscriptions {
		if !sub.plain() {
			p.steps = append(p.steps, newSubscription(want.name, sub))
		}
	}
}

// plain returns the subscriptions without options. They are created together with the queue.
func (q *queue) plain() (names []string) {
	for _, sub := range q.subscriptions {
		if sub.plain() {
			names = append(names, sub.name)
		}
	}
	return names
}

func newSubscription(queue string, sub subscription) step {
	return step{
		Action: createSubscription, Queue: queue, Subscription: sub.name, sub: sub,
		Changes: subscriptionChanges(&subscription{}, &sub),
	}
}

func subscriptionChanges(from, to *subscription) (changes []change) {
	if from.filter != to.filter {
		changes = append(changes, change{"filter", cmp.Or(from.filter, "-"), cmp.Or(to.filter, "-")})
	}
	for _, f := range queueconfig.PolicyFields() {
		text := func(s *subscription) string {
			if !s.has(f.Name) {
				return "-"
			}
			return cmp.Or(fmt.Sprint(f.Own(&s.policy)), `""`)
		}
		if a, b := text(from), text(to); a != b {
			changes = append(changes, change{f.Name, a, b})
		}
	}
	return changes
}

func (p *plan) alter(want, have queue) {
	s := step{Action: alterQueue, Queue: want.name, want: want}
	for _, f := range queueconfig.Fields() {
		from, to := have.text(f), want.text(f)
		if from == to {
			continue
		}
		if f.Name == "priorities" {
			if have.config.Priorities == want.config.Priorities {
				continue
			}
			p.conflicts = append(p.conflicts, fmt.Sprintf(
				"queue %s: priorities cannot be changed after creation: create another queue", want.name))
			continue
		}
		s.Changes = append(s.Changes, change{f.Name, from, to})
	}
	if len(s.Changes) > 0 {
		p.steps = append(p.steps, s)
	}
}

func (p *plan) subscriptions(want queue, have admin.Queue) {
	there := make(map[string]admin.Subscription, len(have.Subscriptions))
	for _, s := range have.Subscriptions {
		there[s.Name] = s
	}
	for _, sub := range want.subscriptions {
		is, found := there[sub.name]
		delete(there, sub.name)
		switch {
		case !found:
			p.steps = append(p.steps, newSubscription(want.name, sub))
		default:
			have := subscriptionOf(is)
			if changes := subscriptionChanges(&have, &sub); len(changes) > 0 {
				p.steps = append(p.steps, step{
					Action: alterSubscription, Queue: want.name, Subscription: sub.name, sub: sub, Changes: changes,
				})
			}
		}
	}
	for _, s := range have.Subscriptions {
		if _, left := there[s.Name]; left {
			p.prune = append(p.prune, step{
				Action: deleteSubscription, Queue: want.name, Subscription: s.Name, Messages: s.Backlog,
			})
		}
	}
}

func forwardChanges(from, to []admin.Forward) (changes []change) {
	describe := func(list []admin.Forward, name string) string {
		at := slices.IndexFunc(list, func(f admin.Forward) bool { return f.To == name })
		if at < 0 {
			return "-"
		}
		text := "copy"
		if list[at].Move {
			text = "move"
		}
		if list[at].Filter != "" {
			text += " if " + list[at].Filter
		}
		return text
	}
	var names []string
	for _, f := range slices.Concat(from, to) {
		names = append(names, f.To)
	}
	slices.SortFunc(names, cmp.Compare)
	for _, name := range slices.Compact(names) {
		if a, b := describe(from, name), describe(to, name); a != b {
			changes = append(changes, change{"to " + name, a, b})
		}
	}
	return changes
}

func (s *step) alterSubscription(ctx context.Context, c *client.Client) error {
	o := s.sub.options()
	label := admin.SubscriptionChange{Redelivery: o.Redelivery}
	for _, f := range queueconfig.PolicyFields() {
		if !s.sub.has(f.Name) {
			label.Inherit = append(label.Inherit, f.Name)
		}
	}
	if slices.ContainsFunc(s.Changes, func(c change) bool { return c.Field == "filter" }) {
		label.Filter = &o.Filter
	}
	_, err := admin.New(c).AlterSubscription(ctx, s.Queue, s.Subscription, label)
	return err
}

// putRule creates a rule, or changes its rights and roles.
func (s *step) putRule(ctx context.Context, c *client.Client) error {
	was := s.was
	if was == nil {
		was = &pb.AccessRule{}
	}
	if more := without(s.rule, was); len(more.GetRights())+len(more.GetRoles()) > 0 {
		if _, err := admin.New(c).Grant(ctx, more, false); err != nil {
			return err
		}
	}
	if s.was == nil {
		return nil
	}
	if less := without(s.was, s.rule); len(less.GetRights())+len(less.GetRoles()) > 0 {
		_, err := admin.New(c).Revoke(ctx, less, false)
		return err
	}
	return nil
}

func (s *step) do(ctx context.Context, c *client.Client) (err error) {
	switch s.Action {
	case createQueue:
		o := admin.CreateQueueOptions{
			Config: s.want.config, Explicit: strings.Fields(s.want.own), Subscriptions: s.want.plain(),
			PlacementGroup: s.want.group,
		}
		o.Topic = len(o.Subscriptions) == 0
		_, _, err = admin.New(c).CreateQueue(ctx, s.Queue, o)
	case alterQueue:
		what := admin.QueueChange{Config: s.want.config}
		for _, c := range s.Changes {
			if s.want.has(c.Field) {
				what.Set = append(what.Set, c.Field)
			} else {
				what.Reset = append(what.Reset, c.Field)
			}
		}
		_, err = admin.New(c).ChangeQueue(ctx, s.Queue, what)
	case createPolicy, alterPolicy:
		_, err = admin.New(c).PutPolicy(ctx, s.policy)
	case deletePolicy:
		err = admin.New(c).DeletePolicy(ctx, s.Policy)
	case createRole, alterRole:
		_, err = admin.New(c).PutRole(ctx, s.role, false)
	case deleteRole:
		err = admin.New(c).DeleteRole(ctx, s.Role)
	case createRule, alterRule:
		err = s.putRule(ctx, c)
	case deleteRule:
		_, err = admin.New(c).Revoke(ctx, without(s.rule, &pb.AccessRule{}), false)
	case createSchedule, alterSchedule:
		_, err = admin.New(c).PutSchedule(ctx, s.schedule)
	case deleteSchedule:
		err = admin.New(c).AtHome().DeleteSchedule(ctx, s.Schedule)
	case createSubscription:
		_, _, err = admin.New(c).CreateSubscription(ctx, s.Queue, s.Subscription, s.sub.options())
	case alterSubscription:
		err = s.alterSubscription(ctx, c)
	case setForwards:
		_, err = admin.New(c).SetForwards(ctx, s.Queue, s.want.forwards)
	case deleteSubscription:
		err = admin.New(c).DeleteSubscription(ctx, s.Queue, s.Subscription)
	case deleteQueue:
		_, err = admin.New(c).DeleteQueue(ctx, s.Queue, false)
	}
	return err
}
