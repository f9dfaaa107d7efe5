// SPDX-License-Identifier: Apache-2.0

//go:build unix

package harness

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newScript returns a process that runs a shell script.
func newScript(t *testing.T, script string) *process {
	t.Helper()
	p := &process{
		name: "node a", log: filepath.Join(t.TempDir(), "node.log"),
		command: []string{"/bin/sh", "-c", script},
	}
	t.Cleanup(func() { require.NoError(t, p.end(true)) })
	return p
}

// waitLog waits until the output of the process equals text.
func waitLog(t *testing.T, p *process, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(p.LogFile())
		return err == nil && string(b) == text
	}, time.Minute, PollInterval)
}

// Failure reports the unexpected exit of a process with the end of its log. The process can be restarted.
func TestUnexpectedExit(t *testing.T) {
	p := newScript(t, "echo failed; exit 3")
	for range 2 {
		require.NoError(t, p.Start())
		<-p.Exited()
		require.True(t, p.Ended())
		require.True(t, p.Running(), "before Kill and Stop")
		require.Zero(t, p.PID())
		err := p.Failure()
		require.Error(t, err)
		require.Contains(t, err.Error(), "exited unexpectedly")
		require.Contains(t, err.Error(), "status 3")
		require.Contains(t, err.Error(), "failed")
	}
	require.NoError(t, p.Kill())
	require.False(t, p.Ended())
	require.NoError(t, p.Failure())
}

// Stop returns the exit error, unless the process was terminated by SIGTERM.
func TestStopProcess(t *testing.T) {
	p := newScript(t, "echo started; while :; do sleep 0.01; done")
	for _, err := range []error{p.Stop(), p.Kill(), p.Dump(), p.Pause(), p.Wake()} {
		require.ErrorIs(t, err, ErrNotRunning)
	}
	require.NoError(t, p.Start())
	again := p.Start()
	require.Error(t, again)
	require.Contains(t, again.Error(), "already running")
	waitLog(t, p, "started\n")
	require.NoError(t, p.Pause())
	require.NoError(t, p.Wake())
	require.NoError(t, p.Stop())
	require.ErrorIs(t, p.Stop(), ErrNotRunning)

	p = newScript(t, "trap 'echo failed; exit 4' TERM; echo started; while :; do sleep 0.01; done")
	require.NoError(t, p.Start())
	waitLog(t, p, "started\n")
	err := p.Stop()
	require.Error(t, err)
	require.Contains(t, err.Error(), "status 4")
	require.Contains(t, err.Error(), "failed")
	require.NoError(t, p.Failure(), "expected exit")
}

// A process receives the environment of the test process without LOCKSTEP_ variables, and the additional variables.
func TestProcessEnvironment(t *testing.T) {
	t.Setenv("LOCKSTEP_LISTEN", "127.0.0.1:1")
	p := newScript(t, `echo "$LOCKSTEP_LISTEN,$MORE"`)
	p.environment = func() ([]string, error) { return []string{"MORE=more"}, nil }
	require.NoError(t, p.Start())
	waitLog(t, p, ",more\n")

	broken := errors.New("broken environment")
	p.environment = func() ([]string, error) { return nil, broken }
	<-p.Exited()
	require.ErrorIs(t, p.Start(), broken)
}

// Settings are passed to a node as flags or in a file.
func TestNodeArguments(t *testing.T) {
	n := &Node{Name: "a", Dir: t.TempDir()}
	settings := map[string]string{"wal.keep-bytes": "1MiB", "listen": "127.0.0.1:1"}
	args, err := n.arguments(settings, false)
	require.NoError(t, err)
	require.Equal(t, []string{"serve", "--listen=127.0.0.1:1", "--wal-keep-bytes=1MiB"}, args)
	args, err = n.arguments(settings, true)
	require.NoError(t, err)
	require.Equal(t, []string{"serve", "--config", n.ConfigFile()}, args)
	b, err := os.ReadFile(n.ConfigFile())
	require.NoError(t, err)
	require.Equal(t, yaml(settings), string(b))
}
