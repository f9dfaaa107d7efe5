// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"

	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

// A connection ends when the certificate of its client expires. Connections with a valid certificate remain open.
func TestConnectionEndsWithCertificate(t *testing.T) {
	synctest.Test(t, testConnectionEndsWithCertificate)
}

func testConnectionEndsWithCertificate(t *testing.T) {
	ca := certs.New(t, "ours")
	serverCert, _, _ := ca.Issue(t, "server")
	network := simnet.New(simnet.Options{})
	port, err := network.NewProcess("127.0.0.1").Listen(t.Context(), "127.0.0.1:7420")
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
		raw, err := network.NewProcess("127.0.0.2").Dial(t.Context(), port.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = raw.Close() })
		secured := tls.Client(raw, &tls.Config{
			RootCAs: ca.Pool(), Certificates: []tls.Certificate{cert}, ServerName: "127.0.0.1",
			NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
		})
		go func() { _ = secured.Handshake() }()
		accepted, err := l.Accept()
		require.NoError(t, err)
		_, _, err = secure.ServerHandshake(accepted)
		require.NoError(t, err)
		return secured
	}
	start := time.Now()
	short := connect(3 * time.Second)
	long := connect(time.Hour)
	require.NoError(t, short.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = short.Read(make([]byte, 1))
	require.Error(t, err)
	require.False(t, isTimeout(err), "%v", err)
	require.Equal(t, 3*time.Second, time.Since(start))
	require.Equal(t, uint64(1), l.Stats().Ended["expired"])
	require.NoError(t, long.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = long.Read(make([]byte, 1))
	require.True(t, isTimeout(err), "%v", err)
	require.EqualValues(t, 1, l.Stats().Open)
}
