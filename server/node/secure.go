// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/server/auth/authn"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/peerclient"
)

// secure reads the certificates, keys and secrets, and configures the node's port and the connections to the other
// node with them.
func (n *node) secure() (err error) {
	if n.secrets, err = openSecrets(&n.cfg, n.log); err != nil {
		return err
	}
	if own := n.secrets.own; own != nil {
		n.serverOptions = append(n.serverOptions,
			grpc.Creds(admission.Credentials(own.ServerCredentials(n.cfg.TLS.ClientCertificates()))))
		n.dialOptions = append(n.dialOptions, grpc.WithTransportCredentials(own.Credentials(n.acceptPeer())))
	}
	if token := n.secrets.peerToken; token != nil {
		n.dialOptions = append(n.dialOptions, peerclient.WithToken(token))
	}
	return nil
}

// acceptPeer returns the function that checks the names in the other node's certificate. It returns nil if
// tls.peer-names is not set. Without the function, the certificate must be valid for the address of the other node.
func (n *node) acceptPeer() func(*x509.Certificate) error {
	names := n.cfg.TLS.PeerNames
	if len(names) == 0 {
		return nil
	}
	return func(cert *x509.Certificate) error { return peerclient.VerifyName(cert, names) }
}

// peerAuthenticator returns the authenticator of the other node. It returns nil if neither certificates nor a peer
// token authenticate the nodes. That is permitted only for a standalone node, if no other machine can reach the node,
// or with the setting insecure.
func (n *node) peerAuthenticator() *peerclient.Authenticator {
	i := &peerclient.Authenticator{Tokens: n.secrets.peerToken, Logger: n.log}
	if n.cfg.TLS.On() && n.cfg.TLS.CA != "" {
		i.Names = n.peerNames
	}
	if i.Names == nil && i.Tokens == nil {
		return nil
	}
	return i
}

func (n *node) peerNames() []string {
	if len(n.cfg.TLS.PeerNames) > 0 {
		return n.cfg.TLS.PeerNames
	}
	addresses := []string{n.advertise}
	st := n.runner.Status()
	if st.Record != nil {
		for _, info := range st.Record.Nodes {
			addresses = append(addresses, info.Address)
		}
	}
	for _, live := range st.Live { // a process that can write announcements also controls the cluster record
		addresses = append(addresses, live.Node.Address)
	}
	return n.cfg.PeerNames(addresses)
}

var (
	errToken    = errors.New("missing or invalid secret of metrics.token-file (Authorization: Bearer)")
	errIdentity = errors.New("profiles require the operate right: send a client certificate or token that has it, " +
		"or connect locally to a loopback metrics.listen without TLS")
)

// portTLS returns the TLS configuration of an HTTP port, or nil without TLS. Client certificates are optional. They
// are verified if a CA is configured.
func portTLS(source *tlsfiles.Source) *tls.Config {
	if source == nil {
		return nil
	}
	ask := tls.NoClientCert
	if source.Files().CA != "" {
		ask = tls.VerifyClientCertIfGiven
	}
	return source.Server(ask, "h2", "http/1.1")
}

func (n *node) mayRead(r *http.Request) error {
	if token := n.secrets.metricsToken; token != nil && !token.Contains(bearer(r)) {
		return errToken
	}
	return nil
}

// mayProfile returns an error if the sender of a request may not read profiles. Profiles contain memory contents
// and are expensive.
func (n *node) mayProfile(r *http.Request) error {
	ctx := asCall(r)
	id, err := n.interceptor.Identify(ctx)
	if cert := access.Certificate(ctx); cert != nil && err == nil && id.Method == access.MethodNone {
		id = &access.Identity{
			Principal: access.CertificateName(cert), Groups: cert.Subject.OrganizationalUnit, Method: access.MethodCertificate,
		}
	}
	if token := n.secrets.metricsToken; token != nil && token.Contains(bearer(r)) {
		id, err = &access.Identity{Principal: "metrics-token", Method: access.MethodToken}, nil
	}
	if err != nil {
		return err
	}
	closed := n.secrets.metrics != nil || n.secrets.metricsToken != nil ||
		!config.LocalOnly(n.cfg.Metrics.Listen)
	if id.Method == access.MethodNone && closed {
		return errIdentity
	}
	return n.rules.May(id, access.Operate, "")
}

func bearer(r *http.Request) string {
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// asCall converts an HTTP request to the context of a call, for the authenticators.
func asCall(r *http.Request) context.Context {
	p := &peer.Peer{Addr: remote(r.RemoteAddr)}
	if r.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{State: *r.TLS}
	}
	ctx := peer.NewContext(r.Context(), p)
	if shown := r.Header.Values("Authorization"); len(shown) > 0 {
		ctx = metadata.NewIncomingContext(ctx, metadata.MD{"authorization": shown})
	}
	return ctx
}

func remote(address string) net.Addr {
	if a, err := net.ResolveTCPAddr("tcp", address); err == nil {
		return a
	}
	return &net.TCPAddr{}
}

func (n *node) identify() (err error) {
	j := &n.cfg.Auth.JWT
	n.authn, err = authn.New(authn.Options{
		Tokens: n.rules.Token, Dial: n.environment.Dial, Logger: n.log,
		JWT: authn.JWT{
			Issuer: j.Issuer, Audience: j.Audience, KeysURL: j.KeysURL, KeysFile: j.KeysFile, KeysCA: j.KeysCA,
			PrincipalClaim: j.PrincipalClaim, GroupsClaim: j.GroupsClaim, Skew: j.ClockSkew.Std(),
		},
	})
	if err != nil {
		return fmt.Errorf("%w: auth.jwt: %w", config.ErrInvalid, err)
	}
	return nil
}

func (n *node) authFailures() map[string]uint64 {
	out := make(map[string]uint64)
	for check, count := range n.authn.Failures() {
		out[string(check)] = count
	}
	return out
}
