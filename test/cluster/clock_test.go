// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/harness"
)

// clockProgram prints the wall time and its uptime for each line of input.
const clockProgram = `package main

import (
	"bufio"
	"fmt"
	"os"
	"time"
)

func main() {
	began := time.Now()
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		fmt.Println(time.Now().Unix(), int(time.Since(began).Hours()), int(time.Now().Sub(began).Hours()))
	}
}
`

// A new clock offset applies to the wall time immediately, and not to durations.
func TestClockOffset(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	require.NoError(t, os.WriteFile(source, []byte(clockProgram), 0o600))
	program, err := buildWithClock(t.Context(), dir, "program", source)
	require.NoError(t, err)
	require.True(t, CanSetClocks(program))
	c, err := newClock(dir)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(harness.Environment(), c.environment()...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for _, offset := range []time.Duration{0, time.Hour, -30 * 24 * time.Hour, 0} {
		require.NoError(t, c.set(offset))
		_, err := in.Write([]byte("\n"))
		require.NoError(t, err)
		line := make([]byte, 100)
		n, err := out.Read(line)
		require.NoError(t, err)
		reported := strings.Fields(string(line[:n]))
		require.Len(t, reported, 3)
		unix, err := strconv.ParseInt(reported[0], 10, 64)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(offset), time.Unix(unix, 0), time.Minute)
		require.Equal(t, []string{"0", "0"}, reported[1:], "duration across a clock jump")
	}
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
}
