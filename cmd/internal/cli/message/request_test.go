// SPDX-License-Identifier: Apache-2.0

package message

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

// A request that exceeds the limit of standard input is rejected, and not truncated.
func TestLongRequest(t *testing.T) {
	input := make([]byte, maxLineBytes+1)
	env := &cli.Env{Process: cli.Process{Stdin: bytes.NewReader(input)}}
	_, err := requestBody(env, nil, "")
	require.Contains(t, err.Error(), "64.0 MiB")
	env.Stdin = bytes.NewReader(input[:maxLineBytes])
	body, err := requestBody(env, nil, "")
	require.NoError(t, err)
	require.Len(t, body, maxLineBytes)
}
