// SPDX-License-Identifier: Apache-2.0

package selector_test

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/selector"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const publishedMS = 1_700_000_000_123

func record(t testing.TB, a *txn.Attributes, props map[string]string) []byte {
	t.Helper()
	txn.SortValues(a.Values)
	rec, err := txn.AppendMessage(nil, publishedMS, a, txn.Properties(props), []byte("body"))
	require.NoError(t, err)
	return rec
}

func typed(key string, v any) txn.TypedProperty {
	switch v := v.(type) {
	case int:
		return txn.TypedProperty{Key: key, Value: txn.Value{Kind: txn.ValueInt64, Bits: uint64(v)}}
	case float64:
		return txn.TypedProperty{Key: key, Value: txn.Value{Kind: txn.ValueDouble, Bits: math.Float64bits(v)}}
	case bool:
		p := txn.TypedProperty{Key: key, Value: txn.Value{Kind: txn.ValueBool}}
		if v {
			p.Value.Bits = 1
		}
		return p
	default:
		return txn.TypedProperty{Key: key, Value: txn.Value{Kind: txn.ValueBytes, Bytes: v.([]byte)}}
	}
}

// full returns a message with all fields and properties, except those with names that begin with "no".
func full(t testing.TB) []byte {
	return record(t, &txn.Attributes{
		MessageID: "ID:m-1", CorrelationID: "c'1", ReplyTo: "answers", ContentType: "text/plain", Subject: "order",
		Group: "eu", Priority: new(uint8(7)),
		Values: []txn.TypedProperty{
			typed("i", 5), typed("j", 2), typed("zero", 0), typed("neg", -3), typed("max", math.MaxInt64),
			typed("d", 2.5), typed("whole", 5.0), typed("yes", true), typed("no_", false), typed("raw", []byte{1}),
			typed("$a_1", 1), typed("_b$", 1), typed("größe", 180),
		},
	}, map[string]string{
		"s": "text", "digits": "5", "empty": "", "quote": "it's", "pct": "50%", "under": "a_b", "lines": "a\nb",
		"a.b": "dot", "regexp": "a+b", "uml": "ä", "a-b": "hyphen", "upper": "TEXT", "AND2": "x", "back": `a\b`,
	})
}

// bare returns a message without any field.
func bare(t testing.TB) []byte { return record(t, &txn.Attributes{}, nil) }

// TestSelect evaluates each selector with the real filter implementation.
func TestSelect(t *testing.T) {
	message := full(t)
	for _, c := range selections(t) {
		text, err := selector.ToCEL(c.selector)
		require.NoError(t, err, c.selector)
		f, err := filter.Compile(text)
		require.NoError(t, err, "%s\n%s", c.selector, text)
		require.Equal(t, c.want, f.Match(message), "%s\n%s", c.selector, text)

		// The negation: unknown remains unknown, and does not match either.
		text, err = selector.ToCEL("NOT (" + c.selector + ")")
		require.NoError(t, err, c.selector)
		f, err = filter.Compile(text)
		require.NoError(t, err, "NOT (%s)\n%s", c.selector, text)
		require.Equal(t, !c.want && !c.unknown, f.Match(message), "NOT (%s)\n%s", c.selector, text)
	}
}

// selection is a selector with its result for the message `full`: true, false, or unknown.
type selection struct {
	selector      string
	want, unknown bool
}

// selections reads testdata/selections.txt.
func selections(t testing.TB) []selection {
	t.Helper()
	all, err := os.ReadFile("testdata/selections.txt")
	require.NoError(t, err)
	out := []selection{{selector: "i = 5\n\tAND\r\nj\f= 2", want: true}}
	for line := range strings.Lines(string(all)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		result, text, _ := strings.Cut(line, " ")
		require.Contains(t, []string{"true", "false", "unknown"}, result)
		out = append(out, selection{strings.TrimLeft(text, " "), result == "true", result == "unknown"})
	}
	require.Greater(t, len(out), 250)
	return out
}

// A string header that the message does not have is null.
func TestNullHeaders(t *testing.T) {
	message := bare(t)
	for _, c := range []selection{
		{selector: "JMSType = 'a'", unknown: true},
		{selector: "JMSType <> 'a'", unknown: true},
		{selector: "JMSType = ''", unknown: true},
		{selector: "JMSType <> ''", unknown: true},
		{selector: "JMSType = 5", unknown: true},
		{selector: "JMSType LIKE '%'", unknown: true},
		{selector: "JMSType NOT LIKE 'a'", unknown: true},
		{selector: "JMSType IN ('', 'a')", unknown: true},
		{selector: "JMSType NOT IN ('a')", unknown: true},
		{selector: "JMSMessageID = JMSCorrelationID", unknown: true},
		{selector: "JMSType IS NULL", want: true},
		{selector: "JMSXGroupID IS NOT NULL"},
		{selector: "JMSPriority = 4", want: true},
		{selector: "JMSType IS NULL OR JMSType <> 'a'", want: true},
	} {
		for _, not := range []bool{false, true} {
			s, want := c.selector, c.want
			if not {
				s, want = "NOT ("+s+")", !c.want && !c.unknown
			}
			text, err := selector.ToCEL(s)
			require.NoError(t, err, s)
			f, err := filter.Compile(text)
			require.NoError(t, err, "%s\n%s", s, text)
			require.Equal(t, want, f.Match(message), "%s\n%s", s, text)
		}
	}
}

// The first bit of the message's section property determines whether it is durable.
func TestAMQPMessagesThroughGRPC(t *testing.T) {
	for _, c := range []struct {
		first   byte
		durable bool
	}{{0x80, true}, {0x81, true}, {0xff, true}, {0, false}, {0x7f, false}} {
		m := record(t, &txn.Attributes{
			MessageID: "x", Values: []txn.TypedProperty{typed("amqp.sections", []byte{c.first, 1, 2})},
		}, nil)
		for s, want := range map[string]bool{
			"JMSDeliveryMode = 'PERSISTENT'": c.durable, "JMSDeliveryMode = 'NON_PERSISTENT'": !c.durable,
			"amqp.durable = TRUE": c.durable, "NOT amqp.durable": !c.durable, "JMSMessageID = 'ID:AMQP_NO_PREFIX:x'": true,
			"JMSMessageID IN ('ID:AMQP_NO_PREFIX:x')": true, "JMSMessageID <> 'ID:AMQP_NO_PREFIX:x'": false,
		} {
			text, err := selector.ToCEL(s)
			require.NoError(t, err)
			f, err := filter.Compile(text)
			require.NoError(t, err, "%s\n%s", s, text)
			require.Equal(t, want, f.Match(m), "%s\n%s", s, text)
		}
	}
}

// A blank selector has no filter.
func TestBlankSelector(t *testing.T) {
	for _, s := range []string{"", " ", "\t\r\n "} {
		text, err := selector.ToCEL(s)
		require.NoError(t, err)
		require.Empty(t, text)
	}
}

// An invalid selector is rejected with the position of the error.
func TestInvalidSelectors(t *testing.T) {
	for _, c := range []struct{ selector, want string }{
		{"i =", "character 4:"},
		{"= 5", "character 1:"},
		{"i", ""}, // a property may be a boolean
		{"5", "character 1:"},
		{"'a'", "a condition"},
		{"JMSPriority", "character 1:"},
		{"i + 1", "a condition"},
		{"i = 5 AND 6", "character 11:"},
		{"i = 5 j = 6", "character 7:"},
		{"(i = 5", "character 7:"},
		{"i = 5)", "character 6:"},
		{"s = 'text", "character 5:"},
		{`"s = 'text'`, "character 1:"},
		{`"" = 1`, "identifier name"},
		{"i = 12abc", "character 7:"},
		{"i = 09", "an integer"},
		{"i = 0x", "an integer"},
		{"i = 9223372036854775808", "character 5:"},
		{"i = 99999999999999999999", "character 5:"},
		{"i = 1e999", "a double"},
		{"i = 1e308 * 10", "character 11:"},
		{"i = 1 / 0", "character 7:"},
		{"s > 'a'", "character 5:"},
		{"s BETWEEN 'a' AND 'b'", "character 11:"},
		{"i > TRUE", "booleans can"},
		{"JMSType > 5", "character 1:"},
		{"s + 'a' = 'b'", "character 5:"},
		{"JMSType + 1 = 2", "character 1:"},
		{"s = NULL", "character 5:"},
		{"s IS 5", "character 6:"},
		{"5 IS NULL", "IS NULL"},
		{"s IS NOT", "expected NULL"},
		{"s IN ()", "character 7:"},
		{"s IN (5)", "character 7:"},
		{"s IN ('a',)", "character 11:"},
		{"s IN ('a' 'b')", "character 11:"},
		{"s IN 'a'", "character 6:"},
		{"'a' IN ('a')", "character 1:"},
		{"'a' LIKE 'a'", "before LIKE"},
		{"s LIKE 5", "character 8:"},
		{"s LIKE other", "character 8:"},
		{"s LIKE 'a' ESCAPE 'ab'", "character 19:"},
		{"s LIKE 'a' ESCAPE ''", "character 19:"},
		{"s LIKE 'a' ESCAPE", "character 18:"},
		{"s LIKE 'a!' ESCAPE '!'", "character 8:"},
		{"JMSPriority LIKE '7'", "JMSPriority is"},
		{"i NOT 5", "character 7:"},
		{"i BETWEEN 5", "character 12:"},
		{"AND", "character 1:"},
		{"NOT", "character 4:"},
		{"i = 5 AND", "character 10:"},
		{"größe = 1 ; 2", "character 11:"},
		{"i == 5", "character 4:"},
		{"i = 5 && j = 5", "character '&'"},
		{"s = 'a\xff'", "UTF-8"},
		{"JMSDestination = 'q'", "character 1:"},
		{"JMSXDeliveryCount > 1", "value changes"},
		{"amqp.sections IS NULL", "amqp.sections cannot"},
		{strings.Repeat("(", 100) + "i = 5" + strings.Repeat(")", 100), "nested deeper"},
		{strings.Repeat("NOT ", 100) + "yes", "nested deeper"},
		{"i = " + strings.Repeat("-", 100) + "5", "nested deeper"},
		{"i = i" + strings.Repeat(" + i", selector.MaxOperands), "16 operands"},
		{"s = '" + strings.Repeat("a", selector.MaxBytes) + "'", "4096"},
		{"i = 1" + strings.Repeat(" OR i = 1", 400), "too long"},
	} {
		text, err := selector.ToCEL(c.selector)
		if c.want == "" {
			require.NoError(t, err, c.selector)
			continue
		}
		require.ErrorIs(t, err, selector.ErrInvalid, c.selector)
		require.Contains(t, err.Error(), c.want, c.selector)
		require.Empty(t, text)
		require.Less(t, len(err.Error()), 300)
	}
}

// The translation of any selector within the limits of selectors is a filter within the limits of filters.
func TestLimitsFitFilterLimits(t *testing.T) {
	for _, s := range []string{
		strings.Repeat("(", selector.MaxDepth) + "i = 5" + strings.Repeat(")", selector.MaxDepth),
		strings.Repeat("NOT ", selector.MaxDepth) + "yes",
		"i = 5" + strings.Repeat(" AND i = 5", 150),
		"i = 5 " + strings.Repeat(" OR s LIKE 'a%b_c'", 40),
		"s IN ('a'" + strings.Repeat(", 'bcd'", 300) + ")",
		"i = i" + strings.Repeat(" + i", selector.MaxOperands-1),
		"i = " + strings.Repeat("-", selector.MaxDepth) + "i",
		strings.Repeat("(i + ", selector.MaxDepth) + "1" + strings.Repeat(")", selector.MaxDepth) + " = 1",
	} {
		text, err := selector.ToCEL(s)
		require.NoError(t, err, s)
		_, err = filter.Compile(text)
		require.NoError(t, err, "%s\n%s", s, text)
	}
}

// FuzzToCEL checks that each translation is a valid filter, and that no message matches both a selector and its
// negation.
func FuzzToCEL(f *testing.F) {
	for _, c := range selections(f) {
		f.Add(c.selector)
	}
	message, empty := full(f), bare(f)
	f.Fuzz(func(t *testing.T, s string) {
		text, err := selector.ToCEL(s)
		if err != nil {
			if !errors.Is(err, selector.ErrInvalid) || text != "" {
				t.Fatalf("%q: %q, %v", s, text, err)
			}
			return
		}
		if text == "" {
			return
		}
		compiled, err := filter.Compile(text)
		if err != nil {
			if strings.Contains(err.Error(), "estimated cost") {
				return
			}
			t.Fatalf("%q became %q: %v", s, text, err)
		}
		not, err := selector.ToCEL("NOT (" + s + ")")
		if err != nil {
			return // the negation is too deep or too long
		}
		negation, err := filter.Compile(not)
		if err != nil {
			return
		}
		for _, m := range [][]byte{message, empty} {
			if compiled.Match(m) && negation.Match(m) {
				t.Fatalf("%q and its negation: %q, %q", s, text, not)
			}
		}
	})
}
