// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/console"
)

// The preview of a long body is its first text, without a part of a character, or the first bytes in hex.
func TestPreview(t *testing.T) {
	jpeg := append([]byte{0xff, 0xd8, 0xff, 0xe0}, bytes.Repeat([]byte{0xab}, 500)...)
	require.Equal(t, "ffd8ffe0"+strings.Repeat("ab", 28)+" (bytes)", console.Preview(jpeg))
	mixed := append([]byte("text"), jpeg...)
	require.Equal(t, "74657874ffd8ffe0"+strings.Repeat("ab", 24)+" (bytes)", console.Preview(mixed))
	for cut := range 4 { // the last character is cut
		text := strings.Repeat("x", cut) + strings.Repeat("😀", 200)
		got, more := strings.CutSuffix(console.Preview([]byte(text)), "…")
		require.True(t, more)
		require.True(t, strings.HasPrefix(text, got))
		require.Greater(t, len(got), 100)
	}
	require.Equal(t, "a b", console.Preview([]byte("a\n b")))
}
