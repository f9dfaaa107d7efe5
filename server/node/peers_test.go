// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// peerCalls makes each kind of call that is reserved for the other node. It returns the errors by the name of the
// call.
func peerCalls(ctx context.Context, conn *grpc.ClientConn) map[string]error {
	c := pb.NewReplicationServiceClient(conn)
	firstResponse := func(stream interface{ RecvMsg(any) error }, m any, err error) error {
		if err != nil {
			return err
		}
		return stream.RecvMsg(m)
	}
	replicate, rerr := c.Replicate(ctx)
	if rerr == nil {
		_ = replicate.Send(&pb.ReplicateRequest{}) // the response contains the error
	}
	node := uuid.NewString()
	snapshot, serr := c.FetchSnapshot(ctx, &pb.FetchSnapshotRequest{PairId: node, NodeId: node})
	messages, merr := c.FetchMessages(ctx, &pb.FetchMessagesRequest{})
	_, handshake := c.Handshake(ctx, &pb.HandshakeRequest{})
	return map[string]error{
		"Replicate":     firstResponse(replicate, &pb.ReplicateResponse{}, rerr),
		"FetchSnapshot": firstResponse(snapshot, &pb.FetchSnapshotResponse{}, serr),
		"FetchMessages": firstResponse(messages, &pb.FetchMessagesResponse{}, merr),
		"Handshake":     handshake,
	}
}

// reasonOf returns the reason in a status.
func reasonOf(err error) pb.ErrorReason {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return reason.Parse(info.GetReason())
		}
	}
	return pb.ErrorReason_ERROR_REASON_UNSPECIFIED
}

// requireNonPeersRefused requires that each call of peerCalls is rejected with an error that contains all texts.
func requireNonPeersRefused(t *testing.T, conn *grpc.ClientConn, texts ...string) {
	t.Helper()
	for name, err := range peerCalls(t.Context(), conn) {
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%s: %v", name, err)
		require.Equal(t, pb.ErrorReason_ERROR_REASON_NOT_PEER, reasonOf(err), name)
		for _, text := range texts {
			require.Contains(t, err.Error(), text, name)
		}
	}
}

// requirePeersAccepted requires that no call of peerCalls is rejected because of the caller.
func requirePeersAccepted(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	for name, err := range peerCalls(t.Context(), conn) {
		require.NotEqual(t, pb.ErrorReason_ERROR_REASON_NOT_PEER, reasonOf(err), "%s: %v", name, err)
	}
}

// connect opens a connection that presents the certificate in f.
func connect(t *testing.T, address string, f tlsfiles.Files) *grpc.ClientConn {
	t.Helper()
	creds := insecure.NewCredentials()
	if !f.Empty() {
		source, err := tlsfiles.Open(tlsfiles.Options{Files: f})
		require.NoError(t, err)
		creds = source.Credentials(nil)
	}
	conn, err := grpc.NewClient("passthrough:///"+address,
		append(clientOptions(t), grpc.WithTransportCredentials(creds))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// issued returns the files of a new certificate that contains the names in template.
func issued(t *testing.T, ca *certs.CA, name string, template x509.Certificate) tlsfiles.Files {
	t.Helper()
	_, cert, key := ca.IssueFrom(t, name, &template)
	return tlsfiles.Files{CA: ca.File, Cert: cert, Key: key}
}

// A certificate issued by the pair's CA is not sufficient to authenticate a node. It must also contain the host of a
// node of the pair, or a name from tls.peer-names.
func TestPeerCertificateNames(t *testing.T) { simulated(t, testPeerCertificateNames) }

func testPeerCertificateNames(t *testing.T) {
	ca, etcd := certs.New(t, "ours"), startEtcd(t)
	client := issued(t, ca, "client", x509.Certificate{DNSNames: []string{"client.test"}})
	uri, err := url.Parse("spiffe://pair/node")
	require.NoError(t, err)
	member := issued(t, ca, "member", x509.Certificate{URIs: []*url.URL{uri}})

	a := start(t, secured(t, settingsOfPair(t, "a", etcd), ca))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	requireNonPeersRefused(t, connect(t, a.ready.Address, client), "client.test", "127.0.0.1", "tls.peer-names")
	requireNonPeersRefused(t, connect(t, a.ready.Address, member), "spiffe://pair/node")
	requirePeersAccepted(t, connect(t, a.ready.Address, a.config.TLS.Files()))
	b := start(t, secured(t, settingsOfPair(t, "b", etcd), ca))
	b.waitFor(pb.Role_ROLE_STANDBY)
	requireNonPeersRefused(t, connect(t, b.ready.Address, client))
	require.LessOrEqual(t, time.Until(a.status().GetCertificates()[0].GetEnds().AsTime()), time.Hour)

	// The setting tls.peer-names replaces the hosts of the pair's nodes as accepted names.
	c := secured(t, settings(t, "c"), ca)
	c.TLS.PeerNames = []string{uri.String()}
	named := start(t, c)
	requirePeersAccepted(t, connect(t, named.ready.Address, member))
	requireNonPeersRefused(t, connect(t, named.ready.Address, c.TLS.Files()), "spiffe://pair/node")
}

// A node that connects to the other node accepts only a certificate with a name of the pair. A certificate that
// is valid for the address is not sufficient.
func TestPeerNamesOfListener(t *testing.T) { simulated(t, testPeerNamesOfListener) }

func testPeerNamesOfListener(t *testing.T) {
	ca, etcd := certs.New(t, "ours"), startEtcd(t)
	a := start(t, secured(t, settingsOfPair(t, "a", etcd), ca))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	c := secured(t, settingsOfPair(t, "b", etcd), ca)
	c.TLS.PeerNames = []string{"spiffe://pair/node"}
	b := start(t, c)
	require.Never(t, func() bool { return a.role() == pb.Role_ROLE_ACTIVE }, time.Second, 20*time.Millisecond)
	b.stop()
}

// Without TLS, both nodes share a secret. Callers without the secret are not accepted as the other node. The file
// with the secret is read again when it changes.
func TestPeerToken(t *testing.T) { simulated(t, testPeerToken) }

func testPeerToken(t *testing.T) {
	etcd := startEtcd(t)
	const secret, wrong = "the-secret-of-this-pair", "the-secret-of-others-"
	file := func(content string) string {
		path := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	ca := settingsOfPair(t, "a", etcd)
	ca.PeerToken = file(secret)
	a := start(t, ca)
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	conn := connect(t, a.ready.Address, tlsfiles.Files{})
	requireNonPeersRefused(t, conn, "(peer-token-file)")
	withToken := func(token string) map[string]error {
		return peerCalls(metadata.AppendToOutgoingContext(t.Context(), "lockstep-peer-token", token), conn)
	}
	for _, token := range []string{wrong, "", secret[1:], secret + " "} {
		for name, err := range withToken(token) {
			require.Equal(t, pb.ErrorReason_ERROR_REASON_NOT_PEER, reasonOf(err), "%s with %q", name, token)
			require.NotContains(t, err.Error(), secret)
		}
	}
	for name, err := range withToken(secret) {
		require.NotEqual(t, pb.ErrorReason_ERROR_REASON_NOT_PEER, reasonOf(err), "%s: %v", name, err)
	}

	cb := settingsOfPair(t, "b", etcd)
	cb.PeerToken = file(wrong)
	b := start(t, cb)
	b.waitCondition(conditions.PeerRejected, "b", true)
	require.Contains(t, b.condition(conditions.PeerRejected, "b").GetDetails(), "peer-token-file")
	require.Equal(t, pb.Role_ROLE_ACTIVE_ALONE, a.role())
	require.NoError(t, os.WriteFile(cb.PeerToken, []byte(secret), 0o600))
	b.waitFor(pb.Role_ROLE_STANDBY)
	b.waitCondition(conditions.PeerRejected, "b", false)
}

// The metrics port returns metrics and profiles only to authorized callers. Its probes require no authorization.
func TestMetricsRights(t *testing.T) { simulated(t, testMetricsRights) }

func testMetricsRights(t *testing.T) {
	ca := certs.New(t, "ours")
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("the-secret-of-metrics"), 0o600))
	operator := issued(t, ca, "operator", x509.Certificate{DNSNames: []string{"operator.test"}})
	const open, unauthorized = http.StatusOK, http.StatusUnauthorized
	for name, tt := range map[string]struct {
		change            func(*config.Config)
		scheme, token     string
		shows             *tlsfiles.Files
		metrics, profiles int
	}{
		"loopback": {func(*config.Config) {}, "http", "", nil, open, open},
		"no token": {func(c *config.Config) { c.Metrics.Token = token }, "http", "", nil, unauthorized, unauthorized},
		"token": {
			func(c *config.Config) { c.Metrics.Token = token }, "http", "the-secret-of-metrics", nil, open, open,
		},
		"wrong token": {
			func(c *config.Config) { c.Metrics.Token = token }, "http", "the-secret-of-others", nil, unauthorized,
			unauthorized,
		},
		"TLS": {
			func(c *config.Config) { c.Metrics.TLS.Own = true }, "https", "", &tlsfiles.Files{CA: ca.File}, open,
			unauthorized,
		},
		"TLS, certificate": {
			func(c *config.Config) { c.Metrics.TLS.Own = true }, "https", "", &operator, open, open,
		},
	} {
		section(t, name, func(t *testing.T) {
			c := secured(t, settings(t, "a"), ca)
			l := freePort(t)
			c.Metrics.Listen = l.Addr().String()
			require.NoError(t, l.Close())
			tt.change(&c)
			start(t, c)
			transport := &http.Transport{DialContext: dialer(t)}
			if tt.shows != nil {
				source, err := tlsfiles.Open(tlsfiles.Options{Files: *tt.shows})
				require.NoError(t, err)
				transport.TLSClientConfig = source.Dial()
			}
			defer transport.CloseIdleConnections()
			for path, want := range map[string]int{
				"/healthz": open, "/readyz": open, "/activez": open, "/metrics": tt.metrics,
				"/debug/pprof/": tt.profiles, "/debug/pprof/heap": tt.profiles,
			} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
					tt.scheme+"://"+c.Metrics.Listen+path, nil)
				require.NoError(t, err)
				if tt.token != "" {
					req.Header.Set("Authorization", "Bearer "+tt.token)
				}
				require.Eventually(t, func() bool {
					resp, err := transport.RoundTrip(req)
					require.NoError(t, err)
					defer resp.Body.Close()
					_, _ = io.Copy(io.Discard, resp.Body)
					return resp.StatusCode == want
				}, testTimeout, 20*time.Millisecond, "%s should be %d", path, want)
			}
		})
	}
}

// New connections use a replaced certificate, and open connections continue. An invalid certificate is reported
// and not used.
func TestCertificateReload(t *testing.T) { simulated(t, testCertificateReload) }

func testCertificateReload(t *testing.T) {
	ca := certs.New(t, "ours")
	c := secured(t, settings(t, "a"), ca)
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	serial := func() string {
		source, err := tlsfiles.Open(tlsfiles.Options{Files: c.TLS.Files()})
		if err != nil { // the invalid certificate
			return ""
		}
		raw, err := dialer(t)(t.Context(), "tcp", n.ready.Address)
		require.NoError(t, err)
		d := source.Dial()
		d.ServerName, d.NextProtos = "127.0.0.1", []string{"h2"}
		conn := tls.Client(raw, d)
		require.NoError(t, conn.HandshakeContext(t.Context()))
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	_, cert, key := ca.IssueFrom(t, "a", &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(30 * 24 * time.Hour),
	})
	n.waitCondition(conditions.CertificateExpires, "a", true)
	copyFile(t, cert, c.TLS.Cert)
	copyFile(t, key, c.TLS.Key)
	require.Eventually(t, func() bool { return serial() != before }, testTimeout, 50*time.Millisecond)
	after := serial()
	require.NoError(t, os.WriteFile(c.TLS.Cert, []byte("nonsense"), 0o600))
	n.waitCondition(conditions.CredentialsInvalid, "a", true)
	n.publish("q", "x") // over the existing connection
	copyFile(t, cert, c.TLS.Cert)
	n.waitCondition(conditions.CredentialsInvalid, "a", false)
	require.Equal(t, after, serial())
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, raw, 0o600))
}

// A client with an expired certificate is rejected.
func TestExpiredClientCertificate(t *testing.T) { simulated(t, testExpiredClientCertificate) }

func testExpiredClientCertificate(t *testing.T) {
	ca := certs.New(t, "ours")
	n := start(t, secured(t, settings(t, "a"), ca))
	ended := issued(t, ca, "ended", x509.Certificate{
		DNSNames: []string{"ended.test"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	})
	c, err := client.OpenWith(t.Context(), client.Options{
		Addresses: []string{n.ready.Address}, FailFast: true,
		DialOptions: clientOptions(t), TLSFiles: client.TLSFiles{CA: ended.CA, Cert: ended.Cert, Key: ended.Key},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, err = c.WaitActive(ctx)
	require.Error(t, err)
	require.Contains(t, err.Error(), "expired certificate")
}

// A node that remote clients can reach without TLS reports not-encrypted. It does not authenticate calls of the
// other node.
func TestUnencryptedListenerCondition(t *testing.T) { simulated(t, testUnencryptedListenerCondition) }

func testUnencryptedListenerCondition(t *testing.T) {
	c := settings(t, "a")
	c.Listen, c.Insecure = "0.0.0.0:0", true
	n := start(t, c)
	n.waitCondition(conditions.NotEncrypted, "a", true)
	require.Contains(t, n.condition(conditions.NotEncrypted, "a").GetDetails(), "listen 0.0.0.0:0")
	requirePeersAccepted(t, n.conn)
	idle := start(t, settings(t, "b"))
	idle.waitCondition(conditions.NotEncrypted, "b", false)
}
