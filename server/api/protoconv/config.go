// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const hundredths = 100 // redelivery_multiplier is stored in hundredths

// configFields contains the fields of pb.QueueConfig. The field with number n corresponds to bit n-1 of a
// txn.ConfigMask.
var configFields = (&pb.QueueConfig{}).ProtoReflect().Descriptor().Fields() //nolint:gochecknoglobals // a constant

// ConfigField returns the mask bit of a field of pb.QueueConfig, or 0 if the field does not exist.
func ConfigField(name string) txn.ConfigMask {
	f := configFields.ByName(protoreflect.Name(name))
	if f == nil {
		return 0
	}
	return 1 << (f.Number() - 1)
}

// fieldNames returns the names of the fields in a mask. It omits fields that pb.QueueConfig does not have.
func fieldNames(fields txn.ConfigMask) (names []string) {
	for i := range configFields.Len() {
		if f := configFields.Get(i); fields>>(f.Number()-1)&1 == 1 {
			names = append(names, string(f.Name()))
		}
	}
	return names
}

// QueuePolicy converts a policy. It ignores dead_letter of the defaults. Errors wrap ErrInvalid.
func QueuePolicy(in *pb.QueuePolicy) (p txn.QueuePolicy, err error) {
	if p.Priority = uint64(in.GetPriority()); p.Priority > txn.MaxPolicyPriority {
		return p, fmt.Errorf("%w: priority is %d, maximum is %d", apierror.ErrInvalid, p.Priority, txn.MaxPolicyPriority)
	}
	if p.Defaults, err = Config(in.GetDefaults()); err != nil {
		return p, fmt.Errorf("defaults: %w", err)
	}
	if p.Limits, err = Config(in.GetLimits()); err != nil {
		return p, fmt.Errorf("limits: %w", err)
	}
	if p.Defaults.Priorities != 0 {
		return p, fmt.Errorf("%w: defaults: priorities can only be set at the creation of a queue", apierror.ErrInvalid)
	}
	if in.GetLimits().GetDeadLetter() != "" || p.Limits.Fields()&^txn.LimitFields != 0 {
		return p, fmt.Errorf("%w: limits: only max_messages, max_bytes, max_deliveries and ttl can be limited",
			apierror.ErrInvalid)
	}
	if in.GetDefaults().GetDeadLetter() == "" && p.Defaults.Fields()|p.Limits.Fields() == 0 {
		return p, fmt.Errorf("%w: policy sets no option", apierror.ErrInvalid)
	}
	return p, nil
}

// QueuePolicyToProto converts a policy. deadLetter is the name of the dead-letter queue in its defaults.
func QueuePolicyToProto(pattern string, p *txn.QueuePolicy, deadLetter string) *pb.QueuePolicy {
	return &pb.QueuePolicy{
		Pattern: pattern, Priority: uint32(p.Priority), Defaults: ConfigToProto(&p.Defaults, deadLetter),
		Limits: ConfigToProto(&p.Limits, ""),
	}
}

// Config converts the configuration of a queue. It ignores dead_letter. Errors wrap ErrInvalid and name the field.
func Config(in *pb.QueueConfig) (c txn.Config, err error) {
	from := in.ProtoReflect()
	for i := range configFields.Len() {
		f := configFields.Get(i)
		if f.Kind() == protoreflect.StringKind {
			continue // dead_letter
		}
		v, err := configValue(f, from.Get(f))
		if err != nil {
			return c, err
		}
		to, most := c.Field(int(f.Number()) - 1)
		if v > most {
			return c, fmt.Errorf("%w: %s is %d, maximum is %d; 0 means no limit", apierror.ErrInvalid, f.Name(), v, most)
		}
		*to = v
	}
	return c, CheckAckTimeout(time.Duration(c.AckTimeout) * time.Millisecond)
}

// Limits of an acknowledgement deadline.
const (
	minAckTimeout = time.Second
	maxAckTimeout = 24 * time.Hour
)

// CheckAckTimeout returns an error that wraps ErrInvalid unless d is 0 or from minAckTimeout to maxAckTimeout.
func CheckAckTimeout(d time.Duration) error {
	if d != 0 && (d < minAckTimeout || d > maxAckTimeout) {
		return fmt.Errorf("%w: ack_timeout is %v, must be 0 or %v to %v", apierror.ErrInvalid, d, minAckTimeout,
			maxAckTimeout)
	}
	return nil
}

func configValue(f protoreflect.FieldDescriptor, v protoreflect.Value) (uint64, error) {
	switch f.Kind() {
	case protoreflect.BoolKind:
		if v.Bool() {
			return 1, nil
		}
		return 0, nil
	case protoreflect.MessageKind:
		d, _ := v.Message().Interface().(*durationpb.Duration)
		if !v.Message().IsValid() { // not set
			d = nil
		}
		return Millis(string(f.Name()), d)
	case protoreflect.DoubleKind:
		m := v.Float()
		if m != 0 && !(m >= 1 && m <= txn.MaxMultiplier/hundredths) { // the negated condition also rejects NaN
			return 0, fmt.Errorf("%w: %s is %v, must be 1 to %d, or 0 for 1", apierror.ErrInvalid, f.Name(), m,
				txn.MaxMultiplier/hundredths)
		}
		return uint64(math.Round(m * hundredths)), nil
	case protoreflect.EnumKind: // UNSPECIFIED (0) and the value 1 are both stored as 0
		if f.Enum().Values().ByNumber(v.Enum()) == nil {
			return 0, fmt.Errorf("%w: unknown %s %d", apierror.ErrInvalid, f.Name(), v.Enum())
		}
		return uint64(max(v.Enum()-1, 0)), nil
	default:
		return v.Uint(), nil
	}
}

// ConfigToProto converts the configuration of a queue. deadLetter is the name of its dead-letter queue.
func ConfigToProto(c *txn.Config, deadLetter string) *pb.QueueConfig {
	out := &pb.QueueConfig{DeadLetter: deadLetter}
	to := out.ProtoReflect()
	for i := range configFields.Len() {
		f := configFields.Get(i)
		v, _ := c.Field(int(f.Number()) - 1)
		if *v == 0 {
			continue
		}
		switch f.Kind() {
		case protoreflect.StringKind: // dead_letter
		case protoreflect.BoolKind:
			to.Set(f, protoreflect.ValueOfBool(true))
		case protoreflect.MessageKind:
			to.Set(f, protoreflect.ValueOfMessage(duration(*v).ProtoReflect()))
		case protoreflect.DoubleKind:
			to.Set(f, protoreflect.ValueOfFloat64(float64(*v)/hundredths))
		case protoreflect.EnumKind:
			to.Set(f, protoreflect.ValueOfEnum(protoreflect.EnumNumber(*v)+1))
		case protoreflect.Uint32Kind:
			to.Set(f, protoreflect.ValueOfUint32(uint32(*v)))
		default:
			to.Set(f, protoreflect.ValueOfUint64(*v))
		}
	}
	return out
}

func duration(ms uint64) *durationpb.Duration {
	if ms == 0 {
		return nil
	}
	return durationpb.New(time.Duration(ms) * time.Millisecond)
}
