// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// client is a client under test.
type client struct {
	name    string
	command []string
	chosen  bool // explicitly configured: runs all cases, including those that take seconds
}

// clients returns the clients in LOCKSTEP_AMQP_ADAPTERS, one per line as name=command. Without the variable, it builds
// and returns go-amqp.
func clients(t *testing.T, dir string) (all []client) {
	t.Helper()
	for line := range strings.Lines(os.Getenv("LOCKSTEP_AMQP_ADAPTERS")) {
		name, command, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok {
			all = append(all, client{name: name, command: strings.Fields(command), chosen: true})
		}
	}
	if len(all) > 0 {
		return all
	}
	program := filepath.Join(dir, "goadapter")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./goadapter").CombinedOutput()
	require.NoError(t, err, string(out))
	return []client{{
		name: "go-amqp", command: []string{program}, chosen: os.Getenv("LOCKSTEP_AMQP") == "full",
	}}
}

// world is the pair, which all cases use in sequence.
type world struct {
	pair *harness.Pair
	urls map[string]string // host:port of a node's AMQP port, by the node's name
	host string            // host name of both nodes for clients; if empty, clients use the address
}

func newWorld(t *testing.T, dir string, more map[string]string, change func(*harness.Options)) *world {
	t.Helper()
	binary, err := cluster.Build(t.Context(), dir)
	require.NoError(t, err)
	w := &world{urls: map[string]string{}}
	of := map[string]map[string]string{}
	for _, name := range []string{"a", "b"} {
		port, err := harness.ReservePort()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, port.Close()) })
		w.urls[name] = port.Address()
		of[name] = map[string]string{"amqp.listen": port.Address()}
	}
	settings := harness.SmallNodes()
	// With these timeouts, a slow node is not treated as failed. A killed node is still detected immediately.
	settings["failover.timeout"], settings["failover.drop-timeout"] = "100s", "80s"
	for k, v := range more {
		settings[k] = v
	}
	o := harness.Options{Binary: binary, Dir: dir, EtcdNoSync: true, Settings: settings, NodeSettings: of}
	if change != nil {
		change(&o)
	}
	w.pair, err = harness.Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() && testing.Verbose() {
			for _, n := range w.pair.Nodes {
				t.Logf("log of %s:\n%s", n.Name, n.LogTail())
			}
		}
		require.NoError(t, w.pair.KillAll())
	})
	w.inSync(t)
	return w
}

// dead reports whether a node has exited without being killed by the test.
func (w *world) dead() bool {
	return slices.ContainsFunc(w.pair.Nodes, func(n *harness.Node) bool { return n.Failure() != nil })
}

// inSync starts stopped nodes, waits until both are in sync, and returns the active and the standby.
func (w *world) inSync(t *testing.T) (active, standby *harness.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for _, n := range w.pair.Nodes {
		if !n.Running() {
			require.NoError(t, n.Start())
		}
	}
	active, standby, err := w.pair.WaitInSync(ctx)
	require.NoError(t, err)
	return active, standby
}

// active returns the serving node.
func (w *world) active(t *testing.T) *harness.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	active, err := w.pair.WaitActive(ctx)
	require.NoError(t, err)
	return active
}

// queues returns a client for the queue service of the active node.
func (w *world) queues(t *testing.T) pb.QueueServiceClient {
	t.Helper()
	return pb.NewQueueServiceClient(w.active(t).Conn())
}

// create creates a queue over gRPC.
func (w *world) create(t *testing.T, req *pb.CreateQueueRequest) {
	t.Helper()
	_, err := w.queues(t).CreateQueue(t.Context(), req)
	require.NoError(t, err)
}

func (w *world) get(t *testing.T, name string) *pb.Queue {
	t.Helper()
	resp, err := w.queues(t).GetQueue(t.Context(), &pb.GetQueueRequest{Name: name})
	require.NoError(t, err)
	return resp.GetQueue()
}

// stored returns all messages in a queue.
func (w *world) stored(t *testing.T, queue string) (all []*pb.StoredMessage) {
	t.Helper()
	stream, err := w.queues(t).Browse(t.Context(), &pb.BrowseRequest{Queue: queue})
	require.NoError(t, err)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) == codes.NotFound {
			return all
		}
		require.NoError(t, err)
		all = append(all, resp.GetMessages()...)
	}
}

func eventually(t *testing.T, label string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, bound, 20*time.Millisecond, label)
}

// run is one execution of a test case.
type run struct {
	*world
	t     *testing.T
	a     *adapter
	name  string
	login request // credentials of each connection
}

// queueName returns a name that is unique to the case.
func (r *run) queueName(suffix string) string { return r.name + suffix }

// queue creates a queue of the case.
func (r *run) queue(suffix string, config *pb.QueueConfig) string {
	r.t.Helper()
	name := r.queueName(suffix)
	r.create(r.t, &pb.CreateQueueRequest{Name: name, Config: config})
	return name
}

// topic creates a queue without subscriptions.
func (r *run) topic(suffix string) string {
	r.t.Helper()
	name := r.queueName(suffix)
	r.create(r.t, &pb.CreateQueueRequest{Name: name, Topic: true})
	return name
}

// open opens a named connection of the adapter to the addresses of both nodes. The order of the addresses does not
// depend on which node is active.
func (r *run) open(name string, more request) {
	r.t.Helper()
	r.a.do("open", r.opening(name, more))
}

// opening returns the request of open.
func (r *run) opening(name string, more request) request {
	urls := []string{r.urls["a"], r.urls["b"]}
	for i, u := range urls {
		if _, port, ok := strings.Cut(u, ":"); ok && r.host != "" {
			urls[i] = r.host + ":" + port
		}
	}
	return with(request{"client": name, "urls": urls}, r.login, more)
}

// send sends messages, all of which must be accepted.
func (r *run) send(q request, messages ...request) {
	r.t.Helper()
	line := request{"messages": messages}
	for k, v := range q {
		line[k] = v
	}
	got := r.a.do("send", line)
	require.Len(r.t, got.Results, len(messages))
	for i, o := range got.Results {
		require.Equal(r.t, "accepted", o.Outcome, "%v: %s", messages[i], o.Text)
	}
}

// receive returns the next message, which must arrive.
func (r *run) receive(q request) (uint64, *message) {
	r.t.Helper()
	line := request{"timeout_ms": bound.Milliseconds()}
	for k, v := range q {
		line[k] = v
	}
	got := r.a.do("receive", line)
	require.NotNil(r.t, got.Message, "no message was received for %v", q)
	return got.Delivery, got.Message
}

// take receives and accepts one message, and returns its body.
func (r *run) take(q request) string {
	r.t.Helper()
	delivery, m := r.receive(q)
	r.answer(q, delivery, "accept")
	return m.Body
}

// quiet requires that a consumer receives no further message for a short time.
func (r *run) quiet(q request) {
	r.t.Helper()
	line := request{"timeout_ms": 400}
	for k, v := range q {
		line[k] = v
	}
	got := r.a.do("receive", line)
	require.Nil(r.t, got.Message, "%+v", got.Message)
}

func (r *run) answer(q request, delivery uint64, how string) {
	r.t.Helper()
	line := request{"delivery": delivery, "how": how}
	for k, v := range q {
		line[k] = v
	}
	r.a.do("answer", line)
}

// empty waits until all messages of a queue are acknowledged.
func (r *run) empty(queue string) {
	r.t.Helper()
	eventually(r.t, queue+" is empty", func() bool { return r.get(r.t, queue).GetMessages() == 0 })
}

// bodies returns the texts "m0", "m1" … as messages.
func bodies(from, to int) (all []request) {
	for i := from; i < to; i++ {
		all = append(all, request{"body": fmt.Sprintf("m%d", i)})
	}
	return all
}
