// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"crypto/tls"
	"maps"
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// secured returns o with TLS and client certificates for both nodes. The certificate of the test's client identifies
// it as root.test.
func secured(t *testing.T, o cluster.Options) cluster.Options {
	t.Helper()
	ca := certs.New(t, "authority")
	own, _, _ := ca.IssueURI(t, "root", "lockstep://root.test")
	settings := maps.Clone(o.Settings)
	if settings == nil {
		settings = map[string]string{}
	}
	settings["tls.ca"] = ca.File
	o.Settings, o.NodeSettings = settings, map[string]map[string]string{}
	for _, name := range []string{"a", "b"} {
		_, cert, key := ca.Issue(t, name)
		o.NodeSettings[name] = map[string]string{"tls.cert": cert, "tls.key": key}
	}
	o.Credentials = credentials.NewTLS(&tls.Config{
		RootCAs: ca.Pool(), Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13,
	})
	return o
}
