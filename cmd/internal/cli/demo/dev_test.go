// SPDX-License-Identifier: Apache-2.0

//go:build unix

package demo

import (
	"context"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// watched calls seen for each write that contains the wanted text.
type watched struct {
	text, want string
	seen       func()
}

func (w *watched) Write(b []byte) (int, error) {
	w.text += string(b)
	if strings.Contains(string(b), w.want) {
		w.seen()
	}
	return len(b), nil
}

// A second dev in the same directory fails immediately, and can start after the first one has exited.
func TestDevTwice(t *testing.T) {
	o := harness.Options{Dir: t.TempDir(), Standalone: true, Settings: harness.SmallNodes()}
	first, err := harness.Start(t.Context(), o)
	require.NoError(t, err)
	second := harness.Options{Dir: o.Dir, Settings: o.Settings} // a pair with etcd, as started by dev
	_, err = harness.Start(t.Context(), second)
	require.ErrorIs(t, err, harness.ErrInUse)
	require.NoError(t, first.Close())
	first, err = harness.Start(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, first.Close())
}

// A pair does not start if another process listens on the address of a node.
func TestDevTakenAddress(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	_, err = harness.Start(t.Context(), harness.Options{
		Dir: t.TempDir(), Standalone: true, Settings: harness.SmallNodes(), Listen: [2]string{l.Addr().String()},
	})
	require.ErrorIs(t, err, harness.ErrAddressInUse)
	require.Contains(t, err.Error(), l.Addr().String())
}

// A pair with a witness restarts in its directory.
func TestDevRaftRestart(t *testing.T) {
	o := harness.Options{Dir: t.TempDir(), Raft: true, Settings: harness.SmallNodes()}
	voters := ""
	for range 2 {
		p, err := harness.Start(t.Context(), o)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.NoError(t, p.WaitReady(ctx, nil))
		cancel()
		if voters != "" {
			require.Equal(t, voters, p.Voters())
		}
		voters = p.Voters()
		require.NoError(t, p.Close())
	}
}

// A node is restarted although its first start fails.
func TestDevRestarts(t *testing.T) {
	p, err := harness.Start(t.Context(), harness.Options{
		Dir: t.TempDir(), Standalone: true, Settings: harness.SmallNodes(),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	n := p.Nodes[0]
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, p.WaitReady(ctx, nil))

	require.NoError(t, os.Rename(n.LogFile(), n.LogFile()+".1"))
	require.NoError(t, os.Mkdir(n.LogFile(), 0o700)) // a directory cannot be opened as the log file
	require.NoError(t, syscall.Kill(n.PID(), syscall.SIGKILL))
	stdout := &watched{want: "running again", seen: cancel}
	stderr := &watched{want: "retrying in", seen: func() { _ = os.Remove(n.LogFile()) }}
	restart(ctx, &cli.Env{Process: cli.Process{Stdout: stdout, Stderr: stderr}}, "a", n, time.Millisecond)
	require.Contains(t, stdout.text, "running again")
	require.NotZero(t, n.PID())
}
