// SPDX-License-Identifier: Apache-2.0

//go:build unix

package lab_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// measuring starts a long measurement, and returns after its first output.
func measuring(t *testing.T, dir string) (cmd *exec.Cmd, closeOutput func()) {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	cmd = exec.CommandContext(t.Context(), program, "store", "--messages", "2000", "--bursts", "2",
		"--rounds", "100000", "--dir", dir, "-o", "json")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReaderSize(out, 16).ReadByte()
	require.NoError(t, err)
	return cmd, func() { require.NoError(t, out.Close()) }
}

func requireEnded(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("the measurement continues")
	}
}

// The data of a measurement is removed when its reader exits, when it is interrupted, and at the next start after
// it was killed. The data of a running measurement is kept.
func TestBenchCleansUp(t *testing.T) {
	left := func(dir string) []string {
		names, err := filepath.Glob(filepath.Join(dir, bench.DirPrefix+"*"))
		require.NoError(t, err)
		return names
	}
	dir := t.TempDir()
	cmd, closeOutput := measuring(t, dir)
	closeOutput() // like `| head -1`
	requireEnded(t, cmd)
	require.Empty(t, left(dir), "SIGPIPE")

	cmd, _ = measuring(t, dir)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	requireEnded(t, cmd)
	require.Empty(t, left(dir), "SIGTERM")

	cmd, _ = measuring(t, dir)
	require.NoError(t, cmd.Process.Kill())
	requireEnded(t, cmd)
	require.NotEmpty(t, left(dir))
	running := filepath.Join(dir, bench.DirPrefix+"running")
	require.NoError(t, os.Mkdir(running, 0o750))
	lock, err := vfs.OS().Lock(filepath.Join(running, bench.DirLock))
	require.NoError(t, err)
	old := filepath.Join(dir, bench.DirPrefix+"of-an-older-release")
	require.NoError(t, os.Mkdir(old, 0o750))
	_, remove, err := bench.NewDir(dir)
	require.NoError(t, err)
	remove()
	require.ElementsMatch(t, []string{running, old}, left(dir), "SIGKILL, then the next start")
	require.NoError(t, lock.Close())
}
