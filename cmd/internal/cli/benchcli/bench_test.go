// SPDX-License-Identifier: Apache-2.0

package benchcli_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// The table has a column for ratios if a result is compared with another one.
func TestRatioColumn(t *testing.T) {
	table := func(results ...bench.Result) []string {
		var b bytes.Buffer
		printer, err := output.New(&b, "table")
		require.NoError(t, err)
		require.NoError(t, benchcli.PrintResults(&cli.Env{Print: printer}, results))
		return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	}
	base := bench.Result{Phase: "publish grpc", Rate: 4}
	compared := bench.Result{Phase: "publish amqp", Rate: 1, Ratio: 0.25}
	require.NotContains(t, table(base)[0], "Ratio")
	lines := table(base, compared)
	require.Len(t, lines, 4)
	require.Equal(t, "Ratio", last(lines[0]))
	require.NotEqual(t, "0.25", last(lines[2]))
	require.Equal(t, "0.25", last(lines[3]))
}

func last(line string) string {
	fields := strings.Fields(line)
	return fields[len(fields)-1]
}
