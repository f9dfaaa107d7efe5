// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package real

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// Queues of the Python load: messages in pythonKept are not consumed, and messages in pythonWork are consumed.
const (
	pythonKept = "python-kept"
	pythonWork = "python-work"
)

// pythonLoad is a process with the Python client, testdata/load.py: a producer and a consumer.
type pythonLoad struct {
	t       *testing.T
	input   io.WriteCloser
	exited  chan struct{} // closed when the process has exited and its output is read
	stopped chan struct{} // closed when all publishes have a receipt
	stderr  bytes.Buffer  // may be read after exited

	mu          sync.Mutex // guards the fields below
	published   map[string][]stored
	delivered   map[uint64]int
	again       int
	confirmed   map[uint64]bool
	lastReceipt time.Time
	err         error
}

// pythonPath is the module path of the client.
func pythonPath(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../client/python/src")
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

// newPythonLoad starts the load. It returns nil if no Python interpreter has the packages that the client requires.
func newPythonLoad(w *world) *pythonLoad {
	t := w.t
	t.Helper()
	python := findPython(t)
	if python == "" {
		t.Log("SKIPPED: the load has no Python client, because no Python with grpcio was found: set LOCKSTEP_PYTHON")
		return nil
	}
	w.create(pythonKept, pythonWork)
	var addresses []string
	for _, s := range w.sites() {
		addresses = append(addresses, s.pair.Addresses()...)
	}
	l := &pythonLoad{
		t: t, exited: make(chan struct{}), stopped: make(chan struct{}), published: map[string][]stored{},
		delivered: map[uint64]int{}, confirmed: map[uint64]bool{},
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, python, "testdata/load.py", strings.Join(addresses, ","), pythonKept, pythonWork)
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
		err := l.read(output)
		if exit := cmd.Wait(); exit != nil {
			err = errors.Join(err, exit)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.err = err
	}()
	t.Cleanup(func() {
		cancel()
		<-l.exited
		if t.Failed() {
			t.Logf("Python: %s", l.stderr.String())
		}
	})
	return l
}

// read records the output of the process.
func (l *pythonLoad) read(output io.Reader) error {
	lines := bufio.NewScanner(output)
	var failed error
	for lines.Scan() {
		if err := l.record(lines.Text()); err != nil && failed == nil {
			failed = fmt.Errorf("line %q: %w", lines.Text(), err)
		}
	}
	return errors.Join(failed, lines.Err())
}

func (l *pythonLoad) record(line string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	word, rest, _ := strings.Cut(line, " ")
	var sequence uint64
	var n int
	switch word {
	case "published":
		var queue string
		if _, err := fmt.Sscan(rest, &queue, &n, &sequence); err != nil {
			return err
		}
		l.published[queue] = append(l.published[queue], stored{sequence, n})
		l.lastReceipt = time.Now()
	case "delivered":
		if _, err := fmt.Sscan(rest, &sequence, &n); err != nil {
			return err
		}
		if _, is := l.delivered[sequence]; is {
			l.again++
		}
		l.delivered[sequence] = n
	case "confirmed":
		if _, err := fmt.Sscan(rest, &sequence); err != nil {
			return err
		}
		l.confirmed[sequence] = true
	case "stopped":
		close(l.stopped)
	default:
		return errors.New("unknown word")
	}
	return nil
}

func (l *pythonLoad) hasExited() bool {
	select {
	case <-l.exited:
		return true
	default:
		return false
	}
}

// continued waits for a receipt after a time.
func (l *pythonLoad) continued(since time.Time) {
	l.t.Helper()
	eventually(l.t, "receipt of the Python client", func(context.Context) bool {
		require.False(l.t, l.hasExited(), "the Python client has exited")
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.lastReceipt.After(since)
	})
}

// finish stops the producer, waits until the consumer has confirmed all messages, and ends the process.
func (l *pythonLoad) finish(*client.Client) {
	l.t.Helper()
	_, err := io.WriteString(l.input, "stop\n")
	require.NoError(l.t, err)
	eventually(l.t, "all messages of the Python client consumed", func(context.Context) bool {
		require.False(l.t, l.hasExited(), "the Python client has exited")
		select {
		case <-l.stopped:
		default:
			return false
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.confirmed) >= len(l.published[pythonWork])
	})
	require.NoError(l.t, l.input.Close())
	select {
	case <-l.exited:
	case <-limited(l.t).Done():
		require.FailNow(l.t, "the Python client does not exit")
	}
	require.NoError(l.t, l.err)
}

// verify compares the stored messages with the receipts: each message is stored once, with the sequence of its receipt
// and in the order of the publishes. The only consumer received each message once and acknowledged it.
func (l *pythonLoad) verify(c *client.Client) {
	l.t.Helper()
	requireSame(l.t, pythonKept, l.published[pythonKept], content(l.t, c, pythonKept, false))
	consumed := make([]stored, 0, len(l.delivered))
	for _, sequence := range slices.Sorted(maps.Keys(l.delivered)) {
		consumed = append(consumed, stored{sequence, l.delivered[sequence]})
	}
	requireSame(l.t, pythonWork, l.published[pythonWork], consumed)
	require.Zero(l.t, l.again, "messages delivered to the Python client again")
	require.Len(l.t, l.confirmed, len(consumed), "confirmed acknowledgements")
	require.Empty(l.t, content(l.t, c, pythonWork, true), "unacknowledged messages in %s", pythonWork)
	for queue, all := range l.published {
		for i := range all {
			require.Equal(l.t, uint64(i)+1, all[i].sequence, "%s: sequence of message %d", queue, i)
		}
	}
	l.t.Logf("Python: %d publishes, %d consumed", len(l.published[pythonKept])+len(consumed), len(consumed))
}
