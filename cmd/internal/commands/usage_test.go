// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// A usage error contains the command, its arguments, and the commands of a group.
func TestUsageErrors(t *testing.T) {
	c := clitest.CLI{T: t, Addr: "127.0.0.1:1"}
	for args, want := range map[string][]string{
		"queue seek d 1":            {"expected lockstep queue seek NAME [flags]", `got "d" "1"`, "queue seek --help"},
		"store resize 4KiB":         {"expected lockstep store resize [flags]", `got "4KiB"`},
		"publish":                   {"expected lockstep publish QUEUE [MESSAGE...] [flags]", "got no arguments"},
		"access test --queue q":     {"unknown flag: --queue", "Try `lockstep access test --help`."},
		"pair":                      {`missing command for "lockstep pair"; available commands: `, "voters"},
		"pair show":                 {`unknown command "show" for "lockstep pair"`, "voters", "lockstep pair --help"},
		"subscription alter orders": {"lockstep subscription alter --help"},
		"queu":                      {"Try `lockstep --help`."},
		"settings set nothing 1":    {"lockstep: nothing is not a setting"},
		"pair recover-quorum":       {"lockstep: missing --by, --dir, --reason\nTry `lockstep pair recover-quorum --help`."},
		"pair voters --raft-ca x":   {"lockstep: missing --raft-cert, --raft-key\n"},
		"queue forward q":           {"lockstep: at least one of --to, --remove is required\n"},
		"consume q --max 1 -n 1":    {"lockstep: only one of --count, --max is allowed\n"},
		"queue create q --ttl 5x":   {`"--ttl" flag: "5x" is not a duration`},

		"access grant alice operate --queue q": {"omit --queue"},
	} {
		_, stderr, code := c.Run("", strings.Fields(args)...)
		require.Equal(t, cli.ExitUsage, code, "%s: %s", args, stderr)
		for _, part := range want {
			require.Contains(t, stderr, part, args)
		}
	}
}

// A port that closes connections without a TLS response is not reported as a node with TLS.
func TestNextCommandAtAnotherProtocol(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1<<16)) // reads everything that the client has sent, to avoid a reset
			_ = conn.Close()
		}
	}()
	c := clitest.CLI{T: t, Addr: l.Addr().String()}
	require.Contains(t, fails(t, c, "queue", "list"), "client port")
	require.Contains(t, fails(t, c, "status"), "client port")
}
