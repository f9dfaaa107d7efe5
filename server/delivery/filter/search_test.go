// SPDX-License-Identifier: Apache-2.0

package filter_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// A search evaluates expressions on JSON bodies. If a body exceeds a limit, the result is Unevaluated.
func TestSearchBody(t *testing.T) {
	const order = `{"customer": {"id": "4711", "vip": true, "n\u0061me": "M\u00fcller"}, "items": [{"sku": "a", "n": 2},
		{"sku": "b", "n": 1}], "total": 12.5, "id": 9007199254740993, "big": 18446744073709551615, "none": null, "a.b": 1}`
	for _, c := range []struct {
		text, body string
		want       filter.Result
	}{
		{`body.customer.id == "4711"`, order, filter.Matches},
		{`body["customer"]["id"] == "4711"`, order, filter.Matches},
		{`body.customer.id == 4711`, order, filter.NoMatch},
		{`body.customer.name == "Müller"`, order, filter.Matches},
		{`body.customer.vip`, order, filter.Matches},
		{`body.total > 12 && body.total < 13`, order, filter.Matches},
		{`body.id == 9007199254740993`, order, filter.Matches},
		{`body.id == 9007199254740992`, order, filter.NoMatch},
		{`body.big == 18446744073709551615u`, order, filter.Matches},
		{`body.none == null`, order, filter.Matches},
		{`has(body.none) && !has(body.nothing)`, order, filter.Matches},
		{`body["a.b"] == 1`, order, filter.Matches},
		{`body.items.exists(i, i.sku == "b" && i.n == 1)`, order, filter.Matches},
		{`body.items[0].sku == "a" && size(body.items) == 2`, order, filter.Matches},
		{`body.items.sku == "a"`, order, filter.NoMatch},
		{`size(body) == 7`, order, filter.Matches},
		{`body.customer == {"id": "4711"}`, order, filter.NoMatch},
		{`body == null`, order, filter.NoMatch},
		{`body == null`, "no JSON", filter.Matches},
		{`body == null`, "", filter.Matches},
		{`body == 5`, " 5\n", filter.Matches},
		{`has(body.x)`, "[]", filter.NoMatch},
		{`!has(body.x)`, "no JSON", filter.Matches},
		{`body.x != 1`, "no JSON", filter.NoMatch},
		{`body.x == 1`, `{"x": 1, "x": 2}`, filter.NoMatch},
		{`body.x == 2`, `{"x": 1, "x": 2}`, filter.Matches},
		{`body.x.y == 1`, `{"x": {"y": 1}, "x": {}}`, filter.NoMatch},
		{`body.x == 1`, `{"\u0078": 1}`, filter.Matches},
		{`body.x == 1`, `{"x": 1} x`, filter.NoMatch},
		{`body.x == 1`, `{"x": 1`, filter.NoMatch},
		{`body.x == 1`, `{"x": 1, "y": 01}`, filter.NoMatch},
		{`body.x == 1`, "{\"x\": 1, \"y\": \"\xff\"}", filter.NoMatch},
		{`body.x > 1e300`, `{"x": 1e999}`, filter.Matches},
		{`body.x == -5 && body.x < 0`, `{"x": -5}`, filter.Matches},
		{`body.x == 1.0`, `{"x": 1}`, filter.Matches},
		{`body.x == 100`, `{"x": 1e2}`, filter.Matches},
		{`body.x == "\U0001f600"`, `{"x": "\ud83d\ude00"}`, filter.Matches},
		{`body.x == "\ufffda"`, `{"x": "\ud83da"}`, filter.Matches},
		{`body.x == 1`, `{"x": 1, "y": ` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + "}", filter.Matches},
		{`body.x == 1`, `{"x": 1, "y": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "}", filter.Unevaluated},
		{`body.x == 1`, `{"x": 1}` + strings.Repeat(" ", filter.MaxJSONBytes-8), filter.Matches},
		{`body.x == 1`, `{"x": 1}` + strings.Repeat(" ", filter.MaxJSONBytes), filter.Unevaluated},
		{`size == 0 && body.x == 1`, `{"x": 1}` + strings.Repeat(" ", filter.MaxJSONBytes), filter.NoMatch},
		{`size > 0 || body.x == 1`, `{"x": 1}` + strings.Repeat(" ", filter.MaxJSONBytes), filter.Matches},
		{`body.x == 1`, strings.Repeat("x", filter.MaxJSONBytes+1), filter.NoMatch},
		{`size(body.x) > 0`, `{"x": [` + strings.Repeat("0,", filter.MaxJSONValues) + "0]}", filter.Unevaluated},
		{`body.x.contains("y")`, `{"x": "` + strings.Repeat("x", 1<<20-20) + `y"}`, filter.Matches},
		{`body.x.matches("a*b*c*d*e*f*y")`, `{"x": "` + strings.Repeat("x", 1<<20-20) + `y"}`, filter.Unevaluated},
		{`[1].exists(body, body == 1)`, "no JSON", filter.Matches},
	} {
		f, err := filter.CompileSearch(c.text)
		require.NoError(t, err, c.text)
		for range 2 {
			got, err := f.Evaluate(record(t, nil, nil, c.body))
			require.NoError(t, err)
			require.Equal(t, c.want, got, "%s of %.60s", c.text, c.body)
		}
		require.Equal(t, c.want == filter.Matches, f.Naive(record(t, nil, nil, c.body)) && c.want != filter.Unevaluated)
	}
}

func TestCorruptRecordIsNoMatch(t *testing.T) {
	f, err := filter.CompileSearch(`true`)
	require.NoError(t, err)
	got, err := f.Evaluate([]byte{1, 2, 3})
	require.ErrorIs(t, err, txn.ErrMalformed)
	require.Equal(t, filter.NoMatch, got)
}

func TestInvalidSearchIsRejected(t *testing.T) {
	for _, text := range []string{
		`body.x = 1`,
		`body.a.all(x, body.b.all(y, x == y))`,
		`body.a.all(x, ` + strings.Repeat(`x.matches("a.*b.*c.*d.*e.*f.*g") && `, 4) + `true)`,
		`body.a` + strings.Repeat(".a", 2000),
		`body.a` + strings.Repeat("[0]", 100),
	} {
		_, err := filter.CompileSearch(text)
		require.ErrorIs(t, err, filter.ErrInvalid, text)
		require.Less(t, len(err.Error()), 600)
	}
}

// random generates expressions and messages from few names and values, so that expressions often match.
type random struct{ *rand.Rand }

func (r random) of(list ...string) string { return list[r.IntN(len(list))] }

func (r random) literal() string {
	return r.of(`"a"`, `"b"`, `""`, `"4711"`, "0", "1", "-3", "1.5", "1.0", "4711", "true", "false", "null", "5u",
		`timestamp("2023-11-14T22:13:20Z")`, `b"a"`)
}

func (r random) operand() string {
	return r.of("properties.k", "properties.l", `properties["m"]`, "subject", "group", "priority", "size", "published_at",
		"expires_at", "body.a", "body.b", "body.a.b", `body["a"].c`, "body.l", "body.l[0]", "body")
}

func (r random) expression(depth int) string {
	if depth > 0 {
		switch a, b := r.expression(depth-1), r.expression(depth-1); r.IntN(8) {
		case 0, 1:
			return a + " && " + b
		case 2, 3:
			return "(" + a + " || " + b + ")"
		case 4:
			return "!(" + a + ")"
		case 5:
			return "(" + a + " ? " + b + " : " + r.expression(depth-1) + ")"
		}
	}
	switch a := r.operand(); r.IntN(8) {
	case 0:
		return r.of("has(properties.k)", "has(properties.n)", "has(body.a)", "has(body.a.b)", "has(body.z)")
	case 1:
		return a + " in [" + r.literal() + ", " + r.literal() + "]"
	case 2:
		return a + r.of(".startsWith(", ".endsWith(", ".contains(") + r.of(`"a"`, `""`, `"47"`) + ")"
	case 3:
		return r.literal() + r.of(" == ", " != ", " < ", " >= ") + a
	case 4:
		return r.of("properties.exists(k, k == \"l\")", "size(properties) > 1", "body.l.exists(x, x == 1)", "size(body) == 2")
	default:
		return a + r.of(" == ", " == ", " != ", " < ", " <= ", " > ", " >= ") + r.literal()
	}
}

func (r random) json(depth int) string {
	scalar := func() string {
		return r.of(`"a"`, `"b"`, `""`, `"4711"`, `"\u0061"`, "0", "1", "-3", "1.5", "1.0", "4711", "1e0", "true", "false",
			"null", "18446744073709551615", "1e999")
	}
	if depth == 0 {
		return scalar()
	}
	switch r.IntN(4) {
	case 0:
		return scalar()
	case 1:
		return "[" + r.json(depth-1) + " , " + scalar() + "]"
	}
	var fields []string
	for range r.IntN(4) {
		fields = append(fields, r.of(`"a"`, `"b"`, `"c"`, `"l"`, `"\u0061"`, `"x"`)+": "+r.json(depth-1))
	}
	return "{" + strings.Join(fields, ",") + "}"
}

func (r random) message(t testing.TB) []byte {
	a, props := &txn.Attributes{}, map[string]string{}
	if r.IntN(2) == 0 {
		a.Subject, a.Priority = r.of("", "a", "4711"), new(uint8(r.IntN(6)))
	}
	for _, key := range []string{"k", "l", "m", "n"} {
		switch r.IntN(6) {
		case 0, 1:
			props[key] = r.of("a", "b", "", "4711")
		case 2:
			a.Values = append(a.Values, txn.TypedProperty{
				Key: key, Value: txn.Value{Kind: txn.ValueInt64, Bits: uint64(r.IntN(3))},
			})
		case 3:
			a.Values = append(a.Values, txn.TypedProperty{
				Key: key, Value: txn.Value{Kind: txn.ValueBool, Bits: uint64(r.IntN(2))},
			})
		}
	}
	body := r.json(3)
	switch r.IntN(10) {
	case 0:
		body = r.of("a", "", "{", `{"a": }`, `[1,]`, "\xff", `{"a": 1}}`)
	case 1:
		body = " " + body + "\n"
	}
	return record(t, a, props, body)
}

// The result of Evaluate equals that of an evaluation with the whole message decoded.
func TestEvaluateEqualsNaiveEvaluation(t *testing.T) {
	seed := uint64(1)
	r := random{rand.New(rand.NewPCG(seed, 2))}
	matched, compiled := 0, 0
	for i := range 1500 {
		text := r.expression(i % 4)
		f, err := filter.CompileSearch(text)
		if err != nil {
			require.ErrorIs(t, err, filter.ErrInvalid)
			continue
		}
		compiled++
		for range 10 {
			m := r.message(t)
			got, err := f.Evaluate(m)
			require.NoError(t, err)
			want := f.Naive(m)
			if want {
				matched++
			}
			require.Equal(t, want, got == filter.Matches, "%s of %q", text, m)
		}
	}
	require.Greater(t, compiled, 750)
	require.Greater(t, matched, 1500)
}

// ParseJSON returns the same value as encoding/json, unless a limit is exceeded.
func FuzzJSON(f *testing.F) {
	for _, text := range []string{
		`{"a": [1, -2.5e3, "x\u00e4\n", null, true, {}]}`, `[]`, `{"a":1,"a":{"b":2}}`, `"\ud800"`, `"\ud83d\ude00"`, "01",
		`{"a" 1}`, "[1 2]", "nul", "\"\x01\"", "1e", "1.", "--1", `"\x"`, `{"a":1,}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, limited := filter.ParseJSON(text)
		want := filter.NaiveJSON(text)
		if limited {
			return
		}
		require.Equal(t, want, got, "%q", text)
	})
}

// benchMessage returns a message of 512 bytes.
func benchMessage(b testing.TB) []byte {
	return record(b, nil, map[string]string{"region": "eu", "kind": "order"},
		fmt.Sprintf(`{"customer": {"id": "1234", "name": "x"}, "total": 12, "text": %q}`, strings.Repeat("x", 370)))
}

var searches = map[string]string{
	"equal":    `properties.kind == "refund"`,
	"missing":  `properties.nothing == "refund"`,
	"in":       `properties.kind in ["refund", "return"]`,
	"number":   `size > 1000 && properties.kind != "x"`,
	"prefix":   `subject.startsWith("alarm.") || properties.region == "us"`,
	"time":     `published_at >= timestamp("2026-01-01T00:00:00Z")`,
	"body":     `body.customer.id == "4711"`,
	"both":     `properties.kind == "refund" && body.customer.id == "4711"`,
	"fallback": `!has(properties.kind)`,
}

func TestNoAllocationWithoutMatch(t *testing.T) {
	m := benchMessage(t)
	for name, text := range searches {
		if name == "fallback" {
			continue
		}
		f, err := filter.CompileSearch(text)
		require.NoError(t, err)
		got, err := f.Evaluate(m)
		require.NoError(t, err)
		require.Equal(t, filter.NoMatch, got, name)
		require.Less(t, testing.AllocsPerRun(200, func() { _, _ = f.Evaluate(m) }), 0.5, name)
	}
}

func BenchmarkEvaluate(b *testing.B) {
	m := benchMessage(b)
	for name, text := range searches {
		b.Run(name, func(b *testing.B) {
			f, err := filter.CompileSearch(text)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = f.Evaluate(m)
			}
		})
	}
}
