// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
)

// Without a terminal, the output has a line at the start, one every few seconds, and one at the end, without control
// sequences.
func TestWithoutTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		d := progress.New(&b, false)
		bar := d.Bar("node a")
		for done := uint64(0); done <= 1000; done++ {
			d.Set(bar, progress.Step{Phase: []string{"copy", "verify"}[done%2], Done: done << 20, Total: 1000 << 20})
			<-time.After(12 * time.Millisecond)
		}
		d.Line("between")
		d.End(bar, "done")
		d.End(bar, "done")
		d.Close()
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		require.Len(t, lines, 3+1+1, b.String())
		require.True(t, strings.HasPrefix(lines[0], "node a: copy 0%, 0 B of 1000.0 MiB"), lines[0])
		require.Contains(t, lines[1], " 41%", "after five seconds")
		require.Equal(t, []string{"between", "node a: done"}, lines[3:])
		require.NotContains(t, b.String(), "\x1b")
		require.NotContains(t, b.String(), "\r")
	})
}

// Bars stay below the lines of text, and are redrawn in place.
func TestOnTerminal(t *testing.T) {
	var b strings.Builder
	d := progress.New(&b, true)
	first, second := d.Bar("node a"), d.Bar("node b")
	require.Empty(t, second.Line(), "it has not started")
	d.Set(first, progress.Step{Phase: "copy", Done: 5 << 20, Total: 10 << 20})
	require.Contains(t, first.Line(), "node a: copy")
	require.Contains(t, first.Line(), "50%")
	require.Contains(t, first.Line(), "█")
	require.NotContains(t, first.Line(), "\r")
	d.End(second, "waits")
	b.Reset()
	d.Line("something happened")
	require.True(t, strings.HasPrefix(b.String(), "\x1b[2A\r\x1b[Jsomething happened\n"), "%q", b.String())
	require.Contains(t, b.String(), "node b: waits\n")
	d.Set(first, progress.Step{Phase: "verify", Done: 7 << 20})
	require.Contains(t, first.Line(), "7.0 MiB", "the amount is unknown")
	d.Clear()
	require.True(t, strings.HasSuffix(b.String(), "\x1b[2A\r\x1b[J"), "%q", b.String())
}
