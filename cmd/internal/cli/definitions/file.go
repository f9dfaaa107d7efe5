// SPDX-License-Identifier: Apache-2.0

package definitions

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/queueconfig"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const version = 1

var errFile = errors.New("invalid definitions file")

type subscription struct {
	name, filter string
	// policy contains the overridden fields; own contains their names, each followed by a space.
	policy admin.QueueConfig
	own    string
}

// plain reports whether the subscription can be created together with its queue.
func (s *subscription) plain() bool { return s.filter == "" && s.own == "" }

func (s *subscription) has(field string) bool { return slices.Contains(strings.Fields(s.own), field) }

func (s *subscription) options() admin.SubscriptionOptions {
	return admin.SubscriptionOptions{Filter: s.filter, Redelivery: admin.PolicyOf(s.policy, strings.Fields(s.own))}
}

func (s *subscription) setOwn(fields []string) { s.own = ownOf(queueconfig.PolicyFields(), fields) }

func ownOf(all []queueconfig.Field, fields []string) (own string) {
	for _, f := range all {
		if slices.Contains(fields, f.Name) {
			own += f.Name + " "
		}
	}
	return own
}

func (q *queue) has(field string) bool { return slices.Contains(strings.Fields(q.own), field) }

// text returns the value of an option; "-" if the option is not set on the queue itself.
func (q *queue) text(f queueconfig.Field) string {
	if !q.has(f.Name) {
		return "-"
	}
	return cmp.Or(fmt.Sprint(f.Own(&q.config)), `""`)
}

func subscriptionOf(s admin.Subscription) subscription {
	sub := subscription{name: s.Name, filter: s.Filter}
	var fields []string
	sub.policy, fields = s.Redelivery.Config()
	sub.setOwn(fields)
	return sub
}

// document is the content of a definitions file.
type document struct {
	settings

	queues []queue
	// placements are the placement rules of a fleet; nil if the file does not have this key. pairs are the objects of
	// single pairs.
	placements []*pb.PlacementRule
	pairs      []pairSettings
}

type queue struct {
	name string
	// pair is the pair of a fleet that has the queue, and group its placement group; empty if the file does not have
	// these keys.
	pair, group string
	// config contains the options that are set on the queue itself, not by a policy. own contains their names, each
	// followed by a space.
	config        admin.QueueConfig
	own           string
	subscriptions []subscription
	forwards      []admin.Forward
}

// isDefault reports whether subs contains only the subscription that a new queue has by default.
func isDefault(subs []subscription) bool {
	return len(subs) == 1 && subs[0] == subscription{name: client.DefaultSubscription}
}

func fromClient(q admin.Queue) queue {
	d := queue{name: q.Name, config: q.Own.Config, forwards: slices.Clone(q.Forwards)}
	d.own = ownOf(queueconfig.Fields(), q.Own.Fields)
	for _, s := range q.Subscriptions {
		d.subscriptions = append(d.subscriptions, subscriptionOf(s))
	}
	d.sort()
	return d
}

func (q *queue) sort() {
	slices.SortFunc(q.subscriptions, func(a, b subscription) int { return cmp.Compare(a.name, b.name) })
	slices.SortFunc(q.forwards, func(a, b admin.Forward) int { return cmp.Compare(a.To, b.To) })
}

// entry is a key with its value, and object an ordered list of entries, for YAML and JSON.
type entry struct {
	key   string
	value any // a scalar, an object, or a list of objects or strings
}

type object []entry

// object returns the definition of the queue: the options that are set on the queue itself, its subscriptions and its
// forwards.
func (q *queue) object() object {
	o := object{{"name", q.name}}
	if q.pair != "" {
		o = append(o, entry{"pair", q.pair})
	}
	if q.group != "" {
		o = append(o, entry{"placement_group", q.group})
	}
	for _, f := range queueconfig.Fields() {
		if q.has(f.Name) {
			o = append(o, entry{f.Name, f.Own(&q.config)})
		}
	}
	if !isDefault(q.subscriptions) {
		list := []object{}
		for _, s := range q.subscriptions {
			sub := object{{"name", s.name}}
			if s.filter != "" {
				sub = append(sub, entry{"filter", s.filter})
			}
			for _, f := range queueconfig.PolicyFields() {
				if s.has(f.Name) {
					sub = append(sub, entry{f.Name, f.Own(&s.policy)})
				}
			}
			list = append(list, sub)
		}
		o = append(o, entry{"subscriptions", list})
	}
	if len(q.forwards) == 0 {
		return o
	}
	list := []object{}
	for _, f := range q.forwards {
		rule := object{{"to", f.To}}
		if f.Filter != "" {
			rule = append(rule, entry{"filter", f.Filter})
		}
		if f.Move {
			rule = append(rule, entry{"move", true})
		}
		list = append(list, rule)
	}
	return append(o, entry{"forwards", list})
}

func (d *document) object() object {
	o, list := object{{"version", uint64(version)}}, []object{}
	if d.placements != nil {
		for _, r := range d.placements {
			list = append(list, placementObject(r))
		}
		o, list = append(o, entry{"placement_rules", list}), []object{}
	}
	for i := range d.queues {
		list = append(list, d.queues[i].object())
	}
	o = append(append(o, entry{"queues", list}), d.entries()...)
	if d.pairs != nil {
		list = []object{}
		for i := range d.pairs {
			list = append(list, append(object{{"name", d.pairs[i].name}}, d.pairs[i].entries()...))
		}
		o = append(o, entry{"pairs", list})
	}
	return o
}

// MarshalJSON implements json.Marshaler. It keeps the order of the entries.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	b.WriteByte('{')
	for i, e := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := enc.Encode(e.key); err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		b.WriteByte(':')
		if err := enc.Encode(e.value); err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
	}
	b.WriteByte('}')
	var one bytes.Buffer
	if err := json.Compact(&one, b.Bytes()); err != nil { // removes the newline that the encoder appends
		return nil, fmt.Errorf("encode: %w", err)
	}
	return one.Bytes(), nil
}

func node(v any) *yaml.Node {
	switch v := v.(type) {
	case object:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, e := range v {
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: e.key}, node(e.value))
		}
		return n
	case []object:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		if len(v) == 0 {
			n.Style = yaml.FlowStyle
		}
		for _, o := range v {
			n.Content = append(n.Content, node(o))
		}
		return n
	case []string:
		n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, text := range v {
			n.Content = append(n.Content, node(text))
		}
		return n
	case number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: string(v)}
	default:
		n := new(yaml.Node)
		if err := n.Encode(v); err != nil { // cannot happen: v is a scalar
			n = &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(v)}
		}
		return n
	}
}

func encode(d *document) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(node(d.object())); err != nil {
		return nil, fmt.Errorf("encode the definitions: %w", err)
	}
	return b.Bytes(), nil
}

// decode parses YAML or JSON and checks that the definitions are consistent. It does not contact a pair.
func decode(name string, text []byte) (*document, error) {
	var root, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&root); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w: the file is empty; for no queues, write `version: 1` and `queues: []`", name, errFile)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", name, errFile, err)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w: data after the first document", name, errFile)
	}
	d := decoder{file: name}
	content := d.document(root.Content[0])
	if d.err != nil {
		return nil, d.err
	}
	slices.SortFunc(content.queues, func(a, b queue) int { return cmp.Compare(a.name, b.name) })
	content.sort()
	return content, nil
}

// decoder decodes a file, and retains the first error.
type decoder struct {
	file string
	err  error
}

func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%s:%d: %w: %s", d.file, n.Line, errFile, fmt.Sprintf(format, args...))
	}
}

func (d *decoder) document(n *yaml.Node) *document {
	has, content := false, &document{}
	d.mapping(n, "a definitions file", func(key string, v *yaml.Node) bool {
		switch key {
		case "version":
			has = true
			if text := d.scalar(v); text != strconv.Itoa(version) {
				d.fail(v, "unknown version %q; this release supports %d", text, version)
			}
		case "queues":
			for _, q := range d.sequence(v) {
				content.queues = append(content.queues, d.queue(q))
			}
		case "placement_rules":
			content.placements = []*pb.PlacementRule{}
			for _, r := range d.sequence(v) {
				content.placements = append(content.placements, d.placement(r))
			}
		case "pairs":
			content.pairs = []pairSettings{}
			for _, p := range d.sequence(v) {
				content.pairs = append(content.pairs, d.pair(p))
			}
		default:
			return d.settings(key, v, &content.settings)
		}
		return true
	})
	if !has {
		d.fail(n, "missing version; add `version: %d`", version)
	}
	defined := map[string]bool{}
	define := func(kind, name string) {
		if defined[kind+name] {
			d.fail(n, "%s %q is defined twice", kind, name)
		}
		defined[kind+name] = true
	}
	for _, q := range content.queues {
		define("queue", q.name)
	}
	for _, r := range content.placements {
		define("placement rule", r.GetPattern())
	}
	content.define(define)
	for _, p := range content.pairs {
		define("pair", p.name)
		p.define(func(kind, name string) { define(kind+" of pair "+p.name, name) })
	}
	return content
}

func (d *decoder) queue(n *yaml.Node) queue {
	q := queue{subscriptions: []subscription{{name: client.DefaultSubscription}}}
	var own []string
	d.mapping(n, "a queue", func(key string, v *yaml.Node) bool {
		switch key {
		case "name":
			q.name = d.scalar(v)
		case "pair":
			q.pair = d.scalar(v)
		case "placement_group":
			q.group = d.scalar(v)
		case "subscriptions":
			q.subscriptions = d.subscriptions(v)
		case "forwards":
			q.forwards = d.forwards(v)
		default:
			own = append(own, key)
			return d.field(queueconfig.Fields(), key, &q.config, v)
		}
		return true
	})
	q.own = ownOf(queueconfig.Fields(), own)
	if q.name == "" {
		d.fail(n, "missing queue name")
	}
	q.sort()
	return q
}

func (d *decoder) subscriptions(n *yaml.Node) []subscription {
	list := []subscription{}
	for _, e := range d.sequence(n) {
		var s subscription
		var own []string
		if e.Kind == yaml.ScalarNode {
			s.name = d.scalar(e)
		} else {
			d.mapping(e, "a subscription", func(key string, v *yaml.Node) bool {
				switch key {
				case "name":
					s.name = d.scalar(v)
				case "filter":
					s.filter = d.scalar(v)
				default:
					own = append(own, key)
					return d.field(queueconfig.PolicyFields(), key, &s.policy, v)
				}
				return true
			})
		}
		s.setOwn(own)
		if s.name == "" {
			d.fail(e, "missing subscription name")
		}
		if slices.ContainsFunc(list, func(o subscription) bool { return o.name == s.name }) {
			d.fail(e, "subscription %q is defined twice", s.name)
		}
		list = append(list, s)
	}
	return list
}

// field sets the configuration field that key names. It returns false for an unknown key.
func (d *decoder) field(fields []queueconfig.Field, key string, config *admin.QueueConfig, v *yaml.Node) bool {
	at := slices.IndexFunc(fields, func(f queueconfig.Field) bool { return f.Name == key })
	if at < 0 {
		return false
	}
	if err := fields[at].Set(config, d.scalar(v)); err != nil {
		d.fail(v, "%v", err)
	}
	return true
}

func (d *decoder) forwards(n *yaml.Node) (list []admin.Forward) {
	for _, e := range d.sequence(n) {
		var f admin.Forward
		d.mapping(e, "a forward", func(key string, v *yaml.Node) bool {
			switch key {
			case "to":
				f.To = d.scalar(v)
			case "filter":
				f.Filter = d.scalar(v)
			case "move":
				move, err := strconv.ParseBool(d.scalar(v))
				if f.Move = move; err != nil {
					d.fail(v, "move is %q; use true or false", v.Value)
				}
			default:
				return false
			}
			return true
		})
		if f.To == "" {
			d.fail(e, "missing destination of a forward: `to`")
		}
		if slices.ContainsFunc(list, func(o admin.Forward) bool { return o.To == f.To }) {
			d.fail(e, "a forward to %q is defined twice", f.To)
		}
		list = append(list, f)
	}
	return list
}

// mapping calls take for each key of a mapping. take returns false if the key is unknown.
func (d *decoder) mapping(n *yaml.Node, label string, take func(key string, v *yaml.Node) bool) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		d.fail(n, "%s must be a mapping", label)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], resolve(n.Content[i+1])
		if seen[k.Value] {
			d.fail(k, "duplicate key in %s: %q", label, k.Value)
		}
		seen[k.Value] = true
		if !take(k.Value, v) {
			d.fail(k, "unknown key in %s: %q", label, k.Value)
		}
	}
}

func (d *decoder) sequence(n *yaml.Node) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, "must be a list; for an empty list, write []")
		return nil
	}
	list := make([]*yaml.Node, len(n.Content))
	for i, e := range n.Content {
		list[i] = resolve(e)
	}
	return list
}

func (d *decoder) scalar(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		d.fail(n, "must be a single value")
		return ""
	}
	if n.Tag == "!!null" {
		d.fail(n, "missing value")
	}
	return n.Value
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}
