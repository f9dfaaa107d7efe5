// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

// ParseURL returns the options of a URL. Its errors do not contain the token.
func TestParseURL(t *testing.T) {
	pair := []string{"a:7420", "b:7420"}
	for url, want := range map[string]client.Options{
		"lockstep://a":                      {Addresses: []string{"a:7420"}},
		"lockstep://a:7420,b/":              {Addresses: pair},
		"lockstep://a:7420,b:7420?":         {Addresses: pair},
		"lockstep://[::1]:1,[::2],10.0.0.1": {Addresses: []string{"[::1]:1", "[::2]:7420", "10.0.0.1:7420"}},
		"lockstep://lsk_a%2Fb@a,b?allow-plaintext-token=true": {
			Addresses: pair, Token: "lsk_a/b", AllowPlaintextToken: true,
		},
		"lockstep://a,b?tls=true": {Addresses: pair, TLS: &tls.Config{MinVersion: tls.VersionTLS13}},
		"lockstep://a,b?tls-ca=%2Fca.pem&tls-cert=c.pem&tls-key=k.pem&token-file=t": {
			Addresses: pair, TLSFiles: client.TLSFiles{CA: "/ca.pem", Cert: "c.pem", Key: "k.pem"}, TokenFile: "t",
		},
		"lockstep://a,b?fail-fast=1&fixed-addresses=true&probe-interval=2s&retry-min=1ms&retry-max=9ms&max-message-bytes=5": {
			Addresses: pair, FailFast: true, FixedAddresses: true, ProbeInterval: 2 * time.Second,
			RetryMin: time.Millisecond, RetryMax: 9 * time.Millisecond, MaxMessageBytes: 5,
		},
	} {
		o, err := client.ParseURL(url)
		require.NoError(t, err, url)
		require.Equal(t, want, o, url)
	}
	for _, url := range []string{
		"", "a:7420", "http://a", "lockstep://a?compress=true", "lockstep://a?tls=maybe", "lockstep://a?retry-min=1",
		"lockstep://a?tls-ca=x&tls=false", "lockstep://a?tls=true&tls=true", "lockstep://lsk_%zz@a",
		"lockstep://lsk_secret@a?max-message-bytes=x",
	} {
		_, err := client.ParseURL(url)
		require.ErrorIs(t, err, client.ErrInvalid, url)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := client.Open(t.Context(), "lockstep://?tls=true")
	require.ErrorIs(t, err, client.ErrInvalid)
}
