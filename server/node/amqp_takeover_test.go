// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// Every step of a client that connects during a takeover or a switchover is answered, or its connection ends. No
// client waits for a node that is not active. Accepted messages are stored.
func TestAMQPTakeover(t *testing.T) {
	for name, v := range map[string]takeover{
		"kill":                          {kill: true, product: "QpidJMS"},
		"kill, TLS":                     {kill: true, product: "QpidJMS", tls: true},
		"kill, without redirects":       {kill: true},
		"switchover":                    {product: "QpidJMS"},
		"switchover, TLS":               {product: "QpidJMS", tls: true},
		"switchover, without redirects": {},
	} {
		t.Run(name, func(t *testing.T) { simulated(t, v.test) })
	}
}

type takeover struct {
	kill    bool   // of the active; otherwise a switchover
	product string // of the clients: Qpid JMS follows redirects
	tls     bool
}

const aliceToken = "lsk_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"

func withAlice(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+aliceToken)
}

// start starts a pair with AMQP, on which only the principal alice has rights. kill kills the active. secure is the
// configuration of clients, or nil without TLS.
func (v takeover) start(t *testing.T) (active, standby *testNode, kill func(), secure *tls.Config) {
	t.Helper()
	w := simpair.Of(t)
	var ca *certs.CA
	if v.tls {
		ca = certs.New(t, "authority")
		secure = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ca.Pool(), ServerName: "localhost"}
	}
	nodes := make([]*testNode, 2)
	for i, name := range []string{"a", "b"} {
		c := w.PairConfig(name)
		c.Memory.Budget = 64 << 20 // limits the connections
		c.AMQP.Listen = net.JoinHostPort(w.Host(name), "0")
		if v.tls {
			_, c.TLS.Cert, c.TLS.Key = ca.IssueFrom(t, name, &x509.Certificate{
				DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.ParseIP(w.Host(name))},
			})
			c.TLS.CA, c.TLS.ClientAuth = ca.File, config.ClientAuthNone
		}
		launched := w.Start(c, node.Options{})
		if kill == nil {
			kill = launched.Kill
		}
		nodes[i] = &testNode{t: t, config: c, ready: launched.Ready}
		nodes[i].dial()
		t.Cleanup(func() { _ = nodes[i].conn.Close() })
		nodes[i].waitFor([]pb.Role{pb.Role_ROLE_ACTIVE_ALONE, pb.Role_ROLE_STANDBY}[i])
	}
	nodes[0].waitFor(pb.Role_ROLE_ACTIVE)
	nodes[0].createQueue("q")
	access := nodes[0].access()
	sum := sha256.Sum256([]byte(aliceToken))
	_, err := access.CreateToken(t.Context(), &pb.CreateTokenRequest{Token: &pb.AccessToken{
		Name: "alice", Principal: "alice", Sha256: sum[:],
	}})
	require.NoError(t, err)
	for _, rule := range []*pb.AccessRule{
		{Principal: "alice", Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_OPERATE}},
		{Principal: "alice", Queue: "q", Rights: []pb.AccessRight{
			pb.AccessRight_ACCESS_RIGHT_PUBLISH, pb.AccessRight_ACCESS_RIGHT_BROWSE,
		}},
	} {
		_, err = access.Grant(withAlice(t.Context()), &pb.GrantRequest{Rule: rule, LockOut: true})
		require.NoError(t, err)
	}
	return nodes[0], nodes[1], kill, secure
}

func (v takeover) test(t *testing.T) {
	a, b, kill, secure := v.start(t)
	const (
		clients = 180                    // per node
		spacing = 170 * time.Microsecond // simulated: a takeover takes a few milliseconds, a network message takes 1 ms
	)
	var (
		running sync.WaitGroup
		mu      sync.Mutex // guards the fields below
		sent    = map[string]bool{}
		ends    = map[string]int{}
	)
	until := time.Now().Add(clients*spacing + 30*time.Millisecond)
	for i := range clients {
		if i == clients/3 {
			running.Go(func() {
				if v.kill {
					kill()
					return
				}
				_, err := a.admin.Switchover(withAlice(t.Context()), &pb.SwitchoverRequest{})
				assert.NoError(t, err)
			})
		}
		for _, n := range []*testNode{a, b} {
			running.Go(func() {
				c := conversation{product: v.product, prefix: fmt.Sprint(n.config.Node.Name, i, "."), until: until}
				accepted, err := c.run(t, n.ready.AMQP, secure)
				mu.Lock()
				defer mu.Unlock()
				for _, body := range accepted {
					sent[body] = true
				}
				end := ""
				if err != nil {
					end = err.Error()
				}
				ends[n.config.Node.Name+": "+end]++
				assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "client %d of %s", i, n.config.Node.Name)
			})
		}
		time.Sleep(spacing) //nolint:forbidigo // simulated time
	}
	running.Wait()
	t.Log(ends)
	for end := range ends {
		require.NotContains(t, end, "detached", "applications receive the error of a link")
	}
	require.NotZero(t, ends["b: "], "no client was connected at the end")
	found := map[string]bool{}
	stream, err := b.queues.Browse(withAlice(t.Context()), &pb.BrowseRequest{Queue: "q"})
	require.NoError(t, err)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		for _, m := range resp.GetMessages() {
			found[string(m.GetMessage().GetBody())] = true
		}
	}
	for body := range sent {
		require.True(t, found[body], "%s was accepted, and is lost", body)
	}
}

var errClosed = errors.New("the node has closed the connection")

// conversation is a client that publishes one message after the other.
type conversation struct {
	product string
	prefix  string // of the messages
	until   time.Time

	conn net.Conn
	in   *wire.Reader
}

// write writes b, and limits the time until the response. Without the limit, only the idle timeout would end a
// connection that is not served.
func (c *conversation) write(b []byte) error {
	if err := c.conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	_, err := c.conn.Write(b)
	return err
}

func (c *conversation) send(body wire.Performative, payload ...byte) error {
	return c.write(wire.AppendFrame(nil, 0, body, payload))
}

// header sends and receives a protocol header.
func (c *conversation) header(id byte) error {
	if err := c.write(wire.AppendProtocolHeader(nil, id)); err != nil {
		return err
	}
	if _, _, err := c.in.ProtocolHeader(); err != nil {
		return fmt.Errorf("protocol header %d: %w", id, err)
	}
	return nil
}

// run publishes until the given time. It returns the bodies of the accepted messages, and the error that ended the
// connection, or nil.
func (c *conversation) run(t *testing.T, address string, secure *tls.Config) (accepted []string, err error) {
	raw, err := dialer(t)(t.Context(), "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = raw.Close() }()
	c.conn = raw
	if secure != nil {
		c.conn = tls.Client(raw, secure)
	}
	c.in = wire.NewReader(c.conn, 1<<20)
	if err := c.open(); err != nil {
		return nil, err
	}
	for i := uint32(0); time.Now().Before(c.until); i++ {
		body := fmt.Sprint(c.prefix, i)
		if err := c.send(&wire.Transfer{
			DeliveryID: wire.Some(i), DeliveryTag: []byte{byte(i >> 8), byte(i)}, MessageFormat: wire.Some(uint32(0)),
		}, wiretest.AppendData(nil, []byte(body))...); err != nil {
			return accepted, err
		}
		d, err := await[*wire.Disposition](c.in)
		if err != nil {
			return accepted, err
		}
		if d.State != (wire.Accepted{}) {
			return accepted, fmt.Errorf("outcome %v", d.State)
		}
		accepted = append(accepted, body)
	}
	return accepted, nil
}

// open authenticates with a token and attaches a sender, step by step like Qpid JMS.
func (c *conversation) open() error {
	if err := c.header(wire.ProtocolSASL); err != nil {
		return err
	}
	if _, err := await[*wire.SASLMechanisms](c.in); err != nil {
		return err
	}
	if err := c.write(wire.AppendSASLFrame(nil, &wire.SASLInit{
		Mechanism: "PLAIN", InitialResponse: []byte("\x00any\x00" + aliceToken),
	})); err != nil {
		return err
	}
	if outcome, err := await[*wire.SASLOutcome](c.in); err != nil {
		return err
	} else if outcome.Code != wire.SASLOK {
		return fmt.Errorf("SASL outcome %d", outcome.Code)
	}
	if err := c.header(wire.ProtocolAMQP); err != nil {
		return err
	}
	if err := c.send(&wire.Open{
		ContainerID: c.prefix, MaxFrameSize: 1 << 16, ChannelMax: 10,
		Properties: wire.Fields{{Key: wire.Symbol("product"), Value: c.product}},
	}); err != nil {
		return err
	}
	if _, err := await[*wire.Open](c.in); err != nil {
		return err
	}
	if err := c.send(&wire.Begin{IncomingWindow: 1 << 20, OutgoingWindow: 1 << 20, HandleMax: 100}); err != nil {
		return err
	}
	if _, err := await[*wire.Begin](c.in); err != nil {
		return err
	}
	if err := c.send(&wire.Attach{
		Name: "s", Role: wire.RoleSender, SenderSettleMode: wire.SenderMixed,
		Source: &wire.Source{ExpiryPolicy: wire.ExpirySessionEnd}, Target: targetNode("q"),
		InitialDeliveryCount: wire.Some(uint32(0)),
	}); err != nil {
		return err
	}
	_, err := await[*wire.Flow](c.in) // after the attach
	return err
}

// await reads frames until one has a body of type T. An end of the link or the connection is an error.
func await[T wire.Performative](in *wire.Reader) (body T, err error) {
	for {
		var f wire.Frame
		if err := in.Next(&f); err != nil {
			return body, fmt.Errorf("await %T: %w", body, err)
		}
		switch got := f.Body.(type) {
		case *wire.Close:
			return body, fmt.Errorf("%w: %v", errClosed, got.Error.Condition)
		case *wire.Detach:
			return body, fmt.Errorf("detached: %w", got.Error)
		case T:
			return got, nil
		}
	}
}
