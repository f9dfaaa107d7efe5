// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/harness"
)

// etcd is an etcd process that can be killed and started again, with the same data and address.
type etcd struct {
	t     *testing.T
	dir   string
	port  *harness.Port
	cmd   *exec.Cmd
	stdin io.Closer
}

func newEtcd(t *testing.T, dir string) *etcd {
	t.Helper()
	port, err := harness.ReservePort()
	require.NoError(t, err)
	e := &etcd{t: t, dir: dir, port: port}
	e.start()
	return e
}

func (e *etcd) start() {
	e.t.Helper()
	e.cmd = exec.CommandContext(context.WithoutCancel(e.t.Context()), etcdBinary, e.dir, e.port.Address())
	e.cmd.Stderr = os.Stderr
	var err error
	e.stdin, err = e.cmd.StdinPipe() // the process exits when it is closed
	require.NoError(e.t, err)
	stdout, err := e.cmd.StdoutPipe()
	require.NoError(e.t, err)
	require.NoError(e.t, e.cmd.Start())
	_, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(e.t, err, "etcd reports no address")
}

func (e *etcd) kill() error {
	err := e.cmd.Process.Kill()
	if wait := e.cmd.Wait(); wait != nil && e.cmd.ProcessState == nil {
		err = errors.Join(err, wait)
	}
	if err = errors.Join(err, e.stdin.Close()); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
}
