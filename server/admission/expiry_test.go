// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"

	"github.com/lockstep-mq/lockstep/server/admission"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// TestCertificateEnds: a connection ends with the certificate that its client has shown, and
// one whose certificate holds goes on.
func TestCertificateEnds(t *testing.T) {
	ca := certs.New(t, "ours")
	serverCert, _, _ := ca.Issue(t, "server")
	port, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := admission.New(port, admission.Options{
		Limits: func() admission.Limits {
			return admission.Limits{Connections: 10, PerAddress: 10, Handshakes: 10, HandshakeTimeout: time.Minute}
		},
		Logger: zap.NewNop(),
	})
	defer func() { _ = l.Close() }()
	secure := admission.Credentials(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{serverCert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
		NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
	}))
	connect := func(lasts time.Duration) (client net.Conn) {
		cert := ca.Client(t, "client", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(lasts) })
		raw, err := net.Dial("tcp", port.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = raw.Close() })
		secured := tls.Client(raw, &tls.Config{
			RootCAs: ca.Pool(), Certificates: []tls.Certificate{cert}, ServerName: "127.0.0.1",
			NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
		})
		go func() { _ = secured.Handshake() }()
		accepted, err := l.Accept()
		require.NoError(t, err)
		if _, _, err = secure.ServerHandshake(accepted); err != nil {
			require.Less(t, lasts, time.Minute, "%v", err)
			require.NoError(t, accepted.Close())
			return nil
		}
		return secured
	}
	var short net.Conn
	for lasts := 3 * time.Second; short == nil; lasts *= 2 { // a busy machine may need as long to connect
		short = connect(lasts)
	}
	long := connect(time.Hour)
	require.NoError(t, short.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = short.Read(make([]byte, 1))
	require.Error(t, err)
	require.False(t, isTimeout(err), "%v", err)
	require.Equal(t, uint64(1), l.Stats().Ended["expired"])
	require.NoError(t, long.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err = long.Read(make([]byte, 1))
	require.True(t, isTimeout(err), "%v", err)
	require.Eventually(t, func() bool { return l.Stats().Open == 1 }, 20*time.Second, time.Millisecond)
}
