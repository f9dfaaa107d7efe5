// SPDX-License-Identifier: Apache-2.0

// Package queueconfig reads and writes the fields of admin.QueueConfig by name, as text. Their help texts are options
// in types.proto. New fields require no change here.
package queueconfig

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/units"
)

// Field is a field of admin.QueueConfig.
type Field struct {
	// Name is the key, such as max_messages for MaxMessages.
	Name string

	index  int // in admin.QueueConfig
	option *pb.QueueOption
}

// Fields returns all fields, in the order of admin.QueueConfig.
func Fields() []Field {
	t := reflect.TypeFor[admin.QueueConfig]()
	options := (&pb.QueueConfig{}).ProtoReflect().Descriptor().Fields()
	fields := make([]Field, t.NumField())
	for i := range fields {
		name := SnakeCase(t.Field(i).Name)
		option, _ := proto.GetExtension(options.ByName(protoreflect.Name(name)).Options(), pb.E_QueueOption).(*pb.QueueOption)
		fields[i] = Field{Name: name, index: i, option: option}
	}
	return fields
}

// PolicyFields returns the fields that a subscription can override.
func PolicyFields() []Field {
	return slices.DeleteFunc(Fields(), func(f Field) bool { return !slices.Contains(admin.PolicyFields(), f.Name) })
}

// Flag returns the name of the command-line flag.
func (f Field) Flag() string { return cmp.Or(f.option.GetFlag(), strings.ReplaceAll(f.Name, "_", "-")) }

// Label returns the name for display.
func (f Field) Label() string { return f.option.GetLabel() }

// IsSize reports whether the value is a number of bytes.
func (f Field) IsSize() bool { return f.option.GetBytes() }

// Usage returns the help text of the flag.
func (f Field) Usage() string { return f.option.GetUsage() }

// Own is like Get, but for a field that is set explicitly: it also returns default values, and never nil.
func (f Field) Own(c *admin.QueueConfig) any {
	if v := f.Get(c); v != nil {
		return v
	}
	if _, is := f.Value(c).Interface().(time.Duration); is {
		return "0s"
	}
	return f.Value(c).Interface()
}

// SnakeCase converts the name of a Go field to a key: DeadLetterExpired to dead_letter_expired, TTL to ttl.
func SnakeCase(name string) string {
	var b strings.Builder
	letters := []rune(name)
	for i, r := range letters {
		if unicode.IsUpper(r) && i > 0 && !(unicode.IsUpper(letters[i-1]) && (i+1 == len(letters) ||
			unicode.IsUpper(letters[i+1]))) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Value returns the settable value of the field in a configuration.
func (f Field) Value(c *admin.QueueConfig) reflect.Value {
	return reflect.ValueOf(c).Elem().Field(f.index)
}

// Get returns the value as written to a file: a string, a number or a bool. It returns nil for the default value of
// a new queue.
func (f Field) Get(c *admin.QueueConfig) any {
	v := f.Value(c)
	if v.IsZero() {
		return nil
	}
	switch typed := v.Interface().(type) {
	case time.Duration:
		return output.Span(typed)
	case fmt.Stringer: // an enumeration
		return typed.String()
	}
	switch v.Kind() {
	case reflect.Uint32, reflect.Uint64:
		if f.IsSize() && v.Uint()%1024 == 0 && v.Uint() <= math.MaxInt64 {
			return config.Size(v.Uint()).String()
		}
		return v.Uint()
	default:
		return v.Interface()
	}
}

// Text returns the value for display; "-" for the default value of a new queue.
func (f Field) Text(c *admin.QueueConfig) string {
	if v := f.Get(c); v != nil {
		return fmt.Sprint(v)
	}
	return "-"
}

// ErrValue is returned by Set for an invalid value.
var ErrValue = errors.New("invalid value")

// Set parses a value in the format of Get, and stores the value in the configuration. The error wraps ErrValue or
// client.ErrInvalid.
func (f Field) Set(c *admin.QueueConfig, text string) error {
	v := f.Value(c)
	switch v.Interface().(type) {
	case time.Duration:
		d, err := time.ParseDuration(units.ExpandDays(text))
		if err != nil {
			return fmt.Errorf("%w: %s: %q is not a duration such as 30s, 24h or 7d", ErrValue, f.Name, text)
		}
		v.SetInt(int64(d))
		return nil
	case admin.Overflow:
		o, err := admin.ParseOverflow(text)
		if err != nil {
			return err
		}
		v.Set(reflect.ValueOf(o))
		return nil
	}
	return f.setPlain(v, text)
}

func (f Field) setPlain(v reflect.Value, text string) error {
	switch v.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%w: %s: %q is not true or false", ErrValue, f.Name, text)
		}
		v.SetBool(b)
	case reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if f.IsSize() && err != nil {
			var size config.Size
			if size, err = config.ParseSize(text); err != nil {
				return fmt.Errorf("%w: %s: %w", ErrValue, f.Name, err)
			}
			n = uint64(size)
		}
		if err != nil {
			return fmt.Errorf("%w: %s: %q is not a valid integer", ErrValue, f.Name, text)
		}
		v.SetUint(n)
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return fmt.Errorf("%w: %s: %q is not a number", ErrValue, f.Name, text)
		}
		v.SetFloat(n)
	case reflect.String:
		v.SetString(text)
	default:
		return fmt.Errorf("%w: %s has an unsupported type", ErrValue, f.Name)
	}
	return nil
}
