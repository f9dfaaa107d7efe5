// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/test/harness"
)

// perform runs the case one. If it fails, perform logs the state of the client and of both nodes, and restarts the
// nodes.
func (r *run) perform(one func(*run)) {
	defer func() {
		if r.t.Failed() {
			r.a.dump(r.t)
			r.dump(r.t)
		}
	}()
	one(r)
}

// dump logs the stacks of the client, and its last output, which contains the AMQP frames of Qpid JMS and Proton. All
// clients except Java programs exit.
func (a *adapter) dump(t *testing.T) {
	t.Helper()
	if filepath.Base(a.cmd.Path) == "java" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), bound)
		defer cancel()
		pid := strconv.Itoa(a.cmd.Process.Pid)
		stacks, err := exec.CommandContext(ctx, "jcmd", pid, "Thread.print", "-l").CombinedOutput()
		t.Logf("threads of the client (%v):\n%s", err, stacks)
	} else if err := a.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Logf("the client: %v", err)
	} else {
		select {
		case <-a.ended:
		case <-time.After(bound):
		}
	}
	t.Logf("end of the client's output:\n%s", a.stderr.end())
}

// dump logs the status, the log and the goroutines of both nodes, and restarts them.
func (w *world) dump(t *testing.T) {
	t.Helper()
	for _, n := range w.pair.Nodes {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), bound)
		status, err := n.Status(ctx)
		cancel()
		t.Logf("status of %s (%v): %v", n.Name, err, status)
	}
	for _, n := range w.pair.Nodes {
		info, err := os.Stat(n.LogFile())
		if err != nil {
			t.Logf("log of %s: %v", n.Name, err)
			continue
		}
		if err = n.Dump(); errors.Is(err, harness.ErrNotRunning) {
			err = nil
		}
		log, logErr := readFrom(n.LogFile(), info.Size()-kept)
		t.Logf("log and goroutines of %s (%v):\n%s", n.Name, errors.Join(err, logErr), log)
		if err := n.Start(); err != nil {
			t.Errorf("restart of %s: %v", n.Name, err)
		}
	}
}

// kept is the maximum size of a client's output, and of a node's log before the goroutines.
const kept = 128 << 10

func readFrom(name string, offset int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(max(0, offset), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// tail retains the end of an output.
type tail struct {
	mu sync.Mutex // guards b
	b  []byte
}

func (o *tail) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b = append(o.b, b...)
	if len(o.b) > 2*kept {
		o.b = append(o.b[:0], o.b[len(o.b)-kept:]...)
	}
	return len(b), nil
}

func (o *tail) end() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.b[max(0, len(o.b)-kept):])
}
