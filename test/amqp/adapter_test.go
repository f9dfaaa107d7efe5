// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
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
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// message is a received message.
type message struct {
	Body          string         `json:"body"`
	MessageID     string         `json:"message_id"`
	CorrelationID string         `json:"correlation_id"`
	Subject       string         `json:"subject"`
	Group         string         `json:"group"`
	ReplyTo       string         `json:"reply_to"`
	Priority      int            `json:"priority"`
	DeliveryCount int            `json:"delivery_count"`
	Properties    map[string]any `json:"properties"`
}

// outcome is the client's result of a sent message: "accepted" or "failed".
type outcome struct {
	Outcome string `json:"outcome"`
	Text    string `json:"text"`
}

// result contains the fields of all kinds of responses.
type result struct {
	Results  []outcome  `json:"results"`
	Messages []*message `json:"messages"`
	Message  *message   `json:"message"`
	Delivery uint64     `json:"delivery"`
	Address  string     `json:"address"`
}

// adapter is a process with the client under test.
type adapter struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr *tail
	ended  chan struct{} // closed when the adapter's output has ended
	can    []string

	mu      sync.Mutex // guards all fields below
	number  uint64
	pending map[uint64]chan answer
}

// startAdapter starts a process with the client under test, which ends with the test.
func startAdapter(t *testing.T, command []string) *adapter {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	// Qpid JMS and Proton log every frame, unless PN_TRACE_FRM is set to 0.
	cmd.Env = append([]string{"PN_TRACE_FRM=1"}, harness.Environment()...)
	stderr := &tail{}
	cmd.Stderr = stderr
	if os.Getenv("PN_TRACE_FRM") == "1" {
		cmd.Stderr = io.MultiWriter(os.Stderr, stderr)
	}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	a := &adapter{
		t: t, cmd: cmd, in: in, stderr: stderr, ended: make(chan struct{}), pending: map[uint64]chan answer{},
	}
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
	got := a.call("can", nil)
	require.Nil(t, got.Error)
	require.NoError(t, json.Unmarshal(got.OK, &a.can))
	return a
}

// able reports whether the client supports the requirements of a case.
func (a *adapter) able(needs []string) bool {
	return !slices.ContainsFunc(needs, func(n string) bool { return !slices.Contains(a.can, n) })
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
func (a *adapter) do(op string, r request) (out result) {
	a.t.Helper()
	got := a.call(op, r)
	if got.Error != nil {
		require.Fail(a.t, "the client failed", "%s %v: %s", op, r, got.Error.Message)
	}
	require.NoError(a.t, json.Unmarshal(got.OK, &out), "%s", got.OK)
	return out
}

// try is like call, but decodes the response, or returns the text of the error.
func (a *adapter) try(op string, r request) (out result, failed string) {
	a.t.Helper()
	got := a.call(op, r)
	if got.Error != nil {
		return out, got.Error.Message
	}
	require.NoError(a.t, json.Unmarshal(got.OK, &out), "%s", got.OK)
	return out, ""
}

func decode(t *testing.T, got answer) (out result) {
	t.Helper()
	require.NoError(t, json.Unmarshal(got.OK, &out), "%s", got.OK)
	return out
}
