// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package conformance

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/harness"
)

// bound limits the wait for any response. It is long, because the machine may be busy with other tests.
const bound = 2 * time.Minute

// request is one line for the adapter; README.md documents the fields of each op.
type request map[string]any

// answer is one line from the adapter.
type answer struct {
	ID    uint64          `json:"id"`
	OK    json.RawMessage `json:"ok"`
	Error *failure        `json:"error"`
}

// failure is the error that the client returned to its application.
type failure struct {
	Outcome string `json:"outcome"` // "not-done" or "unknown"
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// adapter is a process with the client under test.
type adapter struct {
	t     *testing.T
	in    io.WriteCloser
	ended chan struct{} // closed when the adapter's output has ended

	mu      sync.Mutex // guards all fields below
	number  uint64
	pending map[uint64]chan answer
}

// startAdapter starts a process with the client under test, which ends with the test.
func startAdapter(t *testing.T, command []string) *adapter {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = harness.Environment()
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	a := &adapter{t: t, in: in, ended: make(chan struct{}), pending: map[uint64]chan answer{}}
	go a.read(out)
	t.Cleanup(func() {
		_ = in.Close()
		select {
		case <-a.ended:
		case <-time.After(bound):
			t.Errorf("the adapter did not exit within %v after the end of its input", bound)
			_ = cmd.Process.Kill()
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the adapter failed: %v", err)
		}
	})
	return a
}

// read dispatches responses until the output ends; later requests get no response.
func (a *adapter) read(out io.Reader) {
	defer close(a.ended)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var got answer
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
			a.t.Errorf("the adapter wrote %.200q: %v", lines.Text(), err)
			return
		}
		a.mu.Lock()
		waiting := a.pending[got.ID]
		delete(a.pending, got.ID)
		a.mu.Unlock()
		if waiting == nil {
			a.t.Errorf("the adapter responded to request %d, which is not open", got.ID)
			continue
		}
		waiting <- got
	}
}

// begin sends a request and returns the channel of its response.
func (a *adapter) begin(op string, r request) <-chan answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.number++
	line := request{"id": a.number, "op": op}
	for k, v := range r {
		line[k] = v
	}
	waiting := make(chan answer, 1)
	a.pending[a.number] = waiting
	b, err := json.Marshal(line)
	require.NoError(a.t, err)
	_, err = a.in.Write(append(b, '\n'))
	require.NoError(a.t, err, "the adapter has exited")
	return waiting
}

func (a *adapter) await(waiting <-chan answer) answer {
	a.t.Helper()
	select {
	case got := <-waiting:
		return got
	case <-a.ended:
		require.Fail(a.t, "the adapter has exited")
	case <-time.After(2 * bound): // a request may have the timeout bound
		require.Fail(a.t, "the adapter did not respond", "within %v", 2*bound)
	}
	return answer{}
}

// call sends a request and waits for its response.
func (a *adapter) call(op string, r request) answer {
	a.t.Helper()
	return a.await(a.begin(op, r))
}

// do is like call, but requires success, and decodes the response.
func (a *adapter) do(op string, r request) result {
	a.t.Helper()
	return a.success(op, a.call(op, r))
}

// success requires a successful response, and decodes it.
func (a *adapter) success(op string, got answer) (out result) {
	a.t.Helper()
	if got.Error != nil {
		require.Fail(a.t, op, "%s: %s: %s", got.Error.Outcome, got.Error.Reason, got.Error.Message)
	}
	require.NoError(a.t, json.Unmarshal(got.OK, &out), op)
	return out
}

// result contains the fields of the responses to all ops.
type result struct {
	Sequence     uint64    `json:"sequence"`
	Duplicate    bool      `json:"duplicate"`
	Created      bool      `json:"created"`
	Stored       uint64    `json:"messages_stored"`
	NextSequence uint64    `json:"next_sequence"`
	Delivery     uint64    `json:"delivery"`
	Message      *message  `json:"message"`
	Messages     []message `json:"messages"`
}

// message is a message in the adapter's JSON form.
type message struct {
	Body          string            `json:"body"`
	Size          int               `json:"size"`
	SHA256        string            `json:"sha256"`
	Properties    map[string]string `json:"properties"`
	MessageID     string            `json:"message_id"`
	CorrelationID string            `json:"correlation_id"`
	ReplyTo       string            `json:"reply_to"`
	Subject       string            `json:"subject"`
	Priority      *int              `json:"priority"`
	Sequence      uint64            `json:"sequence"`
	DeliveryCount int               `json:"delivery_count"`
	DeadLetterOf  string            `json:"dead_letter_of"`
}
