// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Etcd is an etcd in a separate process with an adjustable clock (Options.EtcdBinary).
type Etcd struct {
	clock   clock
	address string
	cmd     *exec.Cmd
	stdin   io.Closer
}

// startEtcd starts a program built by BuildEtcdWithClock.
func startEtcd(ctx context.Context, binary, dir string) (*Etcd, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	at, err := newClock(dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary, filepath.Join(dir, "data"))
	cmd.Env = append(os.Environ(), at.environment()...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	e := &Etcd{clock: at, cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("etcd reports no address: %w", err), e.close())
	}
	e.address = strings.TrimSpace(line)
	return e, nil
}

// SetClock sets the clock offset of etcd's machine, as Node.SetClock does for a node.
func (e *Etcd) SetClock(offset time.Duration) error { return e.clock.set(offset) }

func (e *Etcd) close() error {
	if err := errors.Join(e.stdin.Close(), e.cmd.Wait()); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
}
