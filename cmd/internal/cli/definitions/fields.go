// SPDX-License-Identifier: Apache-2.0

package definitions

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/units"
)

// The configuration of a queue is read and written field by field as in client.QueueConfig, so that a new field there
// requires no change here. MaxMessages is written as max_messages, a duration as 30s, and a number of bytes as 64MiB.
// Fields with the value of a new queue are omitted.

// configField is a field of a configuration.
type configField struct {
	name  string // in the file
	index int    // in client.QueueConfig
}

// configFields returns all fields in their order.
func configFields() []configField {
	t := reflect.TypeFor[admin.QueueConfig]()
	fields := make([]configField, t.NumField())
	for i := range fields {
		fields[i] = configField{name: snakeCase(t.Field(i).Name), index: i}
	}
	return fields
}

// policyFields returns the fields that a subscription can override.
func policyFields() []configField {
	return slices.DeleteFunc(configFields(), func(f configField) bool {
		return !slices.Contains(admin.PolicyFields(), f.name)
	})
}

// own is get for a field that a subscription overrides. It also returns the value of a new queue.
func (f configField) own(c *admin.QueueConfig) any {
	if v := f.get(c); v != nil {
		return v
	}
	if _, is := f.of(c).Interface().(time.Duration); is {
		return "0s"
	}
	return f.of(c).Interface()
}

// snakeCase converts the name of a Go field to a key. It handles acronyms: DeadLetterExpired, TTL.
func snakeCase(name string) string {
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

func (f configField) of(c *admin.QueueConfig) reflect.Value {
	return reflect.ValueOf(c).Elem().Field(f.index)
}

// isSize reports whether the field is a number of bytes.
func (f configField) isSize() bool { return strings.HasSuffix(f.name, "_bytes") }

// get returns the value as written to the file: a string, an unsigned number, a number or a bool. For the value of a
// new queue it returns nil.
func (f configField) get(c *admin.QueueConfig) any {
	v := f.of(c)
	if v.IsZero() {
		return nil
	}
	switch typed := v.Interface().(type) {
	case time.Duration:
		return output.Span(typed)
	case fmt.Stringer: // a kind that has names
		return typed.String()
	}
	switch v.Kind() {
	case reflect.Uint32, reflect.Uint64:
		if f.isSize() && v.Uint()%1024 == 0 && v.Uint() <= math.MaxInt64 {
			return config.Size(v.Uint()).String()
		}
		return v.Uint()
	default:
		return v.Interface()
	}
}

// text returns the value for display.
func (f configField) text(c *admin.QueueConfig) string {
	if v := f.get(c); v != nil {
		return fmt.Sprint(v)
	}
	return "-"
}

// errValue is returned by set for an invalid value.
var errValue = errors.New("not possible")

// set parses a value in the format of get.
func (f configField) set(c *admin.QueueConfig, text string) error {
	v := f.of(c)
	switch v.Interface().(type) {
	case time.Duration:
		d, err := time.ParseDuration(units.ExpandDays(text))
		if err != nil {
			return fmt.Errorf("%w: %s is %q; use a duration, such as 30s, 24h or 7d", errValue, f.name, text)
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

func (f configField) setPlain(v reflect.Value, text string) error {
	switch v.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%w: %s is %q; use true or false", errValue, f.name, text)
		}
		v.SetBool(b)
	case reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if f.isSize() && err != nil {
			var size config.Size
			if size, err = config.ParseSize(text); err != nil {
				return fmt.Errorf("%w: %s: %w", errValue, f.name, err)
			}
			n = uint64(size)
		}
		if err != nil {
			return fmt.Errorf("%w: %s is %q; use an integer", errValue, f.name, text)
		}
		v.SetUint(n)
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return fmt.Errorf("%w: %s is %q; use a number", errValue, f.name, text)
		}
		v.SetFloat(n)
	case reflect.String:
		v.SetString(text)
	default:
		return fmt.Errorf("%w: %s has an unsupported type", errValue, f.name)
	}
	return nil
}
