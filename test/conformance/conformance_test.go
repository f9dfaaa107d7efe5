// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/lockstep-mq/lockstep/test/harness/faultproxy"
)

// A client passes the conformance cases. LOCKSTEP_ADAPTER is the command, with arguments, of the client's adapter,
// which runs all cases. Without it, the Go client runs the short cases or, with LOCKSTEP_CONFORMANCE=full, all cases.
func TestConformance(t *testing.T) {
	dir := t.TempDir()
	binary, err := cluster.Build(t.Context(), dir)
	require.NoError(t, err)
	command := strings.Fields(os.Getenv("LOCKSTEP_ADAPTER"))
	full := len(command) > 0 || os.Getenv("LOCKSTEP_CONFORMANCE") == "full"
	if len(command) == 0 {
		command = []string{filepath.Join(dir, "goadapter")}
		out, err := exec.CommandContext(t.Context(), "go", "build", "-o", command[0], "./goadapter").CombinedOutput()
		require.NoError(t, err, string(out))
	}
	worlds := map[environment]*world{}
	passed := 0
	for _, c := range allCases() {
		if c.long && !full {
			continue
		}
		w := worlds[c.in]
		if w == nil {
			w = newWorld(t, c.in, binary, filepath.Join(dir, string(c.in)))
			worlds[c.in] = w
		}
		ok := t.Run(c.name, func(t *testing.T) {
			c.run(t, &run{world: w, t: t, a: startAdapter(t, command), name: c.name})
		})
		if ok {
			passed++
		}
	}
	t.Logf("%d of %d cases passed", passed, len(allCases()))
}

// testCase is one requirement of a client.
type testCase struct {
	name string
	long bool // takes seconds
	in   environment
	run  func(t *testing.T, r *run)
}

func allCases() []testCase {
	return slices.Concat(publishCases(), consumeCases(), faultCases(), tlsCases(), fleetCases(), partitionCases())
}

// environment identifies the nodes that a case uses. The nodes are started for the first case of an environment. All
// cases of the environment use them in sequence.
type environment string

const (
	plainPair  environment = ""
	securePair environment = "secure-pair" // TLS; client certificates are required
	secureNode environment = "secure-node" // single node with TLS; client certificates are optional
	twoPairs   environment = "two-pairs"   // fleet of two pairs, each with a single node
)

// world is a started environment.
type world struct {
	pair       *harness.Pair
	alone      bool                // single node
	relays     []*faultproxy.Relay // in front of the nodes, for cases that cut the links of clients
	identities identities          // only with TLS
	other      *harness.Pair       // second pair of a fleet, or nil
}

func newWorld(t *testing.T, in environment, binary, dir string) *world {
	t.Helper()
	settings := harness.SmallNodes()
	settings["limits.queues"] = "1000"
	o, w := harness.Options{Settings: settings}, &world{alone: in == secureNode || in == twoPairs}
	switch in {
	case plainPair:
	case securePair:
		o, w.identities = secured(t, settings, "require")
	case secureNode:
		o, w.identities = secured(t, settings, "none")
	case twoPairs:
		w.other = startOther(t, &o, binary, dir)
	}
	o.Binary, o.Dir, o.EtcdNoSync, o.Standalone = binary, dir, true, w.alone
	pair, err := harness.Start(t.Context(), o)
	require.NoError(t, err)
	w.pair = pair
	t.Cleanup(func() { require.NoError(t, pair.KillAll()) })
	for _, n := range pair.Nodes {
		r, err := faultproxy.Listen(n.Address)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		w.relays = append(w.relays, r)
	}
	w.inSync(t)
	return w
}

// inSync starts stopped nodes, waits until all are in sync, and returns the active and the standby, if any.
func (w *world) inSync(t *testing.T) (active, standby *harness.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for _, n := range w.pair.Nodes {
		if !n.Running() {
			require.NoError(t, n.Start())
		}
	}
	if w.alone {
		active, err := w.pair.WaitActive(ctx)
		require.NoError(t, err)
		return active, nil
	}
	active, standby, err := w.pair.WaitInSync(ctx)
	require.NoError(t, err)
	return active, standby
}

// run is a running case.
type run struct {
	*world
	t      *testing.T
	a      *adapter
	name   string
	o      oracle
	queues []string
	bodies int
}

// open opens a client of the pair in the adapter.
func (r *run) open(name string, more request) {
	r.t.Helper()
	q := request{"client": name, "addresses": r.pair.Addresses()}
	for k, v := range more {
		q[k] = v
	}
	r.a.do("open", q)
}

// queue creates a queue over gRPC. Its subscription "audit" retains every message, and its content
// is verified at the end of the case.
func (r *run) queue(suffix string, config *pb.QueueConfig) string {
	r.t.Helper()
	name := strings.ReplaceAll(r.name, " ", "-") + suffix
	require.EventuallyWithT(r.t, func(t *assert.CollectT) { // a pair of a fleet creates queues after it has joined
		_, err := pb.NewQueueServiceClient(r.pairOf(name).Conn()).CreateQueue(r.t.Context(), &pb.CreateQueueRequest{
			Name: name, Config: config, Subscriptions: []string{"default", "audit"}, IfNotExists: r.other != nil,
		})
		require.NoError(t, err)
	}, bound, 50*time.Millisecond)
	if r.o.messages == nil {
		r.o.messages = map[string]*sent{}
	}
	r.queues = append(r.queues, name)
	return name
}

// verify compares all queues of the case with the client's results. The pair must be in sync.
func (r *run) verify() {
	r.t.Helper()
	for _, q := range r.queues {
		r.o.verify(r.t, r.pairOf(q).Conn(), q)
	}
}

// body returns a unique body for the next message.
func (r *run) body() string {
	r.bodies++
	return fmt.Sprintf("%s #%d", r.name, r.bodies)
}

// publication is a pending publish of the client.
type publication struct {
	bodies  []string
	waiting <-chan answer
}

// publish publishes one message for each part, as one batch, and does not wait for the result.
func (r *run) publish(queue string, more request, parts ...request) publication {
	r.t.Helper()
	if len(parts) == 0 {
		parts = []request{{}}
	}
	var p publication
	for _, m := range parts {
		b, given := m["body"].(string)
		if !given {
			b = r.body()
			m["body"] = b
		}
		p.bodies = append(p.bodies, b)
	}
	q := request{"client": "c", "queue": queue, "messages": parts}
	for k, v := range more {
		q[k] = v
	}
	producer, _ := q["producer"].(string)
	if q["timeout_ms"] != nil {
		producer = "" // publishes with a timeout run concurrently, in any order
	}
	r.o.expect(queue, producer, p.bodies...)
	p.waiting = r.a.begin("publish", q)
	return p
}

// recorded waits for the client's result of a publish, and records it.
func (r *run) recorded(p publication) answer {
	r.t.Helper()
	got := r.a.await(p.waiting)
	r.o.recorded(r.t, r.a, got, p.bodies...)
	return got
}

// stored publishes messages, and requires success.
func (r *run) stored(queue string, more request, parts ...request) result {
	r.t.Helper()
	return r.a.success("publish", r.recorded(r.publish(queue, more, parts...)))
}

// consume attaches a consumer.
func (r *run) consume(name, queue string, more request) {
	r.t.Helper()
	q := request{"client": "c", "consumer": name, "queue": queue, "timeout_ms": bound.Milliseconds()}
	for k, v := range more {
		q[k] = v
	}
	r.a.do("consume", q)
}

// receive waits for a message that must arrive.
func (r *run) receive(consumer string) (delivery uint64, m *message) {
	r.t.Helper()
	got := r.a.do("receive", request{"consumer": consumer, "timeout_ms": bound.Milliseconds()})
	require.NotNil(r.t, got.Message, "consumer %s received no message within %v", consumer, bound)
	return got.Delivery, got.Message
}

// requireIdle requires that no message is received for a short time.
func (r *run) requireIdle(consumer string) {
	r.t.Helper()
	got := r.a.do("receive", request{"consumer": consumer, "timeout_ms": 150})
	require.Nil(r.t, got.Message, "consumer %s", consumer)
}

// answer settles a delivery: how is ack, nack, reject or extend.
func (r *run) answer(consumer string, delivery uint64, how string, more request) {
	r.t.Helper()
	q := request{"consumer": consumer, "delivery": delivery, "how": how}
	for k, v := range more {
		q[k] = v
	}
	r.a.do("answer", q)
}

// flush waits until all settlements of a consumer are committed.
func (r *run) flush(consumer string) {
	r.t.Helper()
	r.a.do("flush", request{"consumer": consumer, "timeout_ms": bound.Milliseconds()})
}
