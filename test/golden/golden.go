// SPDX-License-Identifier: Apache-2.0

// Package golden compares the output of commands with files below testdata. Scripts depend on names and types in the
// output of --output json, which must not change accidentally. UPDATE_GOLDEN=1 updates the files.
package golden

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// JSON compares the JSON encoding of v with the file name.json below testdata.
func JSON(t *testing.T, name string, v any) {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	require.NoError(t, enc.Encode(v))
	Text(t, name+".json", b.String())
}

// Text compares a text with the named file below testdata.
func Text(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text, file)
}

// Shape returns the field names of a JSON document, in their order, with types instead of values. It includes only the
// first element of a list.
func Shape(t *testing.T, document string) string {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(document))
	dec.UseNumber()
	return shape(t, dec)
}

func shape(t *testing.T, dec *json.Decoder) string {
	t.Helper()
	token, err := dec.Token()
	require.NoError(t, err)
	switch v := token.(type) {
	case json.Delim:
		var parts []string
		for dec.More() {
			if v == '[' {
				parts = append(parts, shape(t, dec))
				continue
			}
			name, err := dec.Token()
			require.NoError(t, err)
			parts = append(parts, fmt.Sprintf("%v: %s", name, shape(t, dec)))
		}
		_, err := dec.Token()
		require.NoError(t, err)
		if v == '[' {
			return "[" + strings.Join(parts[:min(1, len(parts))], "") + "]"
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case nil:
		return "null"
	case json.Number:
		return "number"
	default:
		return fmt.Sprintf("%T", v)
	}
}

// Fill sets each field of a message, recursively, to a value derived from the field's name. A new field therefore does
// not change the other values.
func Fill[M proto.Message](m M) M {
	fillMessage(m.ProtoReflect(), 0)
	return m
}

// deepest is the maximum depth of recursive messages.
const deepest = 6

func fillMessage(m protoreflect.Message, depth int) {
	if depth == deepest {
		return
	}
	switch m.Descriptor().FullName() {
	case "google.protobuf.Timestamp", "google.protobuf.Duration":
		m.Set(m.Descriptor().Fields().ByName("seconds"), protoreflect.ValueOfInt64(1_700_000_000))
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			entries := m.Mutable(f).Map()
			fillMessage(entries.Mutable(scalar(f.MapKey()).MapKey()).Message(), depth+1)
		case f.IsMap():
			entries := m.Mutable(f).Map()
			entries.Set(scalar(f.MapKey()).MapKey(), scalar(f.MapValue()))
		case f.IsList() && f.Message() != nil:
			fillMessage(m.Mutable(f).List().AppendMutable().Message(), depth+1)
		case f.IsList():
			m.Mutable(f).List().Append(scalar(f))
		case f.Message() != nil:
			fillMessage(m.Mutable(f).Message(), depth+1)
		default:
			m.Set(f, scalar(f))
		}
	}
}

// number returns a small number derived from the name.
func number(name string) uint32 { return 1 + crc32.ChecksumIEEE([]byte(name))%1000 }

func scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := number(string(f.FullName()))
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(f.Enum().Values().Get(1).Number())
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(n)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n) + 0.5)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("a " + string(f.Name())))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("a " + string(f.Name()))
	default:
		panic(fmt.Sprintf("golden: %v has the unsupported kind %v", f.FullName(), f.Kind()))
	}
}

// FillStruct is like Fill, for the struct that v points to. It skips functions, channels, interfaces with methods,
// and unexported fields.
func FillStruct(v any) { fillValue(reflect.ValueOf(v).Elem(), "") }

func fillValue(v reflect.Value, name string) {
	if !v.CanSet() {
		return
	}
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(1_700_000_000, 0).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillValue(v.Field(i), v.Type().Field(i).Name)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(v.Elem(), name)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillValue(v.Index(0), name)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillValue(key, name)
		fillValue(value, name)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Interface:
		if v.NumMethod() == 0 { // an empty interface
			v.Set(reflect.ValueOf(int64(number(name))))
		}
	default:
		fillScalar(v, name)
	}
}

func fillScalar(v reflect.Value, name string) {
	n := number(name)
	switch {
	case v.Kind() == reflect.Uint8:
		v.SetUint(7)
	case v.CanUint():
		v.SetUint(uint64(n))
	case v.CanInt():
		v.SetInt(int64(n))
	case v.CanFloat():
		v.SetFloat(float64(n) + 0.5)
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.Kind() == reflect.String:
		v.SetString("a " + name)
	}
}
