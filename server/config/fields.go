// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

type fieldInfo struct {
	key     string
	usage   string
	allowed string // see checkRange; may be empty
	run     Scope  // set if the setting can be changed at run time
	index   []int
}

type field struct {
	fieldInfo
	value reflect.Value
}

// fieldTable describes the fields of Config.
var fieldTable = appendFields(nil, "", nil, reflect.TypeFor[Config]())

func flagName(key string) string { return strings.ReplaceAll(key, ".", "-") }

func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(key))
}

func fields(c *Config) []field {
	all := make([]field, len(fieldTable))
	for i, info := range fieldTable {
		all[i] = info.of(c)
	}
	return all
}

func (i fieldInfo) of(c *Config) field {
	return field{i, reflect.ValueOf(c).Elem().FieldByIndex(i.index)}
}

func appendFields(dst []fieldInfo, prefix string, parent []int, t reflect.Type) []fieldInfo {
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("key")
		if key == "-" {
			continue
		}
		index := append(slices.Clone(parent), i)
		if f.Type.Kind() == reflect.Struct {
			dst = appendFields(dst, prefix+key+".", index, f.Type)
			continue
		}
		dst = append(dst, fieldInfo{
			key: prefix + key, usage: f.Tag.Get("usage"), allowed: f.Tag.Get("range"), run: Scope(f.Tag.Get("run")),
			index: index,
		})
	}
	return dst
}

func (f field) set(raw any) error {
	switch target := f.value.Addr().Interface().(type) {
	case *string:
		return setString(target, raw)
	case *int:
		return assign(target, raw, func(text string) (int, error) {
			n, err := strconv.Atoi(text)
			if err != nil {
				return 0, fmt.Errorf("%q is not a whole number", text)
			}
			return n, nil
		})
	case *bool:
		return assign(target, raw, func(text string) (bool, error) {
			b, err := strconv.ParseBool(text)
			if err != nil {
				return false, fmt.Errorf("%q is neither true nor false", text)
			}
			return b, nil
		})
	case *Percent:
		return assign(target, raw, ParsePercent)
	case *Ratio:
		return assign(target, raw, ParseRatio)
	case *Size:
		return assign(target, raw, ParseSize)
	case *Duration:
		return assign(target, raw, ParseDuration)
	case *[]string:
		return setList(target, raw)
	default:
		return fmt.Errorf("unsupported setting type %T; this is a bug", target)
	}
}

func assign[T any](target *T, raw any, parse func(string) (T, error)) error {
	v, err := parse(scalar(raw))
	if err == nil {
		*target = v
	}
	return err
}

func setString(target *string, raw any) error {
	switch raw.(type) {
	case []any, map[string]any, map[any]any:
		return fmt.Errorf("must be a single value, not a list or group")
	}
	*target = scalar(raw)
	return nil
}

func setList(target *[]string, raw any) error {
	switch v := raw.(type) {
	case []any:
		list := make([]string, 0, len(v))
		for _, e := range v {
			list = append(list, scalar(e))
		}
		*target = list
	case map[string]any, map[any]any:
		return fmt.Errorf("must be a list, not a group")
	default:
		*target = nil
		for part := range strings.SplitSeq(scalar(v), ",") {
			if part = strings.TrimSpace(part); part != "" {
				*target = append(*target, part)
			}
		}
	}
	return nil
}

func scalar(raw any) string {
	if raw == nil {
		return ""
	}
	return fmt.Sprint(raw)
}

func (f field) text() string {
	switch v := f.value.Interface().(type) {
	case []string:
		return strings.Join(v, ",")
	default:
		return fmt.Sprint(v)
	}
}

func (f field) typeName() string {
	switch f.value.Interface().(type) {
	case Size:
		return "size"
	case Duration:
		return "duration"
	case bool:
		return "bool"
	case Percent:
		return "percent"
	case Ratio:
		return "ratio"
	case int:
		return "number"
	case []string:
		return "list"
	default:
		return "string"
	}
}

// didYouMean returns a suggestion for a mistyped word. It returns "" if no known word is similar.
func didYouMean(word string, known []string) string {
	if n := nearest(word, known); n != "" {
		return "; did you mean " + n + "?"
	}
	return ""
}

func nearest(word string, known []string) string {
	best, bestDistance := "", len(word)/2+1
	for _, k := range known {
		if d := distance(word, k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
