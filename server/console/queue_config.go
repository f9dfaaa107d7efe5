// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/units"
)

type configField struct {
	Name, Label, Hint, Value string
	Check                    bool // the field is a checkbox
	Checked                  bool
	Options                  []string // choices; nil if the field has none
	New                      bool     // the field can be set only when a queue is created
	Policy                   string   // pattern of the policy that sets the value; empty without one
}

type configOption struct {
	*pb.QueueOption

	field protoreflect.FieldDescriptor
}

func configOptions() (list []configOption) {
	fields := (&pb.QueueConfig{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		option, _ := proto.GetExtension(fields.Get(i).Options(), pb.E_QueueOption).(*pb.QueueOption)
		list = append(list, configOption{option, fields.Get(i)})
	}
	return list
}

// choices returns the names of the values of an enum, without the first value.
func (o configOption) choices() (names []string) {
	if o.field.Enum() == nil {
		return nil
	}
	values := o.field.Enum().Values()
	for i := 1; i < values.Len(); i++ {
		name := strings.TrimPrefix(string(values.Get(i).Name()), strings.ToUpper(string(o.field.Name()))+"_")
		names = append(names, strings.ReplaceAll(strings.ToLower(name), "_", "-"))
	}
	return names
}

func configFields(q *pb.Queue) (list []configField) {
	from := q.GetConfig().ProtoReflect()
	for _, o := range configOptions() {
		f := configField{
			Name: string(o.field.Name()), Label: o.GetLabel(), Hint: o.GetUsage(), Options: o.choices(), New: o.GetFixed(),
		}
		switch sources := q.GetSources(); {
		case slices.Contains(sources.GetLimitedFields(), f.Name):
			f.Policy = sources.GetLimitPolicy()
		case from.Has(o.field) && !slices.Contains(sources.GetOwnFields(), f.Name):
			f.Policy = sources.GetPolicy()
		}
		switch v := from.Get(o.field); o.field.Kind() {
		case protoreflect.BoolKind:
			f.Check, f.Checked, f.Hint = true, v.Bool(), ""
		case protoreflect.EnumKind:
			f.Value = f.Options[min(max(int(v.Enum())-1, 0), len(f.Options)-1)]
		case protoreflect.MessageKind:
			if d, is := v.Message().Interface().(*durationpb.Duration); is && d.AsDuration() != 0 {
				f.Value = d.AsDuration().String()
			}
		default:
			if from.Has(o.field) {
				f.Value = v.String()
			}
		}
		list = append(list, f)
	}
	return list
}

// setFields returns the fields that do not have their default value.
func setFields(q *pb.Queue) (list []configField) {
	return slices.DeleteFunc(configFields(q), func(f configField) bool {
		return !f.Checked && (f.Value == "" || len(f.Options) > 0 && f.Value == f.Options[0])
	})
}

// changedFields returns the fields that a form changes. A cleared field that was set on the queue is reset, so
// that policies apply. A cleared field that a policy sets is set to 0 on the queue.
func changedFields(q *pb.Queue, config *pb.QueueConfig) (set, reset []string) {
	before, after := q.GetConfig().ProtoReflect(), config.ProtoReflect()
	for _, f := range configFields(q) {
		field := before.Descriptor().Fields().ByName(protoreflect.Name(f.Name))
		from, to := before.Get(field), after.Get(field)
		same := before.Has(field) == after.Has(field) && from.Equal(to)
		if field.Enum() != nil { // the first two values have the same meaning
			same = max(from.Enum(), 1) == max(to.Enum(), 1)
		}
		switch {
		case same:
		case !after.Has(field) && f.Policy == "":
			reset = append(reset, f.Name)
		default:
			set = append(set, f.Name)
		}
	}
	return set, reset
}

// formReader parses the fields of a form and stores the first error.
type formReader struct {
	v   *View
	err error
}

func (r *formReader) fail(name, text, want string) {
	if r.err == nil {
		r.err = invalid(fmt.Sprintf("%s is %q; %s.", strings.ReplaceAll(name, "_", " "), text, want))
	}
}

func (r *formReader) number(name string, limit uint64) uint64 {
	text := strings.TrimSpace(r.v.Get(name))
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > limit {
		r.fail(name, text, fmt.Sprintf("expected an integer up to %d", limit))
	}
	return n
}

func (r *formReader) size(name string) uint64 {
	text := strings.TrimSpace(r.v.Get(name))
	if text == "" {
		return 0
	}
	n, err := parseBytes(text)
	if err != nil {
		r.fail(name, text, "expected a size such as 512MiB or 10GiB")
	}
	return n
}

func (r *formReader) duration(name string) *durationpb.Duration {
	text := strings.TrimSpace(r.v.Get(name))
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(units.ExpandDays(text))
	if err != nil || d < 0 {
		r.fail(name, text, "expected a duration such as 30s, 15m, 24h or 7d")
	}
	return durationpb.New(d)
}

func parseBytes(text string) (uint64, error) {
	factor := uint64(1)
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if before, has := strings.CutSuffix(text, unit); has {
			text, factor = strings.TrimSpace(before), 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(text, "B")), 10, 64)
	if err == nil && n > (1<<63)/factor {
		err = strconv.ErrRange
	}
	return n * factor, err
}

// readConfig reads a configuration from a form into c. If isNew is set, it also reads the fields that can be set
// only at creation.
func readConfig(v *View, c *pb.QueueConfig, isNew bool) error {
	r := formReader{v: v}
	to := c.ProtoReflect()
	for _, o := range configOptions() {
		if o.GetFixed() && !isNew {
			continue
		}
		if value := r.value(&o); value.IsValid() {
			to.Set(o.field, value)
		} else {
			to.Clear(o.field)
		}
	}
	return r.err
}

func (r *formReader) value(o *configOption) (v protoreflect.Value) {
	name := string(o.field.Name())
	text := strings.TrimSpace(r.v.Get(name))
	if text == "" {
		return v
	}
	switch o.field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text)
	case protoreflect.MessageKind:
		return protoreflect.ValueOfMessage(r.duration(name).ProtoReflect())
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(max(slices.Index(o.choices(), text), 0) + 1))
	case protoreflect.DoubleKind:
		m, err := strconv.ParseFloat(text, 64)
		if err != nil {
			r.fail(name, text, "expected a number")
		}
		return protoreflect.ValueOfFloat64(m)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(r.number(name, math.MaxUint32)))
	default:
		if o.GetBytes() {
			return protoreflect.ValueOfUint64(r.size(name))
		}
		return protoreflect.ValueOfUint64(r.number(name, 1<<62))
	}
}
