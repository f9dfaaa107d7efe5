// SPDX-License-Identifier: Apache-2.0

package output_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

func TestTable(t *testing.T) {
	var b strings.Builder
	p, err := output.New(&b, "table")
	require.NoError(t, err)
	require.NoError(t, p.Table([]string{"Queue", "Messages"}, [][]any{{"orders", 5}, {"a", 12345}}))
	require.NoError(t, p.Object("not for people"))
	require.NoError(t, p.Pairs([][2]string{{"a", "1"}, {"long", "2"}}))
	require.Equal(t, "Queue   Messages\n──────────────────\norders         5\na          12345\na     1\nlong  2\n",
		b.String())
}

func TestJSON(t *testing.T) {
	var b strings.Builder
	p, err := output.New(&b, "json")
	require.NoError(t, err)
	require.NoError(t, p.Table([]string{"x"}, nil))
	require.NoError(t, p.Sentence("not for programs"))
	require.NoError(t, p.Object(map[string]string{"a": "<&>"}))
	require.Equal(t, "{\"a\":\"<&>\"}\n", b.String()) //nolint:testifylint // to the letter: one line, and nothing is escaped
	_, err = output.New(&b, "xml")
	require.Error(t, err)
}

func TestNumbers(t *testing.T) {
	require.Equal(t, "0", output.Count(0))
	require.Equal(t, "999", output.Count(999))
	require.Equal(t, "-1,234,567", output.Count(-1234567))
	require.Equal(t, "1 message", output.Plural(1, "message"))
	require.Equal(t, "1,000 messages", output.Plural(1000, "message"))
	require.Equal(t, "0 messages", output.Plural(0, "message"))
	require.Equal(t, "1023 B", output.Bytes(1023))
	require.Equal(t, "1.5 KiB", output.Bytes(1536))
	require.Equal(t, "16.0 EiB", output.Bytes(uint64(1<<64-1)))
}

// A dead letter is displayed with its origin before its properties.
func TestStoredProperties(t *testing.T) {
	s := client.Stored{Message: client.Message{Subject: "order"}}
	require.Equal(t, "subject: order", output.StoredProperties(&s))
	s.DeadLetter = &client.DeadLetter{
		Queue: "orders", Subscription: "billing", Sequence: 17, Reason: "max-deliveries", Deliveries: 5,
	}
	require.Equal(t, "dead-letter: max-deliveries from orders/billing #17 after 5 deliveries subject: order",
		output.StoredProperties(&s))
	s.DeadLetter.Reason, s.DeadLetter.Deliveries, s.Subject = "rejected", 1, ""
	require.Equal(t, "dead-letter: rejected from orders/billing #17 after 1 delivery", output.StoredProperties(&s))
}

func TestColumns(t *testing.T) {
	var b strings.Builder
	p, err := output.New(&b, "table")
	require.NoError(t, err)
	require.NoError(t, p.Table([]string{"Name", ">Size"}, [][]any{{"a", "1 B"}, {"b", "100 B"}}))
	require.Contains(t, b.String(), "a       1 B\n")
	require.NotContains(t, b.String(), ">")

	b.Reset()
	require.NoError(t, p.Table([]string{"Queue", "Note"}, [][]any{{"注文", "two\nlines"}, {"orders", ""}}))
	require.Equal(t, "Queue   Note\n───────────────────\n注文    two lines\norders\n", b.String())
}
