// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/harness"
)

// pythonProcess is a process with the Python client, testdata/load.py.
type pythonProcess struct {
	t      *testing.T
	input  io.WriteCloser
	exited chan struct{} // closed when the process has exited and its output is read

	// The fields below are valid after exited.
	stderr  bytes.Buffer
	stopped bool // all requests are completed
	err     error
}

// pythonProducer publishes with the Python client.
type pythonProducer struct {
	*pythonProcess

	w *world

	mu   sync.Mutex // guards the fields below
	all  map[string][]receipt
	last time.Time
}

// pythonPath is the module path of the client.
func pythonPath(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../client/python/src")
	require.NoError(t, err)
	return path
}

// findPython returns a Python interpreter that can import the client, or "". If LOCKSTEP_PYTHON is set, but cannot
// import the client, the test fails.
func findPython(t *testing.T) string {
	t.Helper()
	given := os.Getenv("LOCKSTEP_PYTHON")
	candidates := []string{"python3", "python"}
	if given != "" {
		candidates = []string{given}
	}
	var last string
	for _, python := range candidates {
		cmd := exec.CommandContext(limited(t), python, "-c", "import lockstep_mq")
		cmd.Env = append(harness.Environment(), "PYTHONPATH="+pythonPath(t), "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		if err == nil {
			return python
		}
		last = fmt.Sprintf("%s: %v: %s", python, err, out)
	}
	require.Empty(t, given, "LOCKSTEP_PYTHON cannot import the client: %s", last)
	return ""
}

// newPythonProducer starts the producer. It returns nil if no Python interpreter has the packages that the client
// requires.
func newPythonProducer(w *world, addresses []string, queues ...string) *pythonProducer {
	w.t.Helper()
	l := &pythonProducer{w: w, all: map[string][]receipt{}}
	args := append([]string{"publish", strings.Join(addresses, ","), fmt.Sprint(publishInterval.Seconds())}, queues...)
	if l.pythonProcess = startPython(w.t, l.record, args...); l.pythonProcess == nil {
		return nil
	}
	return l
}

// startPython starts testdata/load.py. record is called for each line of its output. It returns nil if no Python
// interpreter has the packages that the client requires.
func startPython(t *testing.T, record func(line string) error, args ...string) *pythonProcess {
	t.Helper()
	python := findPython(t)
	if python == "" {
		t.Log("SKIPPED: the load has no Python client, because no Python with grpcio was found: set LOCKSTEP_PYTHON")
		return nil
	}
	l := &pythonProcess{t: t, exited: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // until the cleanup
	cmd := exec.CommandContext(ctx, python, append([]string{"testdata/load.py"}, args...)...)
	cmd.Env = append(harness.Environment(), "PYTHONPATH="+pythonPath(t), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = &l.stderr
	var err error
	l.input, err = cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	go func() {
		defer close(l.exited)
		err := l.read(output, record)
		if exit := cmd.Wait(); exit != nil {
			err = errors.Join(err, exit)
		}
		l.err = err
	}()
	t.Cleanup(func() {
		if t.Failed() && cmd.Process.Signal(syscall.SIGUSR1) == nil {
			timer := time.NewTimer(time.Second) // for the output
			<-timer.C
		}
		cancel()
		<-l.exited
		if t.Failed() {
			t.Logf("Python: %s", l.stderr.String())
		}
	})
	return l
}

// read records the output of the process.
func (l *pythonProcess) read(output io.Reader, record func(line string) error) error {
	lines := bufio.NewScanner(output)
	var failed error
	for lines.Scan() {
		if lines.Text() == "stopped" {
			l.stopped = true
			continue
		}
		if err := record(lines.Text()); err != nil && failed == nil {
			failed = fmt.Errorf("line %q: %w", lines.Text(), err)
		}
	}
	return errors.Join(failed, lines.Err())
}

// finish stops the process, and waits until it has exited.
func (l *pythonProcess) finish() {
	l.t.Helper()
	require.NoError(l.t, l.input.Close())
	select {
	case <-l.exited:
	case <-limited(l.t).Done():
		require.FailNow(l.t, "the Python client does not exit")
	}
	require.NoError(l.t, l.err)
	require.True(l.t, l.stopped, "the Python client has not completed its requests")
}

func (l *pythonProducer) record(line string) error {
	var word, queue, address string
	var r receipt
	if _, err := fmt.Sscan(line, &word, &queue, &r.n, &r.sequence, &r.lsn, &address); err != nil {
		return err
	}
	r.pair = l.w.pairOf(address)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[queue] = append(l.all[queue], r)
	l.last = time.Now()
	return nil
}

func (*pythonProducer) name() string { return "python" }

func (l *pythonProducer) continued(since time.Time) {
	l.t.Helper()
	eventually(l.t, "receipt of the Python client", func(context.Context) bool {
		select {
		case <-l.exited:
			require.FailNow(l.t, "the Python client has exited")
		default:
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.last.After(since)
	})
}

func (l *pythonProducer) receipts(queue string) []receipt { return l.all[queue] }

func (l *pythonProducer) confirmed(queue string) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return numbers(l.all[queue])
}

const pythonSubscription = "python"

// pythonConsumer consumes with the Python client.
type pythonConsumer struct {
	*pythonProcess

	all map[string]*deliveries
}

// newPythonConsumer starts the consumer. It returns nil if no Python interpreter has the packages that the client
// requires.
func newPythonConsumer(w *world, addresses []string, queues ...string) *pythonConsumer {
	w.t.Helper()
	co := &pythonConsumer{all: newDeliveriesOf(w, queues, pythonSubscription)}
	args := append([]string{
		"consume", strings.Join(addresses, ","), pythonSubscription, fmt.Sprint(prefetch),
		fmt.Sprint(flushInterval.Seconds()), fmt.Sprint(nackInterval),
	}, queues...)
	if co.pythonProcess = startPython(w.t, co.record, args...); co.pythonProcess == nil {
		return nil
	}
	return co
}

func (co *pythonConsumer) record(line string) error {
	words := strings.Fields(line)
	if len(words) < 2 || co.all[words[1]] == nil {
		return errors.New("unknown line")
	}
	d := co.all[words[1]]
	switch words[0] {
	case "confirmed":
		var n int
		if _, err := fmt.Sscan(words[2], &n); err != nil {
			return err
		}
		d.confirm(n)
	case "refused":
		d.refuse()
	case "delivered":
		var sequence uint64
		var count uint32
		var answer, body string
		if _, err := fmt.Sscan(strings.Join(words[2:], " "), &sequence, &count, &answer, &body); err != nil {
			return err
		}
		if k, _ := d.received([]byte(body), sequence, count); answer == "ack" {
			d.acknowledged(k)
		}
	default:
		return errors.New("unknown line")
	}
	return nil
}

func (co *pythonConsumer) deliveries(queue string) *deliveries { return co.all[queue] }

func (co *pythonConsumer) stop() { co.finish() }
