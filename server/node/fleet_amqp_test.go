// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// amqpReason returns the reason in an AMQP error.
func amqpReason(e *wire.Error) any {
	why, _ := e.Info.Get(wire.Symbol("lockstep:reason"))
	return why
}

// AMQP clients use the queues of another pair like those of their pair.
//
// The test uses real sockets, because the directory requires a real etcd.
func TestAMQPForwards(t *testing.T) {
	f := startFleet(t)
	f.place("amqp-temporary.*", "b")
	for _, name := range []string{"a.q", "b.in", "b.out", "b.topic"} {
		require.NoError(t, f.create(name, admin.CreateQueueOptions{}))
	}
	messages := func(n uint64) func(*pb.Queue) bool {
		return func(q *pb.Queue) bool { return q.GetMessages() == n }
	}
	t.Run("queue", func(t *testing.T) {
		p := openAMQP(t, f.a)
		require.Nil(t, p.sender(0, targetNode("b.in")))
		for _, body := range []string{"1", "2"} {
			p.transfer(0, body, nil)
			require.Equal(t, wire.Accepted{}, p.outcome())
		}
		require.Nil(t, p.receiver(1, "browser", &wire.Source{Address: "b.in", DistributionMode: "copy"}))
		p.credit(1, 10)
		require.Equal(t, "1", p.receive().body)
		require.Equal(t, "2", p.receive().body)
		require.Nil(t, p.receiver(2, "r", &wire.Source{Address: "b.in"}))
		p.credit(2, 10)
		for _, body := range []string{"1", "2"} {
			m := p.receive()
			require.Equal(t, body, m.body)
			p.dispose(m.id, wire.Accepted{})
		}
		f.b.eventually("b.in", isEmpty)
		require.Nil(t, p.sender(3, targetNode("b.created")))
		require.NoError(t, get(f.b, "b.created"))
	})
	t.Run("transaction", func(t *testing.T) {
		f.b.publish("b.in", "work")
		p := openAMQP(t, f.a)
		require.Nil(t, p.sender(0, &wire.Coordinator{}))
		require.Nil(t, p.sender(1, targetNode("b.out")))
		require.Nil(t, p.sender(2, targetNode("a.q")))
		require.Nil(t, p.receiver(3, "r", &wire.Source{Address: "b.in"}))
		p.credit(3, 10)
		declare := func() []byte {
			p.raw(0, wiretest.Declare(), nil)
			return p.outcome().(*wire.Declared).TxnID
		}
		send := func(id []byte, handles ...uint32) {
			for _, h := range handles {
				p.transfer(h, "done", &wire.TransactionalState{TxnID: id})
				require.IsType(t, &wire.TransactionalState{}, p.outcome())
			}
		}
		discharge := func(id []byte) wire.DeliveryState {
			p.raw(0, wiretest.Discharge(id, false), nil)
			return p.outcome()
		}
		id := declare()
		send(id, 1, 2)
		rejected, is := discharge(id).(*wire.Rejected)
		require.True(t, is)
		require.Equal(t, "CROSS_PAIR", amqpReason(rejected.Error))
		id = declare()
		m := p.receive()
		p.dispose(m.id, &wire.TransactionalState{TxnID: id, Outcome: wire.Accepted{}})
		send(id, 1)
		require.Equal(t, wire.Accepted{}, discharge(id))
		f.b.eventually("b.in", isEmpty)
		f.b.eventually("b.out", messages(1))
		id = declare()
		send(id, 1)
		require.Equal(t, wire.Accepted{}, discharge(id), "the owner is not known from an acknowledgement")
		f.b.eventually("b.out", messages(2))
		f.a.eventually("a.q", isEmpty)
	})
	t.Run("subscription", func(t *testing.T) {
		p := openAMQP(t, f.a)
		source := &wire.Source{
			Address: "b.topic", Durable: wire.DurabilityUnsettled, ExpiryPolicy: wire.ExpiryNever,
			Capabilities: []wire.Symbol{"topic"},
		}
		require.Nil(t, p.receiver(0, "sub", source))
		f.b.publish("b.topic", "event")
		p.credit(0, 10)
		m := p.receive()
		require.Equal(t, "event", m.body)
		p.dispose(m.id, wire.Accepted{})
		p.send(&wire.Detach{Handle: 0})
		expect[*wire.Detach](p)
		require.Nil(t, p.receiver(1, "sub", nil), "a link without a source recovers it")
		p.send(&wire.Detach{Handle: 1, Closed: true})
		expect[*wire.Detach](p)
		f.b.eventually("b.topic", func(q *pb.Queue) bool { return len(q.GetSubscriptions()) == 1 })
	})
	t.Run("dynamic", func(t *testing.T) {
		p := openAMQP(t, f.a)
		p.send(&wire.Attach{
			Name: "d", Handle: 0, Role: wire.RoleReceiver, Source: &wire.Source{Dynamic: true},
			Target: &wire.Node{Address: "here"},
		})
		name, _ := expect[*wire.Attach](p).Source.Address.(string)
		require.NoError(t, get(f.b, name))
		require.Nil(t, p.sender(1, targetNode(name)))
		p.transfer(1, "reply", nil)
		require.Equal(t, wire.Accepted{}, p.outcome())
		p.credit(0, 10)
		require.Equal(t, "reply", p.receive().body)
		p.send(&wire.Close{})
		expect[*wire.Close](p)
		require.Eventually(t, func() bool { return get(f.b, name) != nil }, testTimeout, 5*time.Millisecond)
	})
}

// amqpTraffic publishes numbered messages to a queue, and consumes them, with an AMQP client.
type amqpTraffic struct {
	queue    string
	stopping chan struct{}
	done     chan error
}

const lastMessage = "end"

func startAMQPTraffic(t *testing.T, n *testNode, queue string) *amqpTraffic {
	t.Helper()
	tr := &amqpTraffic{queue: queue, stopping: make(chan struct{}), done: make(chan error, 2)}
	open := func() *amqp.Session {
		conn, err := amqp.Dial(t.Context(), "amqp://"+n.ready.AMQP, nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		s, err := conn.NewSession(t.Context(), nil)
		require.NoError(t, err)
		return s
	}
	sending, receiving := open(), open()
	go func() { tr.done <- tr.send(t.Context(), sending) }()
	go func() { tr.done <- tr.receive(t.Context(), receiving) }()
	return tr
}

func (tr *amqpTraffic) send(ctx context.Context, s *amqp.Session) error {
	sender, err := s.NewSender(ctx, tr.queue, nil)
	if err != nil {
		return fmt.Errorf("attach a sender: %w", err)
	}
	for n := 0; ; n++ {
		body := strconv.Itoa(n)
		select {
		case <-tr.stopping:
			body = lastMessage
		default:
		}
		if err := sender.Send(ctx, amqp.NewMessage([]byte(body)), nil); err != nil || body == lastMessage {
			return err
		}
	}
}

// receive requires that all messages are received in order. Only messages that were received before may be received
// again.
func (tr *amqpTraffic) receive(ctx context.Context, s *amqp.Session) error {
	r, err := s.NewReceiver(ctx, tr.queue, &amqp.ReceiverOptions{Credit: 100})
	if err != nil {
		return fmt.Errorf("attach a receiver: %w", err)
	}
	for next := 0; ; {
		m, err := r.Receive(ctx, nil)
		if err != nil {
			return fmt.Errorf("receive %d: %w", next, err)
		}
		body := string(m.GetData())
		n, failed := strconv.Atoi(body)
		switch {
		case n > next || failed != nil && body != lastMessage:
			return fmt.Errorf("received %q instead of %d", body, next)
		case n == next && failed == nil:
			next++
		}
		if err := r.AcceptMessage(ctx, m); err != nil {
			return fmt.Errorf("accept %q: %w", body, err)
		}
		if body == lastMessage {
			return r.Close(ctx)
		}
	}
}

func (tr *amqpTraffic) stop(t *testing.T) {
	t.Helper()
	close(tr.stopping)
	for range 2 {
		require.NoError(t, <-tr.done)
	}
}

// AMQP clients of two pairs continue while their queues move to other pairs and back.
//
// The test uses real sockets, because the directory requires a real etcd.
func TestAMQPFollowsMoves(t *testing.T) {
	f := startFleet(t)
	c := f.start("c")
	for _, name := range []string{"a.1", "a.2"} {
		require.NoError(t, f.create(name, admin.CreateQueueOptions{}))
	}
	one, two := startAMQPTraffic(t, f.a, "a.1"), startAMQPTraffic(t, f.b, "a.2")
	for _, next := range []*testNode{f.b, c, f.a} {
		f.moveTo(next, "a.1", "a.2")
	}
	one.stop(t)
	two.stop(t)
	for _, name := range []string{"a.1", "a.2"} {
		f.a.eventually(name, isEmpty)
	}
}

// moveTo moves queues to a pair.
func (f *testFleet) moveTo(to *testNode, queues ...string) {
	f.t.Helper()
	mover := pb.NewFleetServiceClient(to.conn)
	require.Eventually(f.t, func() bool {
		_, err := mover.MoveQueues(f.t.Context(), &pb.MoveQueuesRequest{Queues: queues})
		return err == nil
	}, testTimeout, 5*time.Millisecond, "the move must begin")
	var list *pb.ListMovesResponse
	defer func() {
		if f.t.Failed() {
			f.t.Log(list)
		}
	}()
	require.Eventually(f.t, func() bool {
		var err error
		list, err = mover.ListMoves(f.t.Context(), &pb.ListMovesRequest{})
		return err == nil && list.GetCurrent() && !slices.ContainsFunc(list.GetMoves(), func(m *pb.FleetMove) bool {
			return m.GetPhase() < pb.MovePhase_MOVE_PHASE_DONE
		})
	}, testTimeout, 5*time.Millisecond, "the move must end")
	for _, name := range queues {
		require.NoError(f.t, get(to, name))
	}
}

// AMQP clients of another pair continue while the owner of their queue restarts.
//
// The test uses real sockets, because the directory requires a real etcd.
func TestAMQPFollowsRestart(t *testing.T) {
	f := startMoveFleet(t)
	require.NoError(t, f.create("b.q", admin.CreateQueueOptions{}))
	traffic := startAMQPTraffic(t, f.a, "b.q")
	published := func(n uint64) {
		f.b.eventually("b.q", func(q *pb.Queue) bool { return q.GetNextSequence() > n })
	}
	published(100)
	f.b = f.restart(f.b)
	published(200)
	traffic.stop(t)
	f.b.eventually("b.q", isEmpty)
}

// Forwarded calls have the rights of the AMQP user at the owner, and its audit log contains the principal and address
// of the user. A node that is not authenticated as a node of the fleet cannot forward calls of clients with a
// certificate.
//
// The test uses real sockets, because the directory requires a real etcd.
func TestAMQPForwardsRights(t *testing.T) {
	for name, tokens := range map[string]bool{"with the secret of the fleet": true, "without": false} {
		t.Run(name, func(t *testing.T) { testAMQPForwardsRights(t, tokens) })
	}
}

func testAMQPForwardsRights(t *testing.T, tokens bool) {
	etcd := startRealEtcd(t)
	ca := certs.New(t, "ca")
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("a-shared-secret-of-all-pairs"), 0o600))
	run := func(pair string) *testNode {
		c := secured(t, inFleet(settings(t, pair), pair, etcd.Endpoints()), ca)
		if tokens {
			c.Fleet.TokenFile = secret
		}
		c.Access.Mode, c.Access.Operators = "deny", []string{pair} // the calls of the test have the node's certificate
		withAMQP(&c)
		n := start(t, c)
		n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
		n.waitLive(pair)
		return n
	}
	a, b := run("a"), run("b")
	require.Eventually(t, func() bool {
		_, err := pb.NewFleetServiceClient(a.conn).PutPlacementRule(t.Context(), &pb.PutPlacementRuleRequest{
			Rule: &pb.PlacementRule{Pattern: "*", Pair: "b"},
		})
		return err == nil
	}, testTimeout, 5*time.Millisecond)
	for _, name := range []string{"q", "secret"} {
		b.createQueue(name)
		require.Eventually(t, func() bool { return notOwner(get(a, name)) != nil }, testTimeout, 5*time.Millisecond)
	}
	const alice = "spiffe://test/alice"
	grant := func(n *testNode, queue string) {
		t.Helper()
		_, err := n.access().Grant(t.Context(), &pb.GrantRequest{Rule: &pb.AccessRule{
			Principal: alice, Queue: queue,
			Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_PUBLISH, pb.AccessRight_ACCESS_RIGHT_CONSUME},
		}})
		require.NoError(t, err)
	}
	grant(a, "*")
	grant(b, "q")
	cert, _, _ := ca.IssueURI(t, "alice", alice)
	raw, err := (&tls.Dialer{Config: &tls.Config{
		Certificates: []tls.Certificate{cert}, RootCAs: ca.Pool(), ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13,
	}}).DialContext(t.Context(), "tcp", a.ready.AMQP)
	require.NoError(t, err)
	conn, err := amqp.NewConn(t.Context(), raw, &amqp.ConnOptions{SASLType: amqp.SASLTypeExternal("")})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s, err := conn.NewSession(t.Context(), nil)
	require.NoError(t, err)
	sender, err := s.NewSender(t.Context(), "q", nil)
	if !tokens {
		var denied *amqp.Error
		require.ErrorAs(t, err, &denied)
		require.Equal(t, amqp.ErrCondUnauthorizedAccess, denied.Condition)
		return
	}
	require.NoError(t, err)
	require.NoError(t, sender.Send(t.Context(), amqp.NewMessage([]byte("x")), nil))
	_, err = s.NewReceiver(t.Context(), "q", nil)
	require.NoError(t, err)
	_, err = s.NewReceiver(t.Context(), "secret", nil)
	require.Error(t, err, "alice has this right only at pair a")
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(b.auditRecords(), func(r *pb.AuditRecord) bool {
			return r.GetPrincipal() == alice && r.GetAddress() == raw.LocalAddr().String() &&
				r.GetAuthentication() == "certificate via a/a" && strings.HasSuffix(r.GetMethod(), "/Consume")
		})
	}, testTimeout, 5*time.Millisecond, "the audit log of the owner names the client")
}

// auditRecords returns the records of the audit log.
func (n *testNode) auditRecords() (all []*pb.AuditRecord) {
	n.t.Helper()
	stream, err := pb.NewAuditServiceClient(n.conn).TailAudit(n.t.Context(), &pb.TailAuditRequest{Last: 100})
	require.NoError(n.t, err)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(n.t, err)
		all = append(all, resp.GetRecords()...)
	}
}
