// SPDX-License-Identifier: Apache-2.0

package message

import (
	"bytes"
	"strings"
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

// A line may be as long as a message. The lines before a longer one are sent.
func TestLongLine(t *testing.T) {
	long := strings.Repeat("x", maxLineBytes)
	for name, tc := range map[string]struct {
		input string
		want  []int // lengths of the sent messages
		fails bool
	}{
		"longest":       {"a\r\n" + long + "\r\nb\r\n", []int{1, maxLineBytes, 1}, false},
		"too long":      {"a\n" + long + "x\nb\n", []int{1}, true},
		"much too long": {"a\n" + long + "xxx\nb\n", []int{1}, true},
	} {
		var sent []int
		err := sendLines(strings.NewReader(tc.input), func(b []byte) error {
			sent = append(sent, len(b))
			return nil
		})
		require.Equal(t, tc.want, sent, name)
		require.Equal(t, tc.fails, err != nil, name)
	}
}
