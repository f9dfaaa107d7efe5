// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// Unusable files are reported by Open, not by the first call.
func TestTLSFiles(t *testing.T) {
	ca := certs.New(t, "ours")
	_, cert, key := ca.Issue(t, "app")
	for want, o := range map[string]client.Options{
		"set one of them": {
			TLS: &tls.Config{MinVersion: tls.VersionTLS13}, TLSFiles: client.TLSFiles{CA: ca.File},
		},
		"must both be set": {TLSFiles: client.TLSFiles{Cert: cert}},
		"no certificate":   {TLSFiles: client.TLSFiles{CA: key}},
		"no such file":     {TLSFiles: client.TLSFiles{CA: ca.File + ".not", Cert: cert, Key: key}},
	} {
		o.Addresses = []string{"127.0.0.1:1"}
		_, err := client.OpenWith(t.Context(), o)
		require.ErrorIs(t, err, client.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
	c, err := client.OpenWith(t.Context(), client.Options{
		Addresses: []string{"127.0.0.1:1"}, TLSFiles: client.TLSFiles{CA: ca.File, Cert: cert, Key: key},
	})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}
