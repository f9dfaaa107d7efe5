// SPDX-License-Identifier: Apache-2.0

package filter_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const publishedMS = 1_700_000_000_000

func record(t testing.TB, a *txn.Attributes, props map[string]string, body string) []byte {
	t.Helper()
	rec, err := txn.AppendMessage(nil, publishedMS, a, txn.Properties(props), []byte(body))
	require.NoError(t, err)
	return rec
}

// order returns a message with all fields set.
func order(t testing.TB) []byte {
	t.Helper()
	return record(t, &txn.Attributes{
		MessageID: "m1", CorrelationID: "c1", ReplyTo: "answers", ContentType: "application/json", Subject: "order.new",
		Group: "eu", Priority: new(uint8(7)), ExpiresAtMS: publishedMS + 60_000, DeliverAtMS: publishedMS + 5_000,
		Values: []txn.TypedProperty{
			{Key: "amount", Value: txn.Value{Kind: txn.ValueInt64, Bits: 250}},
			{Key: "paid", Value: txn.Value{Kind: txn.ValueBool, Bits: 1}},
			{Key: "raw", Value: txn.Value{Kind: txn.ValueBytes, Bytes: []byte{1, 2}}},
			{Key: "weight", Value: txn.Value{Kind: txn.ValueDouble, Bits: math.Float64bits(1.5)}},
		},
	}, map[string]string{"region": "eu", "number": "12"}, "twelve bytes")
}

// Match evaluates an expression on the fields and properties of a message. If the evaluation fails, the message
// does not match.
func TestMatch(t *testing.T) {
	full, plain := order(t), record(t, nil, nil, "")
	for _, c := range []struct {
		text        string
		full, plain bool
	}{
		{`true`, true, true},
		{`false`, false, false},
		{`properties.region == "eu"`, true, false},
		{`properties["region"] in ["us", "eu"]`, true, false},
		{`properties.region.startsWith("e") && subject.endsWith(".new")`, true, false},
		{`has(properties.region)`, true, false},
		{`!has(properties.region)`, false, true},
		{`!has(properties.region) || properties.region != "us"`, true, true},
		{`properties.region != "us"`, true, false}, // the property is missing: an error, so no match
		{`!(properties.region == "us")`, true, false},
		{`properties.amount > 200`, true, false},
		{`properties.amount > 249.5`, true, false},
		{`properties.weight >= 1.5 && properties.weight < 2`, true, false},
		{`properties.amount == "250"`, false, false},
		{`properties.amount + 1 == 251`, true, false},
		{`int(properties.number) == 12`, true, false},
		{`int(properties.region) == 12`, false, false}, // the property is not a number: an error
		{`properties.paid`, true, false},
		{`properties.region`, false, false}, // the value is not a bool
		{`properties.raw == b"\001\002"`, true, false},
		{`properties.exists(k, k.startsWith("reg"))`, true, false},
		{`size(properties) == 6`, true, false},
		{`size(properties) == 0`, false, true},
		{`message_id == "m1" && correlation_id == "c1" && reply_to == "answers" && group == "eu"`, true, false},
		{`content_type == ""`, false, true},
		{`content_type.matches("^application/(json|xml)$")`, true, false},
		{`priority >= 5`, true, false},
		{`priority == 4`, false, true},
		{`size == 12`, true, false},
		{`size < 10`, false, true},
		{`published_at == timestamp("2023-11-14T22:13:20Z")`, true, true},
		{`published_at.getHours() == 22`, true, true},
		{`expires_at - published_at == duration("60s")`, true, false}, // plain exceeds the maximum duration
		{`expires_at > timestamp("2100-01-01T00:00:00Z")`, false, true},
		{`deliver_at > published_at`, true, false},
		{`1 / size > 0`, false, false},
		{"subject ==\n  'order.new'", true, false},
	} {
		f, err := filter.Compile(c.text)
		require.NoError(t, err, c.text)
		require.Equal(t, c.text, f.Text())
		for range 2 { // the second run reuses the state of the first
			require.Equal(t, c.full, f.Match(full), "the full message: %s", c.text)
			require.Equal(t, c.plain, f.Match(plain), "the plain message: %s", c.text)
		}
	}
}

func TestInvalidExpressionIsRejected(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", " ", "omit"},
		{"too long", `subject == "` + strings.Repeat("x", filter.MaxBytes) + `"`, "4109 bytes"},
		{"invalid UTF-8", "subject == \"\xff\"", "UTF-8"},
		{"syntax", `subject ==`, "1:11:"},
		{"syntax on another line", "subject == 'a' &&\n  group = 'b'", "2:9:"},
		{"unknown variable", `body == "x"`, "'body'"},
		{"unknown function", `now() > published_at`, "'now'"},
		{"unknown method", `subject.reverse() == "x"`, "'reverse'"},
		{"not a bool", `priority`, "int, must"},
		{"a string", `"eu"`, "is string"},
		{"type mismatch", `priority == "high"`, "1:10:"},
		{"regular expression", `subject.matches("(")`, "1:17:"},
		{"duration", `expires_at - published_at > duration("soon")`, "1:38:"},
		{"time", `published_at > timestamp("yesterday")`, "1:26:"},
		{"nested loops", `properties.all(a, properties.all(b, a != b))`, "nesting limit"},
		{
			"too costly", "properties.all(k, properties[k].matches('a.*b') && properties[k].matches('c.*d'))",
			"estimated cost",
		},
		{"too deep", strings.Repeat("(", 300) + "true" + strings.Repeat(")", 300), "recursion"},
		{"too many steps", "true" + strings.Repeat("&&true", 650), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := filter.Compile(c.text)
			if c.want == "" { // within the limits
				require.NoError(t, err)
				return
			}
			require.Nil(t, f)
			require.ErrorIs(t, err, filter.ErrInvalid)
			require.Contains(t, err.Error(), c.want)
			require.Less(t, len(err.Error()), 600)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

// A message does not match if its evaluation exceeds the cost limit.
func TestCostLimit(t *testing.T) {
	f, err := filter.Compile(`properties.all(k, ` + strings.Repeat(`k.contains("k") && `, 8) + `true)`)
	require.NoError(t, err)
	props := map[string]string{"k": ""}
	require.True(t, f.Match(record(t, nil, props, "")))
	for len(props) < 9_000 {
		props[fmt.Sprintf("k%d", len(props))] = ""
	}
	require.False(t, f.Match(record(t, nil, props, "")))
}

func TestConcurrentMatch(t *testing.T) {
	f, err := filter.Compile(`properties.region == "eu"`)
	require.NoError(t, err)
	yes, no := order(t), record(t, nil, map[string]string{"region": "us"}, "")
	done := make(chan bool)
	for range 4 {
		go func() {
			ok := true
			for range 1000 {
				ok = ok && f.Match(yes) && !f.Match(no)
			}
			done <- ok
		}()
	}
	for range 4 {
		require.True(t, <-done)
	}
}

func TestCorruptRecordMatchesFilter(t *testing.T) {
	f, err := filter.Compile(`false`)
	require.NoError(t, err)
	require.True(t, f.Match([]byte{1, 2, 3}))
}

// An expression is rejected with ErrInvalid, or its evaluation is deterministic and takes limited time.
func FuzzCompile(f *testing.F) {
	for _, text := range []string{
		`properties.a == "b"`, `size(properties) > 3 && priority in [1, 2]`, `subject.matches("^a|b$")`,
		`properties.exists(k, properties[k] == 1.5)`, `published_at + duration("1h") < expires_at`, "\"", "?:", "{}[0]",
	} {
		f.Add(text, []byte("body"))
	}
	rec := order(f)
	f.Fuzz(func(t *testing.T, text string, body []byte) {
		compiled, err := filter.Compile(text)
		if err != nil {
			if !errors.Is(err, filter.ErrInvalid) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		begin := time.Now()
		first := compiled.Match(rec)
		if compiled.Match(rec) != first {
			t.Fatalf("two evaluations of %q differ", text)
		}
		compiled.Match(record(t, nil, nil, string(body)))
		if d := time.Since(begin); d > 5*time.Second {
			t.Fatalf("%q took %v", text, d)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	rec := record(b, nil, map[string]string{"region": "eu", "kind": "order"}, "some body")
	for name, text := range map[string]string{"property": `properties.kind == "refund"`, "priority": `priority > 4`} {
		b.Run(name, func(b *testing.B) {
			f, err := filter.Compile(text)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				f.Match(rec)
			}
		})
	}
}
