// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// secured configures TLS for a node, with a certificate that contains its name.
func secured(t *testing.T, c config.Config, ca *certs.CA) config.Config {
	t.Helper()
	_, cert, key := ca.Issue(t, c.Node.Name)
	c.TLS = config.NodeTLS{
		Cert: cert, Key: key, CA: ca.File, ClientAuth: config.ClientAuthRequire, MinVersion: config.TLS13,
	}
	return c
}

// Clients and nodes authenticate with certificates. A process without a certificate, or with a certificate of
// another CA, is rejected. This also applies to the other node.
func TestMutualTLS(t *testing.T) { simulated(t, testMutualTLS) }

func testMutualTLS(t *testing.T) {
	etcd := startEtcd(t)
	ca, foreign := certs.New(t, "ours"), certs.New(t, "theirs")
	a := start(t, secured(t, settingsOfPair(t, "a", etcd), ca))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)

	outsider := settingsOfPair(t, "x", etcd)
	_, outsider.TLS.Cert, outsider.TLS.Key = foreign.Issue(t, "x")
	outsider.TLS.CA, outsider.TLS.ClientAuth = ca.File, config.ClientAuthNone
	x := start(t, outsider)
	require.Never(t, func() bool { return a.role() != pb.Role_ROLE_ACTIVE_ALONE }, time.Second, 20*time.Millisecond)
	x.stop()

	b := start(t, secured(t, settingsOfPair(t, "b", etcd), ca))
	a.waitFor(pb.Role_ROLE_ACTIVE)
	b.waitFor(pb.Role_ROLE_STANDBY)
	a.createQueue("q")
	a.publish("q", "x")

	_, certFile, keyFile := ca.Issue(t, "client")
	_, foreignCert, foreignKey := foreign.Issue(t, "other")
	for name, tt := range map[string]struct {
		ca, cert, key string
		ok            bool
	}{
		"certificate of the CA":     {ca.File, certFile, keyFile, true},
		"no certificate":            {ca.File, "", "", false},
		"certificate of another CA": {ca.File, foreignCert, foreignKey, false},
		"trusts another CA":         {foreign.File, certFile, keyFile, false},
		"no TLS":                    {"", "", "", false},
	} {
		section(t, name, func(t *testing.T) {
			c, err := client.OpenWith(t.Context(), client.Options{
				Addresses: []string{a.ready.Address, b.ready.Address},
				TLSFiles:  client.TLSFiles{CA: tt.ca, Cert: tt.cert, Key: tt.key}, DialOptions: clientOptions(t),
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close()) }()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if tt.ok {
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), testTimeout)
			}
			defer cancel()
			_, err = c.WaitActive(ctx)
			require.Equal(t, tt.ok, err == nil, "%v", err)
		})
	}

	a.stop()
	b.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	b.publish("q", "y")
}

// With client-auth none, a client without a certificate can connect over TLS.
func TestTLSWithoutClientCertificates(t *testing.T) { simulated(t, testTLSWithoutClientCertificates) }

func testTLSWithoutClientCertificates(t *testing.T) {
	ca := certs.New(t, "ours")
	c := secured(t, settings(t, "a"), ca)
	c.TLS.ClientAuth = config.ClientAuthNone
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	cl, err := client.OpenWith(t.Context(), client.Options{
		Addresses: []string{n.ready.Address}, TLSFiles: client.TLSFiles{CA: ca.File},
		DialOptions: clientOptions(t),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, cl.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, err = cl.WaitActive(ctx)
	require.NoError(t, err)
}

// A node does not start with invalid TLS settings or files.
func TestInvalidTLSSettings(t *testing.T) { simulated(t, testInvalidTLSSettings) }

func testInvalidTLSSettings(t *testing.T) {
	ca := certs.New(t, "ours")
	for want, corruptFile := range map[string]func(*config.NodeTLS){
		"tls.cert: ":           func(s *config.NodeTLS) { s.Key = "" },
		"by tls.client-auth":   func(s *config.NodeTLS) { s.CA = "" },
		syscall.ENOENT.Error(): func(s *config.NodeTLS) { s.Cert += ".not" },
		"no certificate":       func(s *config.NodeTLS) { s.CA = s.Key },
		"tls.client-auth":      func(s *config.NodeTLS) { s.ClientAuth = "maybe" },
		"requires tls.cert":    func(s *config.NodeTLS) { s.Cert, s.Key = "", "" },
	} {
		c := secured(t, settings(t, "a"), ca)
		corruptFile(&c.TLS)
		err := fails(t, c)
		require.ErrorIs(t, err, config.ErrInvalid)
		require.Contains(t, err.Error(), want)
	}
}
