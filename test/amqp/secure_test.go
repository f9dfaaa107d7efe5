// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// secured is a pair with TLS and rules, and credentials for it.
type secured struct {
	*world
	ca    string            // file of the CA
	token string            // for the principal alice
	files map[string]string // files with certificate and key, by principal: bob, and carol, who has no rule
}

// newSecured creates a pair on which alice and bob may use one queue, and other principals may use nothing.
func newSecured(t *testing.T, dir, queue string) *secured {
	t.Helper()
	ca := certs.New(t, "authority")
	_, certFile, keyFile := ca.Issue(t, "node", "localhost")
	settings := map[string]string{
		"tls.cert": certFile, "tls.key": keyFile, "tls.ca": ca.File, "tls.client-auth": "none",
	}
	operator := ca.Client(t, "operator", nil)
	w := newWorld(t, dir, settings, func(o *harness.Options) {
		o.Credentials = credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: ca.Pool(), Certificates: []tls.Certificate{operator},
		})
	})
	w.host = "localhost"
	s := &secured{world: w, ca: ca.File, files: map[string]string{}}
	for _, name := range []string{"bob", "carol"} {
		s.files[name] = bothPEM(t, filepath.Join(dir, name+".pem"), ca.Client(t, name, nil))
	}
	secret := make([]byte, 32)
	_, err := rand.Read(secret)
	require.NoError(t, err)
	s.token = "lsk_" + hex.EncodeToString(secret)[:43]
	w.create(t, &pb.CreateQueueRequest{Name: queue})
	active, _ := w.inSync(t)
	access := pb.NewAccessServiceClient(active.Conn())
	sum := sha256.Sum256([]byte(s.token))
	_, err = access.CreateToken(t.Context(), &pb.CreateTokenRequest{Token: &pb.AccessToken{
		Name: "alice", Principal: "alice", Sha256: sum[:],
	}})
	require.NoError(t, err)
	all := []pb.AccessRight{
		pb.AccessRight_ACCESS_RIGHT_OPERATE, pb.AccessRight_ACCESS_RIGHT_MANAGE, pb.AccessRight_ACCESS_RIGHT_BROWSE,
		pb.AccessRight_ACCESS_RIGHT_PUBLISH, pb.AccessRight_ACCESS_RIGHT_CONSUME,
	}
	use := []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_PUBLISH, pb.AccessRight_ACCESS_RIGHT_CONSUME}
	for _, rule := range []*pb.AccessRule{
		{Principal: "operator", Rights: all[:1]},
		{Principal: "operator", Queue: "**", Rights: all[1:]},
		{Principal: "alice", Queue: queue, Rights: use},
		{Principal: "bob", Queue: queue, Rights: use},
	} {
		_, err = access.Grant(t.Context(), &pb.GrantRequest{Rule: rule})
		require.NoError(t, err)
	}
	return s
}

// bothPEM writes a certificate and its key into one file, in formats that all clients read.
func bothPEM(t *testing.T, file string, cert tls.Certificate) string {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	require.NoError(t, err)
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	b = append(b, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	require.NoError(t, os.WriteFile(file, b, 0o600))
	return file
}

// Third-party clients authenticate over TLS with a token or a certificate, and have exactly the granted rights.
func TestForeignClientsSecured(t *testing.T) {
	dir := t.TempDir()
	all := clients(t, dir)
	const queue = "orders"
	s := newSecured(t, dir, queue)
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			type secureCase struct {
				name string
				show request
				run  func(r *run)
			}
			list := []secureCase{
				{"a token", s.withToken(s.token), s.canUseOneQueue},
				{"a certificate", s.withCertificate("bob"), s.canUseOneQueue},
				{"an invalid token", s.withToken("lsk_" + hex.EncodeToString(make([]byte, 32))[:43]), s.refused},
				{"no credentials", request{"tls": s.ca}, s.refused},
				{"a certificate without rights", s.withCertificate("carol"), s.refused},
			}
			if c.chosen {
				killed := secureCase{"a token while the active is killed", s.withToken(s.token), s.failsOver}
				list = append(list, slices.Repeat([]secureCase{killed}, attempts(t, 1))...)
			}
			for _, one := range list {
				t.Run(one.name, func(t *testing.T) {
					a := startAdapter(t, c.command)
					r := &run{world: s.world, t: t, a: a, name: queue, login: one.show}
					r.perform(one.run)
					_ = a.in.Close()
				})
			}
		})
	}
}

func (s *secured) withToken(token string) request {
	return request{"tls": s.ca, "user": "any", "password": token}
}

func (s *secured) withCertificate(of string) request {
	return request{"tls": s.ca, "certificate": s.files[of]}
}

// canUseOneQueue: an authenticated client has exactly the rights of its principal.
func (s *secured) canUseOneQueue(r *run) {
	r.open("c", nil)
	r.send(with(onC, request{"to": r.name}), bodies(0, 2)...)
	r.a.do("consume", with(ofC, request{"from": r.name}))
	require.Equal(r.t, []string{"m0", "m1"}, []string{r.take(ofC), r.take(ofC)})
	r.empty(r.name)
	principal := "alice"
	if r.login["certificate"] != nil {
		principal = "bob"
	}
	eventually(r.t, "the connections of earlier clients have ended", func() bool {
		list, err := pb.NewConnectionServiceClient(s.active(r.t).Conn()).
			ListConnections(r.t.Context(), &pb.ListConnectionsRequest{})
		require.NoError(r.t, err)
		var who []string
		for _, c := range list.GetConnections() {
			if c.GetProtocol() == "AMQP 1.0" {
				who = append(who, c.GetPrincipal())
			}
		}
		return slices.Equal(who, []string{principal})
	})
	_, failed := r.a.try("consume", request{"client": "c", "consumer": "x", "from": "salaries"})
	require.Regexp(r.t, "unauthorized-access|Security|not-found|not found", failed)
	r.a.do("close", onC)
}

// refused: clients without valid credentials receive an authentication error.
func (s *secured) refused(r *run) {
	_, failed := r.a.try("open", r.opening("c", nil))
	require.Regexp(r.t, "(?i)unauthorized.access|sasl.*auth|auth.*fail|security", failed)
}

// failsOver: after the active is killed, the client continues with its token on the other node.
func (s *secured) failsOver(r *run) { r.killWhilePublishingTo(r.name) }
