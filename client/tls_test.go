// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"crypto/tls"
	"syscall"
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
		"one of": {
			TLS: &tls.Config{MinVersion: tls.VersionTLS13}, TLSFiles: client.TLSFiles{CA: ca.File},
		},
		"both be":              {TLSFiles: client.TLSFiles{Cert: cert}},
		"no certificate":       {TLSFiles: client.TLSFiles{CA: key}},
		syscall.ENOENT.Error(): {TLSFiles: client.TLSFiles{CA: ca.File + ".not", Cert: cert, Key: key}},
	} {
		o.Addresses = []string{"127.0.0.1:1"}
		_, err := client.OpenWith(t.Context(), o)
		require.ErrorIs(t, err, client.ErrInvalid)
		require.Contains(t, err.Error(), want)
	}
	c, err := client.OpenWith(t.Context(), client.Options{
		Addresses: []string{"127.0.0.1:1"}, TLSFiles: client.TLSFiles{CA: ca.File, Cert: cert, Key: key},
	})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}
