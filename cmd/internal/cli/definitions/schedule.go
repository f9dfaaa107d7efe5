// SPDX-License-Identifier: Apache-2.0

package definitions

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli/schedule"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/units"
)

// number is a numeric literal, valid in YAML and JSON.
type number string

// MarshalJSON implements json.Marshaler. It returns the literal.
func (n number) MarshalJSON() ([]byte, error) { return []byte(n), nil }

func floatLiteral(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return f
	}
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0" // otherwise, the literal would be read as an integer
	}
	return number(text)
}

// scheduleObject returns the fields that PutSchedule sets, without default values.
func scheduleObject(s *pb.Schedule) object {
	m := s.GetMessage()
	o := object{{"name", s.GetName()}}
	add := func(key, value string) {
		if value != "" {
			o = append(o, entry{key, value})
		}
	}
	add("queue", s.GetQueue())
	add("cron", s.GetCron())
	add("time_zone", s.GetTimeZone())
	add("every", output.Span(s.GetEvery().AsDuration()))
	for text, rule := range schedule.MissedRules() {
		if s.GetMissed() == rule && text != "once" {
			add("missed", text)
		}
	}
	if s.GetPaused() {
		o = append(o, entry{"paused", true})
	}
	add("content_type", m.GetContentType())
	add("subject", m.GetSubject())
	add("group", m.GetGroup())
	add("correlation_id", m.GetCorrelationId())
	add("reply_to", m.GetReplyTo())
	if m != nil && m.Priority != nil {
		o = append(o, entry{"priority", uint64(m.GetPriority())})
	}
	add("ttl", output.Span(m.GetTtl().AsDuration()))
	add("delay", output.Span(m.GetDelay().AsDuration()))
	if properties := propertiesObject(m); len(properties) > 0 {
		o = append(o, entry{"properties", properties})
	}
	if utf8.Valid(m.GetBody()) {
		add("body", string(m.GetBody()))
	} else {
		add("body_base64", base64.StdEncoding.EncodeToString(m.GetBody()))
	}
	return o
}

func propertiesObject(m *pb.Message) (o object) {
	for key, value := range m.GetProperties() {
		o = append(o, entry{key, value})
	}
	for key, value := range m.GetTypedProperties() {
		switch v := value.GetKind().(type) {
		case *pb.PropertyValue_BoolValue:
			o = append(o, entry{key, v.BoolValue})
		case *pb.PropertyValue_IntValue:
			o = append(o, entry{key, v.IntValue})
		case *pb.PropertyValue_DoubleValue:
			o = append(o, entry{key, floatLiteral(v.DoubleValue)})
		case *pb.PropertyValue_BytesValue:
			o = append(o, entry{key, object{{"base64", base64.StdEncoding.EncodeToString(v.BytesValue)}}})
		}
	}
	slices.SortFunc(o, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
	return o
}

func (d *decoder) schedule(n *yaml.Node) *pb.Schedule {
	s := &pb.Schedule{Missed: pb.MissedOccurrences_MISSED_OCCURRENCES_ONCE, Message: &pb.Message{}}
	d.mapping(n, "a schedule", func(key string, v *yaml.Node) bool {
		switch key {
		case "name":
			s.Name = d.scalar(v)
		case "queue":
			s.Queue = d.scalar(v)
		case "cron":
			s.Cron = d.scalar(v)
		case "time_zone":
			s.TimeZone = d.scalar(v)
		case "every":
			s.Every = d.duration(key, v)
		case "missed":
			rule, ok := schedule.MissedRules()[d.scalar(v)]
			if s.Missed = rule; !ok {
				d.fail(v, "missed is %q; use skip, once or all", v.Value)
			}
		case "paused":
			paused, err := strconv.ParseBool(d.scalar(v))
			if s.Paused = paused; err != nil {
				d.fail(v, "paused is %q; use true or false", v.Value)
			}
		default:
			return d.message(key, v, s.GetMessage())
		}
		return true
	})
	switch {
	case s.GetName() == "":
		d.fail(n, "missing schedule name")
	case s.GetQueue() == "":
		d.fail(n, "missing queue of schedule %q", s.GetName())
	case (s.GetCron() == "") == (s.Every == nil):
		d.fail(n, "schedule %q requires either cron or every", s.GetName())
	}
	return s
}

// message sets the message field that key names. It returns false for an unknown key.
func (d *decoder) message(key string, v *yaml.Node, m *pb.Message) bool {
	switch key {
	case "content_type":
		m.ContentType = d.scalar(v)
	case "subject":
		m.Subject = d.scalar(v)
	case "group":
		m.Group = d.scalar(v)
	case "correlation_id":
		m.CorrelationId = d.scalar(v)
	case "reply_to":
		m.ReplyTo = d.scalar(v)
	case "priority":
		priority, err := strconv.ParseUint(d.scalar(v), 10, 32)
		if m.Priority = new(uint32(priority)); err != nil {
			d.fail(v, "priority is %q; use an integer", v.Value)
		}
	case "ttl":
		m.Ttl = d.duration(key, v)
	case "delay":
		m.Delay = d.duration(key, v)
	case "properties":
		d.properties(v, m)
	case "body":
		m.Body = []byte(d.scalar(v))
	case "body_base64":
		m.Body = d.base64(key, v)
	default:
		return false
	}
	return true
}

// properties sets the properties of a message: strings, or values of the type of the YAML scalar.
func (d *decoder) properties(n *yaml.Node, m *pb.Message) {
	m.Properties, m.TypedProperties = make(map[string]string), make(map[string]*pb.PropertyValue)
	d.mapping(n, "properties", func(key string, v *yaml.Node) bool {
		value := &pb.PropertyValue{}
		var err error
		switch {
		case v.Kind == yaml.MappingNode:
			d.mapping(v, "property "+key, func(kind string, v *yaml.Node) bool {
				value.Kind = &pb.PropertyValue_BytesValue{BytesValue: d.base64(key, v)}
				return kind == "base64"
			})
		case v.ShortTag() == "!!bool":
			var b bool
			err = v.Decode(&b)
			value.Kind = &pb.PropertyValue_BoolValue{BoolValue: b}
		case v.ShortTag() == "!!int":
			var i int64
			err = v.Decode(&i)
			value.Kind = &pb.PropertyValue_IntValue{IntValue: i}
		case v.ShortTag() == "!!float":
			var f float64
			err = v.Decode(&f)
			value.Kind = &pb.PropertyValue_DoubleValue{DoubleValue: f}
		default:
			m.Properties[key] = d.scalar(v)
			return true
		}
		if err != nil {
			d.fail(v, "property %s: invalid value %q", key, v.Value)
		}
		m.TypedProperties[key] = value
		return true
	})
}

func (d *decoder) duration(key string, v *yaml.Node) *durationpb.Duration {
	span, err := time.ParseDuration(units.ExpandDays(d.scalar(v)))
	if err != nil {
		d.fail(v, "%s: %q is not a duration such as 30s, 24h or 7d", key, v.Value)
	}
	return durationpb.New(span)
}

func (d *decoder) base64(key string, v *yaml.Node) []byte {
	b, err := base64.StdEncoding.DecodeString(d.scalar(v))
	if err != nil {
		d.fail(v, "%s: %q is not base64", key, v.Value)
	}
	return b
}

// flat adds the fields of an object to dst, as text, and returns dst. Fields of nested objects have the key
// "outer.inner".
func flat(o object, prefix string, dst map[string]string) map[string]string {
	for _, e := range o {
		if inner, ok := e.value.(object); ok {
			flat(inner, prefix+e.key+".", dst)
		} else {
			dst[prefix+e.key] = fmt.Sprint(e.value)
		}
	}
	return dst
}

func scheduleChanges(from, to *pb.Schedule) (changes []change) {
	a, b := map[string]string{}, flat(scheduleObject(to), "", map[string]string{})
	if from != nil {
		a = flat(scheduleObject(from), "", a)
	}
	all := maps.Clone(a)
	maps.Copy(all, b)
	delete(all, "name")
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if a[key] != b[key] {
			changes = append(changes, change{key, cmp.Or(a[key], "-"), cmp.Or(b[key], "-")})
		}
	}
	return changes
}

// schedules adds the changes of schedules. Both lists are sorted by name. wanted is nil if the file does not have the
// key schedules: no schedule is then deleted.
func (p *plan) schedules(wanted, there []*pb.Schedule) {
	find := func(list []*pb.Schedule, name string) *pb.Schedule {
		at := slices.IndexFunc(list, func(s *pb.Schedule) bool { return s.GetName() == name })
		if at < 0 {
			return nil
		}
		return list[at]
	}
	for _, want := range wanted {
		action, have := alterSchedule, find(there, want.GetName())
		if have == nil {
			action = createSchedule
		}
		if changes := scheduleChanges(have, want); len(changes) > 0 {
			p.steps = append(p.steps, step{Action: action, Schedule: want.GetName(), Changes: changes, schedule: want})
		}
	}
	for _, have := range there {
		if wanted != nil && find(wanted, have.GetName()) == nil {
			p.prune = append(p.prune, step{Action: deleteSchedule, Schedule: have.GetName()})
		}
	}
}
