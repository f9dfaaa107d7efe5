// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/issuer"
)

// trustIssuer configures a node to trust a token issuer.
func trustIssuer(c config.Config, i *issuer.Issuer) config.Config {
	c.Auth.JWT.Issuer, c.Auth.JWT.Audience, c.Auth.JWT.ClockSkew = i.URL, issuer.Audience, 0
	return c
}

// anotherConn opens another connection to the node.
func (n *testNode) anotherConn() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+n.ready.Address,
		append(clientOptions(n.t), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
}

// getStatusWith calls GetStatus with the given authorization header and transport credentials.
func getStatusWith(t *testing.T, address, authorization string, creds credentials.TransportCredentials) error {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+address,
		append(clientOptions(t), grpc.WithTransportCredentials(creds))...)
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if authorization != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", authorization)
	}
	_, err = pb.NewAdminServiceClient(cc).GetStatus(ctx, &pb.GetStatusRequest{})
	return err
}

// A unary call or a stream is accepted only with valid credentials.
func TestTokenAuthentication(t *testing.T) { simulated(t, testTokenAuthentication) }

func testTokenAuthentication(t *testing.T) {
	i := issuer.On(t, freePort(t))
	n := start(t, trustIssuer(settings(t, "a"), i))
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	old := i.Token("alice", nil)
	i.Rotate()
	unknown, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // keys are not fetched again immediately
		return getStatusWith(t, n.ready.Address, "Bearer "+i.Token("alice", nil), insecure.NewCredentials()) == nil
	}, testTimeout, 100*time.Millisecond)
	now := time.Now()
	for name, tt := range map[string]struct {
		header string
		code   codes.Code
	}{
		"anonymous":      {"", codes.OK},
		"good":           {"Bearer " + i.Token("alice", nil), codes.OK},
		"old key":        {"Bearer " + old, codes.OK},
		"expired":        {"Bearer " + i.Token("alice", issuer.Claims{"exp": now.Unix() - 1}), codes.Unauthenticated},
		"not yet valid":  {"Bearer " + i.Token("alice", issuer.Claims{"nbf": now.Unix() + 60}), codes.Unauthenticated},
		"wrong audience": {"Bearer " + i.Token("alice", issuer.Claims{"aud": "x"}), codes.Unauthenticated},
		"wrong issuer":   {"Bearer " + i.Token("alice", issuer.Claims{"iss": "x"}), codes.Unauthenticated},
		"wrong key": {"Bearer " + i.SignedBy(jose.SigningKey{
			Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: unknown, KeyID: "key-1"},
		}, "alice", nil), codes.Unauthenticated},
		"alg none":     {"Bearer eyJhbGciOiJub25lIn0.e30.", codes.Unauthenticated},
		"unknown":      {"Bearer lsk_unknown", codes.Unauthenticated},
		"garbage":      {"Bearer \x01", codes.Unauthenticated},
		"other scheme": {"Basic eDp5", codes.Unauthenticated},
	} {
		section(t, name, func(t *testing.T) {
			if tt.header == "Bearer \x01" {
				tt.header = "Bearer ?"
			}
			err := getStatusWith(t, n.ready.Address, tt.header, insecure.NewCredentials())
			require.Equal(t, tt.code, status.Code(err), err)

			cc, err := n.anotherConn()
			require.NoError(t, err)
			defer func() { require.NoError(t, cc.Close()) }()
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			if tt.header != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", tt.header)
			}
			stream, err := pb.NewAdminServiceClient(cc).WatchStatus(ctx, &pb.WatchStatusRequest{})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, tt.code, status.Code(err), err)
		})
	}
}

// A token created by the pair identifies its owner on both nodes until it expires or is revoked. An open stream
// then ends within a second.
func TestPairTokens(t *testing.T) { simulated(t, testPairTokens) }

func testPairTokens(t *testing.T) {
	etcd := startEtcd(t)
	a := start(t, settingsOfPair(t, "a", etcd))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	b := start(t, settingsOfPair(t, "b", etcd))
	a.waitFor(pb.Role_ROLE_ACTIVE)
	b.waitFor(pb.Role_ROLE_STANDBY)
	addresses := []string{a.ready.Address, b.ready.Address}
	anonymous, err := client.OpenWith(t.Context(), client.Options{Addresses: addresses, DialOptions: clientOptions(t)})
	require.NoError(t, err)
	defer func() { require.NoError(t, anonymous.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	tokens := make(map[string]string)
	for name, ends := range map[string]time.Time{
		"good": {}, "to be revoked": {}, "ends": time.Now().Add(1500 * time.Millisecond),
	} {
		tokens[name] = admin.NewToken()
		info := &pb.AccessToken{Name: strings.ReplaceAll(name, " ", "-"), Principal: "robot", Groups: []string{"machines"}}
		if !ends.IsZero() {
			info.ExpiresAt = timestamppb.New(ends)
		}
		_, err := admin.New(anonymous).CreateToken(ctx, tokens[name], info)
		require.NoError(t, err)
	}
	robot, err := client.OpenWith(ctx, client.Options{
		Addresses: addresses, Token: tokens["good"], DialOptions: clientOptions(t),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, robot.Close()) }()
	identity, err := admin.New(robot).WhoAmI(ctx)
	require.NoError(t, err)
	require.Equal(t, "robot", identity.GetPrincipal())
	require.Equal(t, []string{"machines"}, identity.GetGroups())
	require.Equal(t, "token", identity.GetMethod())

	cc, err := a.anotherConn()
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	stream, err := pb.NewAdminServiceClient(cc).WatchStatus(metadata.AppendToOutgoingContext(ctx, "authorization",
		"Bearer "+tokens["to be revoked"]), &pb.WatchStatusRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	require.NoError(t, admin.New(anonymous).RevokeToken(ctx, "to-be-revoked", false))
	revoked := time.Now()
	for err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.Unauthenticated, status.Code(err), err)
	require.Contains(t, err.Error(), "revoked")
	require.LessOrEqual(t, time.Since(revoked), time.Second)

	for _, n := range []*testNode{a, b} {
		for name, code := range map[string]codes.Code{
			"good": codes.OK, "to be revoked": codes.Unauthenticated, "ends": codes.Unauthenticated,
		} {
			require.Eventually(t, func() bool { // the standby applies the change later
				return status.Code(getStatusWith(t, n.ready.Address, "Bearer "+tokens[name], insecure.NewCredentials())) == code
			}, testTimeout, 50*time.Millisecond, name)
		}
	}
	a.stop()
	b.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	identity, err = admin.New(robot).WhoAmI(ctx)
	require.NoError(t, err)
	require.Equal(t, "robot", identity.GetPrincipal())
}

// Streams end within a second after their token has expired.
func TestStreamsEndWithTheirToken(t *testing.T) { simulated(t, testStreamsEndWithTheirToken) }

func testStreamsEndWithTheirToken(t *testing.T) {
	i := issuer.On(t, freePort(t))
	n := start(t, trustIssuer(settings(t, "a"), i))
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	cc, err := n.anotherConn()
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	ends := time.Unix(time.Now().Unix()+2, 0)
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization",
		"Bearer "+i.Token("alice", issuer.Claims{"exp": ends.Unix()})), testTimeout)
	defer cancel()

	watch, err := pb.NewAdminServiceClient(cc).WatchStatus(ctx, &pb.WatchStatusRequest{})
	require.NoError(t, err)
	publish, err := pb.NewQueueServiceClient(cc).PublishStream(ctx)
	require.NoError(t, err)
	require.NoError(t, publish.Send(&pb.PublishStreamRequest{Correlation: 1, Publish: &pb.PublishRequest{
		Queue: "q", Messages: []*pb.Message{{Body: []byte("x")}},
	}}))
	resp, err := publish.Recv()
	require.NoError(t, err)
	require.Nil(t, resp.GetError())
	consume, err := pb.NewQueueServiceClient(cc).Consume(ctx)
	require.NoError(t, err)
	require.NoError(t, consume.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q"}}))
	idle, err := pb.NewQueueServiceClient(cc).Consume(ctx) // never attaches
	require.NoError(t, err)

	for name, recv := range map[string]func() error{
		"watch":   func() error { _, err := watch.Recv(); return err },
		"publish": func() error { _, err := publish.Recv(); return err },
		"consume": func() error { _, err := consume.Recv(); return err },
		"idle":    func() error { _, err := idle.Recv(); return err },
	} {
		for err = recv(); err == nil; err = recv() { //nolint:revive // until it ends
		}
		require.Equal(t, codes.Unauthenticated, status.Code(err), name)
		require.Equal(t, pb.ErrorReason_ERROR_REASON_TOKEN_EXPIRED, reasonOf(err), name)
		require.LessOrEqual(t, time.Since(ends), time.Second, name)
		require.Positive(t, time.Since(ends), name)
	}
}

// With client-auth require, a call without a token is authenticated by its certificate. A call with an invalid
// token is rejected even if its certificate is valid.
func TestCertificateAuthentication(t *testing.T) { simulated(t, testCertificateAuthentication) }

func testCertificateAuthentication(t *testing.T) {
	ca, foreign := certs.New(t, "ours"), certs.New(t, "theirs")
	n := start(t, secured(t, settings(t, "a"), ca))
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	uri, err := url.Parse("spiffe://example.com/billing")
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		cert tls.Certificate
		code codes.Code
	}{
		"URI":       {ca.Client(t, "x", func(c *x509.Certificate) { c.URIs = []*url.URL{uri} }), codes.OK},
		"no SAN":    {ca.Client(t, "x", nil), codes.OK},
		"no name":   {ca.Client(t, "", nil), codes.Unauthenticated},
		"anonymous": {ca.Client(t, "anonymous", nil), codes.Unauthenticated},
		"expired": {
			ca.Client(t, "x", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
			codes.Unavailable,
		},
		"wrong CA": {foreign.Client(t, "x", nil), codes.Unavailable},
		"for a server": {
			ca.Client(t, "x", func(c *x509.Certificate) {
				c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
			}), codes.Unavailable,
		},
	} {
		section(t, name, func(t *testing.T) {
			err := getStatusWith(t, n.ready.Address, "", credentials.NewTLS(&tls.Config{
				RootCAs: ca.Pool(), Certificates: []tls.Certificate{tt.cert}, MinVersion: tls.VersionTLS12,
			}))
			require.Equal(t, tt.code, status.Code(err), err)
		})
	}
	err = getStatusWith(t, n.ready.Address, "Bearer lsk_wrong", credentials.NewTLS(&tls.Config{
		RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Client(t, "x", nil)}, MinVersion: tls.VersionTLS12,
	}))
	require.Equal(t, codes.Unauthenticated, status.Code(err), "a wrong token with a valid certificate")
}

// Publishes and deliveries continue when tokens expire and after a failover, without loss or duplicates.
func TestClientRenewsToken(t *testing.T) { simulated(t, testClientRenewsToken) }

func testClientRenewsToken(t *testing.T) {
	i := issuer.On(t, freePort(t))
	etcd := startEtcd(t)
	a := start(t, trustIssuer(settingsOfPair(t, "a", etcd), i))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	b := start(t, trustIssuer(settingsOfPair(t, "b", etcd), i))
	a.waitFor(pb.Role_ROLE_ACTIVE)
	b.waitFor(pb.Role_ROLE_STANDBY)
	a.createQueue("q")

	var tokens atomic.Int64
	c, err := client.OpenWith(t.Context(), client.Options{
		Addresses: []string{a.ready.Address, b.ready.Address}, DialOptions: clientOptions(t),
		TokenSource: func(context.Context) (string, time.Time, error) {
			tokens.Add(1)
			ends := time.Now().Add(2 * time.Second)
			// For half of the tokens, the client expects a later expiry, so it uses them until the node ends the streams.
			reported := ends
			if tokens.Load()%2 == 0 {
				reported = ends.Add(time.Hour)
			}
			return i.Token("alice", issuer.Claims{"exp": ends.Unix()}), reported, nil
		},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*testTimeout)
	defer cancel()
	consumer, err := c.Consume(ctx, "q", client.ConsumerOptions{})
	require.NoError(t, err)
	published := make(chan int, 1)
	until := time.Now().Add(6 * time.Second)
	go func() {
		n := 0
		for ; time.Now().Before(until); n++ {
			if _, err := c.Publish(ctx, "q", client.Message{Body: fmt.Append(nil, n)}); err != nil {
				t.Errorf("publish %d: %v", n, err)
				break
			}
		}
		published <- n
	}()
	got, total := 0, -1
	for total < 0 || got < total {
		if got == 100 {
			a.stop()
		}
		wait, done := context.WithTimeout(ctx, time.Second)
		d, err := consumer.Receive(wait)
		done()
		switch {
		case err == nil:
			require.Equal(t, fmt.Sprint(got), string(d.Body))
			d.Ack()
			got++
		case ctx.Err() != nil || wait.Err() == nil:
			require.NoError(t, err)
		}
		select {
		case total = <-published:
		default:
		}
	}
	require.Equal(t, total, got)
	require.Greater(t, got, 100)
	require.Greater(t, tokens.Load(), int64(3))
}
