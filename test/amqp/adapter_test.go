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

// bound is how long any answer may take that should come. Generous: the machine may be busy with other tests.
const bound = 30 * time.Second

// request is one line for the adapter; README.md has the fields of each op.
type request map[string]any

// answer is one line of the adapter.
type answer struct {
	ID    uint64          `json:"id"`
	OK    json.RawMessage `json:"ok"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// message is one that was received.
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

// outcome is what the client told of a message that it sent: "accepted" or "failed".
type outcome struct {
	Outcome string `json:"outcome"`
	Text    string `json:"text"`
}

// result has the fields of all answers.
type result struct {
	Results  []outcome  `json:"results"`
	Messages []*message `json:"messages"`
	Message  *message   `json:"message"`
	Delivery uint64     `json:"delivery"`
	Address  string     `json:"address"`
}

// adapter is a process with the client under test.
type adapter struct {
	t     *testing.T
	in    io.WriteCloser
	ended chan struct{} // closed when its output has ended
	can   []string

	mu      sync.Mutex // guards all below
	number  uint64
	pending map[uint64]chan answer
}

// startAdapter starts a process of the client under test; it is ended with the test.
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
			t.Errorf("the adapter did not end within %v of the end of its input", bound)
			_ = cmd.Process.Kill()
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the adapter ended with %v", err)
		}
	})
	got := a.call("can", nil)
	require.Nil(t, got.Error)
	require.NoError(t, json.Unmarshal(got.OK, &a.can))
	return a
}

// able tells whether the client has what a case needs.
func (a *adapter) able(needs []string) bool {
	return !slices.ContainsFunc(needs, func(n string) bool { return !slices.Contains(a.can, n) })
}

// read hands answers out until the output ends; what is asked then stays without an answer.
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
			a.t.Errorf("the adapter answered request %d, which is not open", got.ID)
			continue
		}
		waiting <- got
	}
}

// begin sends a request and returns where its answer will be.
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
	require.NoError(a.t, err, "the adapter has ended")
	return waiting
}

// await waits for an answer.
func (a *adapter) await(waiting <-chan answer) answer {
	a.t.Helper()
	select {
	case got := <-waiting:
		return got
	case <-a.ended:
		require.Fail(a.t, "the adapter has ended")
	case <-time.After(bound):
		require.Fail(a.t, "no answer of the adapter", "within %v", bound)
	}
	return answer{}
}

// call sends a request and waits for its answer.
func (a *adapter) call(op string, r request) answer {
	a.t.Helper()
	return a.await(a.begin(op, r))
}

// do is call for what must succeed; it decodes the answer.
func (a *adapter) do(op string, r request) (out result) {
	a.t.Helper()
	got := a.call(op, r)
	if got.Error != nil {
		require.Fail(a.t, "the client failed", "%s %v: %s", op, r, got.Error.Message)
	}
	require.NoError(a.t, json.Unmarshal(got.OK, &out), "%s", got.OK)
	return out
}

// try is call for what may fail; it decodes the answer, and gives the text of the error.
func (a *adapter) try(op string, r request) (out result, failed string) {
	a.t.Helper()
	got := a.call(op, r)
	if got.Error != nil {
		return out, got.Error.Message
	}
	require.NoError(a.t, json.Unmarshal(got.OK, &out), "%s", got.OK)
	return out, ""
}

// decode reads an answer that is no error.
func decode(t *testing.T, got answer) (out result) {
	t.Helper()
	require.NoError(t, json.Unmarshal(got.OK, &out), "%s", got.OK)
	return out
}
