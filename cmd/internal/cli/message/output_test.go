// SPDX-License-Identifier: Apache-2.0

//go:build unix

package message_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// shell runs a shell command line in which "$LOCKSTEP" is this program.
func shell(t *testing.T, c clitest.CLI, line string) (stdout, stderr string, err error) {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Env = append(os.Environ(), "LOCKSTEP="+program, cli.EnvAddr+"="+c.Addr)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// A message that could not be printed is not acknowledged.
func TestOutputFailed(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	c.OK("publish", "orders", "--create", "one", "-p", "region=eu")
	for _, redirect := range []string{
		">&-", "--output json >&-", "--format '{{.body}}' >&-", "> /dev/full", "--format '{{.body}}' > /dev/full",
	} {
		if _, err := os.Stat("/dev/full"); err != nil && redirect[len(redirect)-1] == 'l' {
			continue
		}
		_, stderr, err := shell(t, c, `"$LOCKSTEP" consume orders -f -n 1 `+redirect)
		require.Error(t, err, "%s: %s", redirect, stderr)
		require.Len(t, c.Lines("browse", "orders", "-s", "default"), 1, redirect)
	}
	_, stderr, code := c.Run("", "consume", "orders", "-f", "-n", "1", "--format", "{{.Body}}")
	require.Equal(t, cli.ExitError, code, stderr)
	_, stderr, code = c.Run("", "consume", "orders", "-f", "-n", "1", "--format", "{{.properties.country}}")
	require.Equal(t, cli.ExitError, code, stderr)
	require.Equal(t, "[] one\n",
		c.OK("consume", "orders", "-f", "-n", "1", "--format", `[{{index .properties "country"}}] {{.body}}`))

	c.OK("publish", "orders", "two")
	_, stderr, err := shell(t, c, `"$LOCKSTEP" consume orders -f -n 1 > /dev/null`)
	require.NoError(t, err, stderr)
	require.Empty(t, c.Lines("browse", "orders", "-s", "default"))

	c.OK("publish", "orders", "three")
	_, stderr, err = shell(t, c, `"$LOCKSTEP" consume orders -f -n 1 --ack-after-command 'cat > /dev/null' >&-`)
	require.NoError(t, err, "nothing is printed: %s", stderr)
	_, _, err = shell(t, c, `"$LOCKSTEP" request orders four >&-`)
	require.Error(t, err)
	require.Empty(t, c.Lines("browse", "orders", "-s", "default"), "the request was not published")
}

// publish prints a warning if no subscription receives the messages.
func TestPublishToTopic(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "prices", "--topic")
	stdout, stderr, code := c.Run("", "publish", "prices", "one")
	require.Equal(t, cli.ExitOK, code)
	require.NotContains(t, stdout, "published")
	require.Contains(t, stderr, "subscription create", "the command that creates a subscription")
	c.OK("subscription", "create", "prices", "audit")
	_, stderr, code = c.Run("", "publish", "prices", "two")
	require.Equal(t, cli.ExitOK, code)
	require.Empty(t, stderr)
	require.Equal(t, "two\n", c.OK("consume", "prices", "-f", "-n", "1", "-s", "audit"))
}
