// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
)

// eventually polls a queue until the function is returns true for it.
func (n *testNode) eventually(queue string, is func(*pb.Queue) bool) {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		resp, err := n.queues.GetQueue(n.t.Context(), &pb.GetQueueRequest{Name: queue})
		return err == nil && is(resp.GetQueue())
	}, testTimeout, 5*time.Millisecond)
}

func isEmpty(q *pb.Queue) bool { return q.GetMessages() == 0 }

// Each AMQP outcome has its effect on the message. Messages published over one protocol can be consumed over the
// other.
func TestAMQPOutcomes(t *testing.T) { simulated(t, testAMQPOutcomes) }

func testAMQPOutcomes(t *testing.T) {
	n := startAlone(t, withAMQP)
	p := openAMQP(t, n)
	require.Nil(t, p.sender(0, targetNode("orders"))) // the queue is created on demand
	p.transfer(0, "one", nil)
	require.Equal(t, wire.Accepted{}, p.outcome())
	require.Nil(t, p.receiver(1, "r", &wire.Source{Address: "orders"}))
	p.credit(1, 10)
	m := p.receive()
	require.Equal(t, gotMessage{id: m.id, body: "one"}, m)

	p.dispose(m.id, wire.Released{})
	m = p.receive()
	require.Zero(t, m.count, "released messages are not counted as delivered")
	p.dispose(m.id, &wire.Modified{})
	m = p.receive()
	require.Zero(t, m.count, "the delivery has not failed")
	p.dispose(m.id, &wire.Modified{DeliveryFailed: true})
	m = p.receive()
	require.EqualValues(t, 1, m.count)
	p.dispose(m.id, wire.Accepted{})
	n.eventually("orders", isEmpty)

	n.publish("orders", "by gRPC", "bad", "worse")
	for _, state := range []wire.DeliveryState{
		wire.Accepted{}, &wire.Rejected{}, &wire.Modified{DeliveryFailed: true, UndeliverableHere: true},
	} {
		p.dispose(p.receive().id, state)
	}
	n.eventually("orders", func(q *pb.Queue) bool { return isEmpty(q) && q.GetDropped() == 2 })

	// If the client leaves the settlement to the node, the node settles when the outcome is durable.
	n.publish("orders", "two")
	m = p.receive()
	p.send(&wire.Disposition{Role: wire.RoleReceiver, First: m.id, Last: m.id, State: wire.Accepted{}})
	d := expect[*wire.Disposition](p)
	require.True(t, d.Settled)
	require.Equal(t, wire.RoleSender, d.Role)
	require.Equal(t, m.id, d.First)
	n.eventually("orders", isEmpty)

	list, err := pb.NewConnectionServiceClient(n.conn).ListConnections(t.Context(), &pb.ListConnectionsRequest{})
	require.NoError(t, err)
	var protocols []string
	for _, c := range list.GetConnections() {
		protocols = append(protocols, c.GetProtocol())
		if c.GetProtocol() == "AMQP 1.0" {
			require.Equal(t, "QpidJMS client", c.GetClient())
			require.Equal(t, p.conn.LocalAddr().String(), c.GetAddress())
			require.Len(t, c.GetStreams(), 2)
			_, err := pb.NewConnectionServiceClient(n.conn).CloseConnection(t.Context(),
				&pb.CloseConnectionRequest{Id: c.GetId()})
			require.NoError(t, err)
		}
	}
	require.ElementsMatch(t, []string{"gRPC", "AMQP 1.0"}, protocols)
	require.Error(t, p.in.Next(&wire.Frame{}), "an operator has closed the connection")
}

// Pipelined messages are stored exactly once, in order.
func TestAMQPPipelined(t *testing.T) { simulated(t, testAMQPPipelined) }

func testAMQPPipelined(t *testing.T) {
	n := startAlone(t, withAMQP)
	p := openAMQP(t, n)
	require.Nil(t, p.sender(0, targetNode("")))
	expect[*wire.Flow](p)
	const count = 1500
	to := wiretest.AppendTo(nil, "made") // the queue does not exist and is created on demand
	for range count {
		p.raw(0, wiretest.AppendData(to[:len(to):len(to)], []byte(string(rune('0'+p.next%10)))), nil)
	}
	for settled := uint32(0); settled < count; {
		d := expect[*wire.Disposition](p)
		require.Equal(t, wire.Accepted{}, d.State)
		settled += d.Last - d.First + 1
	}
	require.Nil(t, p.receiver(1, "b", &wire.Source{Address: "made", DistributionMode: "copy"}))
	p.credit(1, count)
	for i := range count {
		require.Equal(t, string(rune('0'+i%10)), p.receive().body, "message %d", i)
	}
	n.eventually("made", func(q *pb.Queue) bool { return q.GetMessages() == count })
}

// Invalid requests are rejected with a condition and a description.
func TestAMQPRefusals(t *testing.T) { simulated(t, testAMQPRefusals) }

func testAMQPRefusals(t *testing.T) {
	n := startAlone(t, func(c *config.Config) { withAMQP(c); c.AMQP.AutoCreate = false })
	n.createQueue("q")
	selector := func(text string) wire.Map {
		return wire.Map{{Key: wire.Symbol("s"), Value: wire.Described{
			Descriptor: wire.Symbol("apache.org:selector-filter:string"), Value: text,
		}}}
	}
	noLocal := wire.Map{{Key: wire.Symbol("n"), Value: wire.Described{
		Descriptor: wire.Symbol("apache.org:no-local-filter:list"), Value: wire.List{},
	}}}
	for name, c := range map[string]struct {
		source    *wire.Source
		condition wire.Symbol
		text      string
	}{
		"unknown queue":    {&wire.Source{Address: "none"}, "amqp:not-found", `"none"`},
		"invalid name":     {&wire.Source{Address: "a b"}, "amqp:invalid-field", "a b"},
		"numeric address":  {&wire.Source{Address: int64(3)}, "amqp:invalid-field", "address must be a string"},
		"no address":       {&wire.Source{}, "amqp:invalid-field", "source has no address"},
		"invalid selector": {&wire.Source{Address: "q", Filter: selector("a = ")}, "amqp:invalid-field", "selector"},
		"no-local queue":   {&wire.Source{Address: "q", Filter: noLocal}, "amqp:not-implemented", "no-local"},
		"browse unknown":   {&wire.Source{Address: "none", DistributionMode: "copy"}, "amqp:not-found", `"none"`},
		"unknown topic":    {&wire.Source{Address: "none", Capabilities: []wire.Symbol{"topic"}}, "amqp:not-found", `"none"`},
		"no subscription":  {nil, "amqp:not-found", "no durable subscription"},
	} {
		section(t, name, func(t *testing.T) {
			p := openAMQP(t, n)
			var err *wire.Error
			if c.source != nil && c.source.DistributionMode == "copy" {
				err = p.delayedRefusal(c.source)
			} else {
				err = p.receiver(0, "r", c.source)
			}
			require.NotNil(t, err)
			require.Equal(t, c.condition, err.Condition, "%s", err.Description)
			require.Contains(t, err.Description, c.text)
		})
	}
	p := openAMQP(t, n)
	require.NotNil(t, p.sender(0, nil))
	require.Nil(t, p.sender(1, targetNode("")))
	for payload, c := range map[string][2]string{
		string(wiretest.AppendData(nil, []byte("x"))): {"amqp:invalid-field", "no `to`"},
		"junk": {"amqp:decode-error", ""},
		string(wiretest.AppendData(wiretest.AppendTo(nil, "none"), nil)): {"amqp:not-found", "none"},
	} {
		p.raw(1, []byte(payload), nil)
		rejected, ok := p.outcome().(*wire.Rejected)
		require.True(t, ok)
		require.Equal(t, c[0], string(rejected.Error.Condition), "%s", rejected.Error.Description)
		require.Contains(t, rejected.Error.Description, c[1])
	}
}

// delayedRefusal attaches a browser that is first accepted and then detached. It returns the error of the detach.
func (p *amqpPeer) delayedRefusal(source *wire.Source) *wire.Error {
	p.t.Helper()
	if err := p.receiver(0, "r", source); err != nil {
		return err
	}
	return expect[*wire.Detach](p).Error
}

// A client has exactly the rights of its token.
func TestAMQPSignIn(t *testing.T) { simulated(t, testAMQPSignIn) }

func testAMQPSignIn(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	access := n.access()
	const token = "lsk_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
	sum := sha256.Sum256([]byte(token))
	_, err := access.CreateToken(t.Context(), &pb.CreateTokenRequest{Token: &pb.AccessToken{
		Name: "alice", Principal: "alice", Sha256: sum[:],
	}})
	require.NoError(t, err)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	for _, rule := range []*pb.AccessRule{
		{Principal: "alice", Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_OPERATE}},
		{Principal: "alice", Queue: "q", Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_PUBLISH}},
	} {
		_, err = access.Grant(ctx, &pb.GrantRequest{Rule: rule, LockOut: true})
		require.NoError(t, err)
	}
	require.Equal(t, wire.SASLAuth, dialAMQP(t, n.ready.AMQP).sasl("PLAIN", []byte("\x00alice\x00wrong")))
	require.Equal(t, wire.SASLAuth, dialAMQP(t, n.ready.AMQP).sasl("PLAIN", []byte("alice")))
	require.Equal(t, wire.SASLAuth, dialAMQP(t, n.ready.AMQP).sasl("DIGEST-MD5", []byte("x")))
	require.Equal(t, wire.SASLAuth, dialAMQP(t, n.ready.AMQP).sasl("EXTERNAL", nil), "without a client certificate")

	unknown := dialAMQP(t, n.ready.AMQP)
	require.Equal(t, wire.SASLOK, unknown.sasl("ANONYMOUS", nil))
	unknown.begin("c")
	refused := expect[*wire.Close](unknown).Error
	require.Equal(t, wire.Symbol("amqp:unauthorized-access"), refused.Condition)
	require.Contains(t, refused.Description, "anonymous")

	for mechanism, response := range map[wire.Symbol]string{
		"PLAIN": "\x00any\x00" + token, "OAUTHBEARER": "n,,\x01auth=Bearer " + token + "\x01\x01",
		"XOAUTH2": "user=x\x01auth=Bearer " + token + "\x01\x01",
	} {
		p := dialAMQP(t, n.ready.AMQP)
		require.Equal(t, wire.SASLOK, p.sasl(mechanism, []byte(response)))
		p.begin("c")
		require.Nil(t, p.sender(0, targetNode("q")))
		p.transfer(0, "x", nil)
		require.Equal(t, wire.Accepted{}, p.outcome())
		err := p.receiver(1, "r", &wire.Source{Address: "q"})
		require.NotNil(t, err)
		require.Equal(t, wire.Symbol("amqp:unauthorized-access"), err.Condition)
		require.Contains(t, err.Description, "alice")
		err = p.sender(2, targetNode("other"))
		if err == nil {
			p.transfer(2, "x", nil)
			err = p.outcome().(*wire.Rejected).Error
		}
		require.Contains(t, []wire.Symbol{"amqp:unauthorized-access", "amqp:not-found"}, err.Condition)
	}
}

// All operations of a transaction take effect, or none.
func TestAMQPTransactions(t *testing.T) { simulated(t, testAMQPTransactions) }

func testAMQPTransactions(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.createQueue("in")
	n.createQueue("out")
	n.publish("in", "work")
	p := openAMQP(t, n)
	require.Nil(t, p.sender(0, &wire.Coordinator{}))
	require.Nil(t, p.sender(1, targetNode("out")))
	require.Nil(t, p.receiver(2, "r", &wire.Source{Address: "in"}))
	p.credit(2, 10)
	declare := func() []byte {
		p.raw(0, wiretest.Declare(), nil)
		declared, ok := p.outcome().(*wire.Declared)
		require.True(t, ok)
		return declared.TxnID
	}
	discharge := func(id []byte, fail bool) wire.DeliveryState {
		p.raw(0, wiretest.Discharge(id, fail), nil)
		return p.outcome()
	}
	work := func(id []byte) gotMessage {
		m := p.receive()
		p.dispose(m.id, &wire.TransactionalState{TxnID: id, Outcome: wire.Accepted{}})
		p.transfer(1, "done", &wire.TransactionalState{TxnID: id})
		state, ok := p.outcome().(*wire.TransactionalState)
		require.True(t, ok)
		require.Equal(t, id, state.TxnID)
		require.Equal(t, wire.Accepted{}, state.Outcome)
		return m
	}
	id := declare()
	require.Zero(t, work(id).count)
	n.eventually("out", isEmpty)
	require.Equal(t, wire.Accepted{}, discharge(id, true))
	id = declare()
	require.EqualValues(t, 1, work(id).count, "it was rolled back")
	n.eventually("out", isEmpty)
	require.Equal(t, wire.Accepted{}, discharge(id, false))
	n.eventually("in", isEmpty)
	n.eventually("out", func(q *pb.Queue) bool { return q.GetMessages() == 1 })

	// A transaction that acknowledges a message processed by another consumer is rejected.
	n.publish("in", "again")
	id = declare()
	work(id)
	_, err := n.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "in"})
	require.NoError(t, err)
	rejected, ok := discharge(id, false).(*wire.Rejected)
	require.True(t, ok)
	require.Equal(t, wire.Symbol("amqp:transaction:rollback"), rejected.Error.Condition)
	n.eventually("out", func(q *pb.Queue) bool { return q.GetMessages() == 1 })
	rejected, ok = discharge([]byte("12345678"), false).(*wire.Rejected)
	require.True(t, ok)
	require.Equal(t, wire.Symbol("amqp:transaction:unknown-id"), rejected.Error.Condition)
}

// Durable subscriptions outlive their links. Volatile subscriptions are removed with their links.
func TestAMQPSubscriptions(t *testing.T) { simulated(t, testAMQPSubscriptions) }

func testAMQPSubscriptions(t *testing.T) {
	n := startAlone(t, withAMQP)
	topic := func(durable bool, capabilities ...wire.Symbol) *wire.Source {
		s := &wire.Source{Address: "news", Capabilities: append([]wire.Symbol{"topic"}, capabilities...)}
		if durable {
			s.Durable, s.ExpiryPolicy = wire.DurabilityUnsettled, wire.ExpiryNever
		}
		return s
	}
	p := openAMQP(t, n)
	require.Nil(t, p.receiver(0, "durable", topic(true)))
	require.Nil(t, p.receiver(1, "passing", topic(false)))
	require.Nil(t, p.receiver(2, "team|1", topic(true, "shared", "global")))
	require.Nil(t, p.receiver(3, "team|2", topic(true, "shared", "global")))
	names := func(q *pb.Queue) (list []string) {
		for _, s := range q.GetSubscriptions() {
			name, _, _ := strings.Cut(s.GetName(), "-")
			list = append(list, name)
		}
		return list
	}
	n.eventually("news", func(q *pb.Queue) bool { return len(q.GetSubscriptions()) == 3 })
	// This volatile subscription simulates one that remained after a failure of its node.
	_, err := n.queues.CreateSubscription(t.Context(), &pb.CreateSubscriptionRequest{
		Queue: "news", Name: "amqp-volatile.left-behind",
	})
	require.NoError(t, err)
	n.publish("news", "x")
	p.credit(0, 1)
	m := p.receive()
	require.Equal(t, "x", m.body)
	p.dispose(m.id, wire.Accepted{})
	p.credit(1, 1)
	p.dispose(p.receive().id, wire.Accepted{})
	for _, handle := range []uint32{0, 1} {
		p.send(&wire.Detach{Handle: handle, Closed: handle == 1})
		expect[*wire.Detach](p)
	}
	require.Nil(t, p.receiver(1, "passing", topic(false)))
	n.eventually("news", func(q *pb.Queue) bool {
		got := names(q)
		return len(got) == 3 && got[0] == "amqp" && got[1] == "client.durable" && got[2] == "team"
	})
	require.Nil(t, p.receiver(0, "durable", nil), "a client can attach to its subscription without a source")
	p.send(&wire.Detach{Handle: 0, Closed: true})
	expect[*wire.Detach](p)
	n.eventually("news", func(q *pb.Queue) bool { return len(q.GetSubscriptions()) == 2 })
	p.send(&wire.Close{})
	expect[*wire.Close](p)
	n.eventually("news", func(q *pb.Queue) bool {
		return len(q.GetSubscriptions()) == 1 && q.GetSubscriptions()[0].GetName() == "team"
	})
}

// A dynamic queue is deleted with its link or its connection, and only once.
func TestAMQPDynamicQueues(t *testing.T) { simulated(t, testAMQPDynamicQueues) }

func testAMQPDynamicQueues(t *testing.T) {
	n := startAlone(t, withAMQP)
	p := openAMQP(t, n)
	source := &wire.Source{Dynamic: true, ExpiryPolicy: wire.ExpiryLinkDetach}
	p.send(&wire.Attach{Name: "r", Role: wire.RoleReceiver, Source: source, Target: targetNode("")})
	from := expect[*wire.Attach](p).Source
	require.NotNil(t, from)
	ofReceiver, _ := from.Address.(string)
	target := targetNode("")
	target.Address, target.Dynamic = nil, true
	p.send(&wire.Attach{
		Name: "d", Handle: 1, Role: wire.RoleSender, Source: &wire.Source{ExpiryPolicy: wire.ExpirySessionEnd},
		Target: target, InitialDeliveryCount: wire.Some(uint32(0)),
	})
	made, ok := expect[*wire.Attach](p).Target.(*wire.Node)
	require.True(t, ok)
	ofSender, _ := made.Address.(string)
	for _, name := range []string{ofSender, ofReceiver} {
		require.True(t, strings.HasPrefix(name, "amqp-temporary."), name)
		n.eventually(name, isEmpty)
	}
	expectDeleted := func(name string) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: name})
			return err != nil
		}, testTimeout, 5*time.Millisecond)
	}
	p.send(&wire.Detach{Handle: 0, Closed: true})
	expect[*wire.Detach](p)
	expectDeleted(ofReceiver)
	n.eventually(ofSender, isEmpty)
	require.NoError(t, p.conn.Close())
	expectDeleted(ofSender)
	audit := pb.NewAuditServiceClient(n.conn)
	var removed []string
	require.Eventually(t, func() bool { // an audit record is written after the end of its call
		removed = nil
		tail, err := audit.TailAudit(t.Context(), &pb.TailAuditRequest{Last: 100, Method: "DeleteQueue"})
		require.NoError(t, err)
		records, err := tail.Recv()
		require.NoError(t, err)
		for _, r := range records.GetRecords() {
			removed = append(removed, r.GetObject())
		}
		return len(removed) > 1
	}, testTimeout, 5*time.Millisecond)
	require.Equal(t, []string{ofReceiver, ofSender}, removed)
}

// During a drain, the client receives the available messages and then a flow without credit.
func TestAMQPDrain(t *testing.T) { simulated(t, testAMQPDrain) }

func testAMQPDrain(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	n.publish("q", "x")
	p := openAMQP(t, n)
	require.Nil(t, p.receiver(0, "r", &wire.Source{Address: "q"}))
	p.send(&wire.Flow{
		NextIncomingID: wire.Some(uint32(0)), IncomingWindow: 1 << 20, OutgoingWindow: 1 << 20,
		Handle: wire.Some(uint32(0)), DeliveryCount: wire.Some(uint32(0)), LinkCredit: wire.Some(uint32(5)), Drain: true,
	})
	require.Equal(t, "x", p.receive().body)
	f := expect[*wire.Flow](p)
	require.Equal(t, uint32(5), f.DeliveryCount.Value)
	require.Zero(t, f.LinkCredit.Value)
}

// The standby redirects clients to the active. A node that switches over or stops also redirects its clients.
func TestAMQPRedirects(t *testing.T) { simulated(t, testAMQPRedirects) }

func testAMQPRedirects(t *testing.T) {
	etcd := startEtcd(t)
	nodes := make([]*testNode, 2)
	for i, name := range []string{"a", "b"} {
		c := settingsOfPair(t, name, etcd)
		withAMQP(&c)
		nodes[i] = start(t, c)
		nodes[i].waitFor([]pb.Role{pb.Role_ROLE_ACTIVE_ALONE, pb.Role_ROLE_STANDBY}[i])
	}
	nodes[0].waitFor(pb.Role_ROLE_ACTIVE)
	expectRedirect := func(p *amqpPeer, to string) {
		t.Helper()
		e := expect[*wire.Close](p).Error
		require.NotNil(t, e)
		require.Equal(t, wire.Symbol("amqp:connection:redirect"), e.Condition, "%s", e.Description)
		host, _ := e.Info.Get(wire.Symbol("network-host"))
		port, _ := e.Info.Get(wire.Symbol("port"))
		require.Equal(t, "127.0.0.1", host)
		require.True(t, strings.HasSuffix(to, ":"+fmt.Sprint(port)), "%v is not of %s", port, to)
	}
	p := dialAMQP(t, nodes[1].ready.AMQP)
	require.Equal(t, wire.SASLOK, p.sasl("ANONYMOUS", nil))
	open := p.begin("c")
	_, failed := open.Properties.Get(wire.Symbol("amqp:connection-establishment-failed"))
	require.True(t, failed)
	expectRedirect(p, nodes[0].ready.AMQP)

	// Qpid JMS would replace its configured addresses with the list of an open frame.
	p = dialAMQP(t, nodes[0].ready.AMQP)
	require.Equal(t, wire.SASLOK, p.sasl("ANONYMOUS", nil))
	_, replaces := p.begin("lists").Properties.Get(wire.Symbol("failover-server-list"))
	require.False(t, replaces)
	require.NoError(t, p.conn.Close())

	// For a client that does not support redirects, the connection is closed without an open frame, so that the
	// client tries its next address.
	other := dialAMQP(t, nodes[1].ready.AMQP)
	other.silent = true
	require.Equal(t, wire.SASLOK, other.sasl("ANONYMOUS", nil))
	other.sendOpen("c")
	other.send(&wire.Begin{IncomingWindow: 1 << 20, OutgoingWindow: 1 << 20, HandleMax: 100})
	require.Zero(t, expectEOF[*wire.Open](other))

	other = dialAMQP(t, nodes[0].ready.AMQP)
	other.silent = true
	other.open("other")
	p = openAMQP(t, nodes[0])
	require.Nil(t, p.sender(0, targetNode("q")))
	p.transfer(0, "x", nil)
	require.Equal(t, wire.Accepted{}, p.outcome())
	_, err := nodes[0].admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
	require.NoError(t, err)
	expectRedirect(p, nodes[1].ready.AMQP)
	expectEOF[*wire.Open](other)

	nodes[1].waitFor(pb.Role_ROLE_ACTIVE)
	p = openAMQP(t, nodes[1])
	require.Nil(t, p.receiver(0, "r", &wire.Source{Address: "q"}))
	p.credit(0, 1)
	require.Equal(t, "x", p.receive().body)
	go nodes[1].stop()
	e := expect[*wire.Close](p).Error
	require.NotNil(t, e)
	require.Contains(t, []wire.Symbol{"amqp:connection:redirect", "amqp:connection:forced"}, e.Condition)
}
