// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Each field of a configuration is converted in both directions, and has a separate bit in the mask.
func TestConfigFields(t *testing.T) {
	fields := (&pb.QueueConfig{}).ProtoReflect().Descriptor().Fields()
	require.Zero(t, ConfigField("no_such_field"))
	for i := range fields.Len() {
		name := string(fields.Get(i).Name())
		stored := reflect.TypeFor[txn.Config]().Field(int(fields.Get(i).Number()) - 1).Name
		require.Equal(t, strings.ReplaceAll(name, "_", ""), strings.ToLower(stored))
		in := &pb.QueueConfig{}
		set(t, in, name)
		c, err := Config(in)
		require.NoError(t, err, name)
		if name != "dead_letter" {
			require.Equal(t, ConfigField(name), c.Fields(), name)
		}
		require.True(t, proto.Equal(in, ConfigToProto(&c, in.GetDeadLetter())), "%s: %v", name, in)
	}
}

// set sets the named field of a configuration.
func set(t *testing.T, in *pb.QueueConfig, name string) {
	t.Helper()
	m := in.ProtoReflect()
	f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	require.NotNil(t, f, name)
	switch f.Kind() {
	case protoreflect.Uint64Kind:
		m.Set(f, protoreflect.ValueOfUint64(7))
	case protoreflect.Uint32Kind:
		m.Set(f, protoreflect.ValueOfUint32(7))
	case protoreflect.StringKind:
		m.Set(f, protoreflect.ValueOfString("dead"))
	case protoreflect.BoolKind:
		m.Set(f, protoreflect.ValueOfBool(true))
	case protoreflect.DoubleKind:
		m.Set(f, protoreflect.ValueOfFloat64(1.25))
	case protoreflect.EnumKind:
		m.Set(f, protoreflect.ValueOfEnum(pb.Overflow_OVERFLOW_DEAD_LETTER_HEAD.Number()))
	case protoreflect.MessageKind:
		m.Set(f, protoreflect.ValueOfMessage((&durationpb.Duration{Seconds: 90, Nanos: 5_000_000}).ProtoReflect()))
	default:
		t.Fatalf("no test value for field %s of kind %s", name, f.Kind())
	}
}

// An invalid value in a configuration is rejected. The error contains the name of the field and the valid values.
func TestInvalidConfig(t *testing.T) {
	for want, in := range map[string]*pb.QueueConfig{
		"is 1000001": {MaxDeliveries: 1_000_001},
		"ttl is -1":  {Ttl: &durationpb.Duration{Seconds: -1}},
		"delay is 0": {Delay: &durationpb.Duration{Nanos: -1}},
		"redelivery_delay ": {
			RedeliveryDelay: &durationpb.Duration{Seconds: 3_153_600_001},
		},
		"redelivery_max_delay ": {
			RedeliveryMaxDelay: &durationpb.Duration{Seconds: 1, Nanos: 2e9},
		},
		"retention_age ":   {RetentionAge: &durationpb.Duration{Seconds: math.MaxInt64}},
		"temporary_grace ": {TemporaryGrace: &durationpb.Duration{Seconds: -5}},
		" is 0.5, ":        {RedeliveryMultiplier: 0.5},
		"is NaN":           {RedeliveryMultiplier: math.NaN()},
		" is 1001":         {RedeliveryMultiplier: 1001},
		"overflow 4":       {Overflow: 4},
	} {
		_, err := Config(in)
		require.ErrorIs(t, err, apierror.ErrInvalid)
		require.Contains(t, err.Error(), want)
	}
}

// An invalid value in a message is rejected. The error contains the name of the field and the valid values.
func TestInvalidMessage(t *testing.T) {
	for want, m := range map[string]*pb.Message{
		"priority 10":         {Priority: new(uint32(10))},
		"or ttl":              {ExpiresAt: timestamppb.Now(), Ttl: durationpb.New(1e9)},
		"or delay":            {DeliverAt: timestamppb.Now(), Delay: durationpb.New(1e9)},
		"ttl is 0":            {Ttl: &durationpb.Duration{}},
		"ttl is -1":           {Ttl: &durationpb.Duration{Seconds: -1}},
		"delay is 3153600001": {Delay: &durationpb.Duration{Seconds: 3_153_600_001}},
		"expires_at ":         {ExpiresAt: &timestamppb.Timestamp{}},
		" 253402300800":       {DeliverAt: &timestamppb.Timestamp{Seconds: 253_402_300_800}},
		"-1 ns":               {DeliverAt: &timestamppb.Timestamp{Seconds: 1, Nanos: -1}},
		`"k"`:                 {TypedProperties: map[string]*pb.PropertyValue{"k": {}}},
	} {
		require.True(t, HasAttributes(m))
		a, err := Attributes(m, 1)
		if err == nil {
			err = txn.CheckMessage(&a, nil, nil)
		}
		require.ErrorIs(t, err, txn.ErrInvalidMessage, want)
		require.Contains(t, err.Error(), want)
	}
}

// TTL and delay are relative to the time at which the active accepts the message, and are rounded up to
// milliseconds.
func TestMessageTimes(t *testing.T) {
	a, err := Attributes(&pb.Message{Ttl: durationpb.New(1_500_000_001), Delay: &durationpb.Duration{}}, 1000)
	require.NoError(t, err)
	require.EqualValues(t, 2501, a.ExpiresAtMS)
	require.EqualValues(t, 1000, a.DeliverAtMS, "a delay of 0 overrides the delay of the queue")
	a, err = Attributes(&pb.Message{ExpiresAt: &timestamppb.Timestamp{Seconds: 7, Nanos: 1_999_999}}, 1000)
	require.NoError(t, err)
	require.EqualValues(t, 7001, a.ExpiresAtMS)
	require.Zero(t, a.DeliverAtMS)
}
