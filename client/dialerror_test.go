// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

// A client with only the standby's address discovers the active node from the standby's status.
func TestOnlyStandbyAddress(t *testing.T) { synctest.Test(t, testOnlyStandbyAddress) }

func testOnlyStandbyAddress(t *testing.T) {
	p := newFakePair(t)
	p.named = true
	c := p.client(client.Options{Addresses: p.addrs[1:]})
	r, err := c.Publish(soon(t), "q", message("x"))
	require.NoError(t, err)
	require.Equal(t, p.addrs[0], r.Address)
	require.Equal(t, []string{p.addrs[1], p.addrs[0]}, admin.New(c).Addresses())

	fixed := p.client(client.Options{Addresses: p.addrs[1:], FixedAddresses: true})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = fixed.Publish(ctx, "q", message("x"))
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.Equal(t, p.addrs[1:], admin.New(fixed).Addresses())
}

// Permanent connection failures end a call immediately, with an error that contains the address once.
func TestFailFast(t *testing.T) {
	ca := certs.New(t, "ours")
	nodeTLS, _, _ := ca.Issue(t, "node")
	listen := func(o ...grpc.ServerOption) string {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s := grpc.NewServer(o...)
		pb.RegisterAdminServiceServer(s, pb.UnimplementedAdminServiceServer{})
		go func() { _ = s.Serve(ln) }()
		t.Cleanup(s.Stop)
		return ln.Addr().String()
	}
	plain := listen()
	secure := listen(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{nodeTLS}, ClientAuth: tls.RequireAnyClientCert,
	})))
	other, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{nodeTLS},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	go func() {
		for {
			conn, err := other.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake() // the client ends it, because the server has no ALPN
			_ = conn.Close()
		}
	}()
	trusting := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ca.Pool()}
	for name, c := range map[string]struct {
		address string
		tls     *tls.Config
		want    string
	}{
		"nothing listens":            {"127.0.0.1:1", nil, "connection refused"},
		"no such host":               {"no-such-host.invalid:7420", nil, "no such host"},
		"plaintext client, TLS node": {secure, nil, "it requires TLS"},
		"TLS client, plaintext node": {plain, trusting, "the node does not use TLS"},
		"AMQP with TLS":              {other.Addr().String(), trusting, "not a client port"},
		"no certificate":             {secure, trusting, "the node requires a client certificate"},
		"unknown CA":                 {secure, &tls.Config{MinVersion: tls.VersionTLS13}, "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			cl, err := client.OpenWith(t.Context(), client.Options{
				Addresses: []string{c.address}, TLS: c.tls,
				FailFast: true,
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, cl.Close()) }()
			_, err = admin.New(cl).GetQueue(soon(t), "q")
			require.ErrorIs(t, err, client.ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.Contains(t, err.Error(), c.address+": ")
			require.Contains(t, err.Error(), c.want)
			require.Equal(t, 1, strings.Count(err.Error(), c.address), err)
		})
	}
}

// With FailFast, the client waits for a process that accepts connections and does not respond, such as a stopped one.
// The error does not mention TLS.
func TestFailFastWaitsForUnresponsiveNode(t *testing.T) {
	synctest.Test(t, testFailFastWaitsForUnresponsiveNode)
}

func testFailFastWaitsForUnresponsiveNode(t *testing.T) {
	network := simnet.New(simnet.Options{})
	ln, err := network.NewProcess("silent").Listen(t.Context(), "silent:1")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	go func() {
		for {
			if _, err := ln.Accept(); err != nil {
				return
			}
		}
	}()
	c, err := client.OpenWith(t.Context(), client.Options{
		Addresses: []string{"silent:1"}, FailFast: true, ProbeInterval: 50 * time.Millisecond,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(network.NewProcess("client").Dial)},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	_, err = admin.New(c).GetQueue(ctx, "q")
	require.ErrorIs(t, err, context.DeadlineExceeded, "the node may still respond")
	require.NotContains(t, err.Error(), "TLS")
	require.Contains(t, err.Error(), "not respond")
}

// counting records the times of the connections to a port.
type counting struct {
	net.Listener

	mu    sync.Mutex
	times []time.Time
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.times = append(c.times, time.Now())
	}
	return conn, err
}

func (c *counting) dials() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.times)
}

// A client backs off as long as its connections are closed without a response. Otherwise it would exhaust the node's
// rate limit for all clients at its address.
func TestDialBackoff(t *testing.T) {
	for name, trusted := range map[string]func(ca *certs.CA) *tls.Config{
		"plaintext client": func(*certs.CA) *tls.Config { return nil },
		"no certificate": func(ca *certs.CA) *tls.Config {
			return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ca.Pool()}
		},
		"unknown CA": func(*certs.CA) *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13} },
	} {
		simulated(t, name, func(t *testing.T) {
			ca := certs.New(t, "ours")
			nodeTLS, _, _ := ca.Issue(t, "node")
			strict := &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{nodeTLS}, ClientAuth: tls.RequireAnyClientCert,
			}
			network := simnet.New(simnet.Options{})
			ln, err := network.NewProcess("node").Listen(t.Context(), "node:1")
			require.NoError(t, err)
			port := &counting{Listener: ln}
			s := grpc.NewServer(grpc.Creds(credentials.NewTLS(strict)))
			go func() { _ = s.Serve(port) }()
			t.Cleanup(s.Stop)
			c, err := client.OpenWith(t.Context(), client.Options{
				Addresses: []string{"node:1"}, TLS: trusted(ca),
				DialOptions: []grpc.DialOption{grpc.WithContextDialer(network.NewProcess("client").Dial)},
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close()) }()
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			_, err = admin.New(c).GetQueue(ctx, "q")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			first := len(port.dials())
			require.InDelta(t, 14, first, 2, "dials")
			pause(time.Minute)
			dials := append(port.dials(), time.Now())
			for i := first; i < len(dials); i++ { // one per ProbeInterval of 1 s, with a jitter of 20%
				require.LessOrEqual(t, dials[i].Sub(dials[i-1]), 1200*time.Millisecond)
				if i < len(dials)-1 {
					require.GreaterOrEqual(t, dials[i].Sub(dials[i-1]), 800*time.Millisecond)
				}
			}
		})
	}
}

// FailFast no longer applies after the first response: the client waits for a node that restarts.
func TestFailFastEndsWithFirstResponse(t *testing.T) {
	synctest.Test(t, testFailFastEndsWithFirstResponse)
}

func testFailFastEndsWithFirstResponse(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{Addresses: p.addrs[:1], FailFast: true})
	_, err := c.WaitActive(soon(t))
	require.NoError(t, err)
	p.nodes[0].server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = c.Publish(ctx, "q", message("x"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
