// SPDX-License-Identifier: Apache-2.0

package message_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
)

// A template has access to the JSON fields. An invalid template is a usage error.
func TestFormat(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("publish", "orders", "--create", "a <body>", "--subject", "s", "-p", "region=eu", "--typed-property", "total=7")
	c.OK("publish", "orders", "b", "--priority", "3")
	require.Equal(t, "orders #1 s eu 7 a <body> {\"region\":\"eu\"} 61203c626f64793e YSA8Ym9keT4=\n",
		c.OK("consume", "orders", "-f", "--max", "1", "--format", "{{.queue}} #{{.sequence}} {{.subject}} "+
			"{{.properties.region}} {{.typed_properties.total}} {{.body}} {{json .properties}} {{hex .body}} {{base64 .body}}"))
	require.Equal(t, "[] 3 b\n",
		c.OK("consume", "orders", "-f", "-n", "1", "--format", "[{{.subject}}] {{.priority}} {{.body}}"))
	for _, wrong := range [][]string{
		{"--format", "{{.sequence"},
		{"--format", "{{nothing .body}}"},
		{"--format", "x", "--output", "json"},
		{"--max", "1", "--count", "2"},
		{"--no-ack", "--ack-after-command", "true"},
	} {
		_, stderr, code := c.Run("", append([]string{"consume", "orders"}, wrong...)...)
		require.Equal(t, cli.ExitUsage, code, "%v: %s", wrong, stderr)
	}
}

// Matching messages are consumed; other messages stay in the queue.
func TestConsumeFilter(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	c.OK("publish", "orders", "--create", "a", "c", "-p", "region=us")
	c.OK("publish", "orders", "b", "-p", "region=eu")
	require.Equal(t, "b\n", c.OK("consume", "orders", "-f", "-n", "1", "--filter", `properties.region == "eu"`))
	require.Equal(t, "a\nc\n", c.OK("consume", "orders", "-f", "-n", "2"))
	_, stderr, code := c.Run("", "consume", "orders", "--filter", "region == 3")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "1:1:")
	require.Contains(t, stderr, "'region'")

	c.OK("subscription", "create", "orders", "large", "--filter", "size > 3")
	c.OK("publish", "orders", "one", "three")
	require.Equal(t, "three\n", c.OK("consume", "orders", "-f", "-n", "1", "-s", "large"))
	require.Contains(t, c.OK("queue", "show", "orders"), "size > 3")
	_, stderr, code = c.Run("", "subscription", "create", "orders", "wrong", "--filter", "size + 3")
	require.Equal(t, cli.ExitError, code)
	require.Regexp(t, `\bint\b.*\bbool\b`, stderr)
}

// The exit code of the command determines whether a message is acknowledged, requeued or rejected.
func TestAckAfterCommand(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "dead")
	c.OK("queue", "create", "orders", "--dead-letter", "dead")
	c.OK("publish", "orders", "good", "--subject", "an order", "-p", "customer-id=17", "--correlation-id", "c1")
	c.OK("publish", "orders", "bad")
	file := filepath.Join(t.TempDir(), "seen")
	const script = `body=$(cat)
echo "$body $LOCKSTEP_QUEUE $LOCKSTEP_SEQUENCE $LOCKSTEP_SUBJECT $LOCKSTEP_PROPERTY_CUSTOMER_ID" >> %s
case $body in good) exit 0;; bad) exit 100;; *) test $LOCKSTEP_DELIVERY_COUNT = 1;; esac`
	require.Empty(t, c.OK("consume", "orders", "-f", "-n", "2", "--ack-after-command", fmt.Sprintf(script, file)))
	seen, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "good orders 1 an order 17\nbad orders 2  \n", string(seen))
	require.Equal(t, "bad\n", c.OK("consume", "dead", "-f", "-n", "1"))

	c.OK("publish", "orders", "later")
	_, stderr, code := c.Run("", "consume", "orders", "-f", "--max", "2", "--ack-after-command", fmt.Sprintf(script, file))
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Contains(t, stderr, "message 3")
	require.Contains(t, stderr, "code 1;")
	require.Empty(t, c.Lines("browse", "orders"), "the second time it was acknowledged")

	c.OK("publish", "orders", "again")
	_, stderr, code = c.Run("", "consume", "orders", "-f", "-n", "1", "--ack-after-command", "no-such-command-anywhere")
	require.Equal(t, cli.ExitError, code)
	for _, part := range []string{"--ack-after-command", "code 127", "message 4"} {
		require.Contains(t, stderr, part)
	}
	require.Equal(t, "again\n",
		c.OK("consume", "orders", "-f", "-n", "1", "--format", "{{.body}}", "--ack-after-command", "true"))
}

// The reply with the correlation ID of the request is printed, and the reply queue is deleted. Without a reply, the
// exit code is 1.
func TestRequest(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "prices")
	var answering sync.WaitGroup
	answering.Go(func() {
		m := c.Lines("consume", "prices", "-f", "-n", "1")[0]
		to, id := fmt.Sprint(m["reply_to"]), fmt.Sprint(m["correlation_id"])
		c.OK("publish", to, "not this one", "--correlation-id", "another")
		c.OK("publish", to, "42 for "+fmt.Sprint(m["body"]), "--correlation-id", id, "--subject", "answer")
	})
	require.Equal(t, "answer: 42 for item 17\n",
		c.OK("request", "prices", "item 17", "-p", "k=v", "--timeout", "30s", "--format", "{{.subject}}: {{.body}}"))
	answering.Wait()
	require.NotContains(t, c.OK("queue", "list"), "request/")

	ctx := expiring{t.Context(), make(chan struct{})}
	var stdout, failure strings.Builder
	result := make(chan int, 1)
	go func() {
		result <- commands.Run(ctx, []string{"request", "prices", "--correlation-id", "mine"},
			c.Process(strings.NewReader("from stdin"), &stdout, &failure))
	}()
	m := c.Lines("consume", "prices", "-f", "-n", "1")[0]
	require.Equal(t, "from stdin", m["body"])
	require.Equal(t, "mine", m["correlation_id"])
	reply := fmt.Sprint(m["reply_to"])
	c.OK("publish", reply, "not this one", "--correlation-id", "another")
	require.Eventually(t, func() bool { // the command waits for further replies
		return c.Lines("queue", "show", reply)[0]["messages"] == 0.0
	}, time.Minute, 10*time.Millisecond)
	close(ctx.expired)
	require.Equal(t, cli.ExitError, <-result)
	require.Contains(t, failure.String(), "no reply")
	require.Empty(t, stdout.String())

	_, stderr, code := c.Run("", "request", "nothing", "x", "--timeout", "5s")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "nothing")
	_, _, code = c.Run("", "request", "prices", "x", "--file", "y")
	require.Equal(t, cli.ExitUsage, code)
}

// expiring is a context with a deadline that expires when the channel is closed.
type expiring struct {
	context.Context

	expired chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.expired }

func (e expiring) Err() error {
	select {
	case <-e.expired:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
