// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"strings"
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/stretchr/testify/require"
)

// On a terminal, the operator is prompted only if messages would be deleted, and not with --yes. Scripts are not
// prompted.
func TestConfirmDeletion(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	fill := func() {
		c.OK("queue", "create", "q", "-s", "one", "-s", "two", "--if-not-exists")
		c.OK("publish", "q", "1", "2", "3")
	}
	fill()
	for command, question := range map[string]string{
		"queue purge q":             "Purge queue q? 3 messages will be deleted permanently. [y/N]",
		"queue purge q -s one":      "one of queue q? Its backlog of 3 messages will be discarded permanently. [y/N]",
		"queue delete q":            "Delete queue q? 3 messages will be deleted permanently. [y/N]",
		"subscription delete q two": "two of queue q? Its backlog of 3 messages will be discarded permanently. [y/N]",
	} {
		for _, no := range []string{"", "\n", "n\n", "nonsense\n"} {
			_, stderr, code := c.Answering(no, strings.Fields(command)...)
			require.Equal(t, cli.ExitError, code, command)
			require.Contains(t, stderr, question)
			require.Contains(t, stderr, cli.ErrNotConfirmed.Error(), command)
		}
	}
	require.InDelta(t, 3, c.Lines("queue", "show", "q")[0]["messages"], 0)

	stdout, stderr, code := c.Answering("y\n", "queue", "purge", "q", "-s", "one")
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Contains(t, stdout, "purged 3 messages")
	_, stderr, code = c.Answering("", "queue", "purge", "q", "-s", "one")
	require.Equal(t, cli.ExitOK, code, "no messages remain")
	require.NotContains(t, stderr, "[y/N]")
	_, stderr, code = c.Answering("", "queue", "delete", "q", "--yes")
	require.Equal(t, cli.ExitOK, code)
	require.NotContains(t, stderr, "[y/N]")
	fill()
	c.OK("queue", "purge", "q")
	fill()
	c.OK("queue", "delete", "q")

	_, stderr, code = c.Answering("n\n", "store", "drop-old")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "[y/N]")
	_, _, code = c.Answering("yes\n", "store", "drop-old")
	require.Equal(t, cli.ExitOK, code)
}

// Without corrupt messages, drop-corrupt neither prompts the operator nor sends a deletion.
func TestNoCorruptMessages(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "q")
	stdout, _, code := c.Answering("", "queue", "drop-corrupt", "q")
	require.Equal(t, cli.ExitOK, code)
	require.Contains(t, stdout, "no unrepairable")
	require.Len(t, c.Lines("audit", "tail", "--method", "DropDamaged"), 1, "only the list of messages is requested")
}

// subscription list contains the subscriptions of one queue, or of all queues.
func TestSubscriptionList(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "q", "-s", "one", "-s", "two")
	c.OK("publish", "q", "1")
	c.OK("queue", "purge", "q", "-s", "one")
	require.Contains(t, c.OK("subscription", "list", "q"), "two")
	lines := c.Lines("subscription", "list", "q")
	require.Len(t, lines, 2)
	require.InDelta(t, 1, lines[1]["backlog"], 0)
	c.OK("queue", "create", "other")
	table := c.OK("subscription", "list")
	require.Regexp(t, `(?m)^q +two +1 `, table)
	require.Regexp(t, `(?m)^other +default `, table)
	lines = c.Lines("subscription", "list")
	require.Len(t, lines, 3)
	require.Equal(t, "other", lines[0]["queue"])

	_, stderr, code := c.Run("", "subscription", "list", "nothing")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "nothing")
}
