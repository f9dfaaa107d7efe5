// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// Naive evaluates the expression for a message after decoding all properties and, with encoding/json, the whole
// body.
func (f *Filter) Naive(record []byte) bool {
	m, err := txn.DecodeMessage(record)
	if err != nil {
		return true
	}
	a := &activation{uses: &uses{allProperties: true, body: &field{}}, record: record, message: m, body: NaiveJSON(m.Body)}
	if a.body == nil {
		a.body = types.NullValue
	}
	result, _, err := f.program.Eval(a)
	return err == nil && result == types.True
}

// NaiveJSON decodes a JSON text. It returns nil if text is invalid, too large or too deep.
func NaiveJSON(text []byte) any {
	if !utf8.Valid(text) || len(text) > MaxJSONBytes {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() || !json.Valid(text) || depth(v) > MaxJSONDepth {
		return nil
	}
	return converted(v)
}

func depth(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			n = max(n, depth(e))
		}
		return n + 1
	case []any:
		for _, e := range v {
			n = max(n, depth(e))
		}
		return n + 1
	}
	return 0
}

func converted(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = converted(v[k])
		}
	case []any:
		for i := range v {
			v[i] = converted(v[i])
		}
	case json.Number:
		if n, err := v.Int64(); err == nil && !strings.ContainsAny(v.String(), ".eE") {
			return n
		}
		return number([]byte(v))
	}
	return v
}

// ParseJSON decodes a JSON text like the variable body. v is nil if the text is invalid or exceeds a limit. limited
// reports whether it exceeds a limit.
func ParseJSON(text []byte) (v any, limited bool) {
	d := document{spans: make([]span, 1)}
	root := &field{whole: true}
	if d.parse(text, root) {
		v, _ = d.decode(root)
	}
	return v, d.limited
}
