// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	maxArgumentsBytes = 4 << 10
	maxTextBytes      = 256
	maxElements       = 16
	maxDepth          = 8
)

// redactedMessages contains the message types with client data, which is never recorded.
var redactedMessages = map[protoreflect.FullName]bool{ //nolint:gochecknoglobals // a table
	"lockstep.v1.Message":       true,
	"lockstep.v1.StoredMessage": true,
	"lockstep.v1.Value":         true,
}

// secretName matches the names of fields with values that must not be recorded.
var secretName = regexp.MustCompile(
	`(^|_)(body|bodies|payload|token|tokens|password|secret|secrets|credential|credentials|authorization|private_key|` +
		`properties|property)(_|$)`)

// Redacted reports whether the value of a field is withheld from the record. This also applies to all bytes and map
// fields. The record contains the size or the number of elements, if the field has one.
func Redacted(f protoreflect.FieldDescriptor) bool {
	if f.Kind() == protoreflect.BytesKind || f.IsMap() || secretName.MatchString(string(f.Name())) {
		return true
	}
	return f.Message() != nil && redactedMessages[f.Message().FullName()]
}

// arguments formats a request as JSON without the values of redacted fields. It returns "" if the request is empty,
// and only the size of arguments above maxArgumentsBytes.
func arguments(m proto.Message) string {
	b, err := json.Marshal(object(m.ProtoReflect(), 0))
	if err != nil || string(b) == "{}" {
		return ""
	}
	if len(b) > maxArgumentsBytes {
		return fmt.Sprintf(`{"withheld":"%d bytes of arguments"}`, len(b))
	}
	return string(b)
}

func object(m protoreflect.Message, depth int) any {
	if depth >= maxDepth {
		return "…"
	}
	out := map[string]any{}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(f.Name())
		switch {
		case Redacted(f):
			out[name] = size(f, v)
		case f.IsList():
			out[name] = list(f, v.List(), depth)
		default:
			out[name] = value(f, v, depth)
		}
		return true
	})
	return out
}

func size(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	case f.IsList():
		return fmt.Sprintf("[%d withheld]", v.List().Len())
	case f.IsMap():
		return fmt.Sprintf("[%d withheld]", v.Map().Len())
	case f.Kind() == protoreflect.BytesKind:
		return fmt.Sprintf("[%d bytes]", len(v.Bytes()))
	default:
		return "[withheld]"
	}
}

func list(f protoreflect.FieldDescriptor, l protoreflect.List, depth int) any {
	out := make([]any, 0, min(l.Len(), maxElements+1))
	for i := range min(l.Len(), maxElements) {
		out = append(out, value(f, l.Get(i), depth))
	}
	if more := l.Len() - maxElements; more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}

func value(f protoreflect.FieldDescriptor, v protoreflect.Value, depth int) any {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return message(v.Message(), depth)
	case protoreflect.EnumKind:
		if e := f.Enum().Values().ByNumber(v.Enum()); e != nil {
			return string(e.Name())
		}
		return int32(v.Enum())
	case protoreflect.StringKind:
		return shortened(v.String())
	case protoreflect.BytesKind:
		return size(f, v)
	default:
		return v.Interface()
	}
}

func message(m protoreflect.Message, depth int) any {
	switch t := m.Interface().(type) {
	case *timestamppb.Timestamp:
		return t.AsTime().Format(time.RFC3339Nano)
	case *durationpb.Duration:
		return t.AsDuration().String()
	}
	return object(m, depth+1)
}

func shortened(s string) string {
	if len(s) <= maxTextBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxTextBytes], "") + "… (" + strconv.Itoa(len(s)) + " bytes)"
}
