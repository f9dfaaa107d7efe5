// SPDX-License-Identifier: Apache-2.0

package peerclient

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/auth/secretfile"
)

const (
	tokenKey        = "lockstep-peer-token" // metadata key of the pair's secret
	refusalInterval = 10 * time.Second      // minimum interval between logged refusals
)

// queueMethods is the prefix of the methods of QueueService.
var queueMethods = "/" + pb.QueueService_ServiceDesc.ServiceName + "/" //nolint:gochecknoglobals // a constant

// Authenticator authenticates calls of the other node of the pair, and calls that a node of the pair forwards.
type Authenticator struct {
	// Names returns the accepted names. The other node's certificate must contain one of them. If Names is nil,
	// certificates are ignored.
	Names  func() []string
	Tokens *secretfile.File // secrets accepted from the other node; may be nil
	Logger *zap.Logger      // logs refusals; may be nil

	mu     sync.Mutex // guards the fields below
	logged time.Time
}

// Authenticate returns the identity of the other node or, for a forwarded call, that of the original caller. An
// invalid forwarded call is an error. Authenticate returns nil for another caller, for methods of QueueService, and
// for other calls with authorization metadata.
func (i *Authenticator) Authenticate(ctx context.Context) (*access.Identity, error) {
	if id, err := i.forwarded(ctx); id != nil || err != nil {
		return id, err
	}
	if method, ok := grpc.Method(ctx); ok && strings.HasPrefix(method, queueMethods) {
		return nil, nil //nolint:nilnil // no credentials of this kind
	}
	if len(metadata.ValueFromIncomingContext(ctx, "authorization")) > 0 {
		return nil, nil //nolint:nilnil // the credentials are those of a user or an application
	}
	if i.Tokens != nil {
		for _, shown := range metadata.ValueFromIncomingContext(ctx, tokenKey) {
			if i.Tokens.Contains(shown) {
				return &access.Identity{Principal: "peer", Method: access.MethodPeerToken, Peer: true}, nil
			}
		}
	}
	if cert := access.Certificate(ctx); cert != nil && i.Names != nil && VerifyName(cert, i.Names()) == nil {
		return &access.Identity{
			Principal: access.CertificateName(cert), Groups: cert.Subject.OrganizationalUnit,
			Method: access.MethodCertificate, Peer: true,
		}, nil
	}
	return nil, nil //nolint:nilnil // the caller is not the other node
}

// NonPeer returns an error that matches access.ErrNotPeer. It contains the reason why the caller is not accepted as
// the other node. NonPeer logs the error, at most once per refusalInterval.
func (i *Authenticator) NonPeer(ctx context.Context) error {
	var reason []string
	if i.Names != nil {
		cert := access.Certificate(ctx)
		if cert == nil {
			reason = append(reason, "no client certificate")
		} else if err := VerifyName(cert, i.Names()); err != nil {
			reason = append(reason, err.Error()+" (tls.peer-names, or by default the advertised hosts of both nodes)")
		}
	}
	if i.Tokens != nil {
		if len(metadata.ValueFromIncomingContext(ctx, tokenKey)) == 0 {
			reason = append(reason, "no secret of the pair (peer-token-file)")
		} else {
			reason = append(reason, "secret is not in this node's peer-token-file")
		}
	}
	err := fmt.Errorf("%w: %s. If the caller is a node of the pair, correct its settings or those of this node; "+
		"clients must not make this call", access.ErrNotPeer, strings.Join(reason, "; "))
	i.log(ctx, err)
	return err
}

func (i *Authenticator) log(ctx context.Context, err error) {
	if i.Logger == nil {
		return
	}
	i.mu.Lock()
	due := time.Since(i.logged) >= refusalInterval
	if due {
		i.logged = time.Now()
	}
	i.mu.Unlock()
	if !due {
		return
	}
	from := ""
	if p, ok := grpcpeer.FromContext(ctx); ok {
		from = p.Addr.String()
	}
	method, _ := grpc.Method(ctx)
	i.Logger.Warn("call reserved for the other node rejected; not logged again for ten seconds",
		zap.String("from", from), zap.String("method", method), zap.Error(err))
}

// VerifyName returns an error unless a certificate contains one of the given DNS names, IP addresses or URIs.
func VerifyName(cert *x509.Certificate, names []string) error {
	for _, name := range names {
		if strings.Contains(name, "://") {
			if slices.ContainsFunc(cert.URIs, func(u *url.URL) bool { return u.String() == name }) {
				return nil
			}
		} else if cert.VerifyHostname(name) == nil {
			return nil
		}
	}
	return fmt.Errorf("certificate is for %s, not for %s", listOf(cert), strings.Join(names, ", "))
}

func listOf(cert *x509.Certificate) string {
	var all []string
	for _, u := range cert.URIs {
		all = append(all, u.String())
	}
	all = append(all, cert.DNSNames...)
	for _, ip := range cert.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return fmt.Sprintf("%q, without subject alternative names", cert.Subject.CommonName)
	}
	return strings.Join(all, ", ")
}

// WithToken returns an option that adds the pair's secret to each call of a connection to the other node.
func WithToken(tokens *secretfile.File) grpc.DialOption {
	return grpc.WithPerRPCCredentials(tokenCredentials{tokens})
}

type tokenCredentials struct{ tokens *secretfile.File }

func (t tokenCredentials) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{tokenKey: t.tokens.First()}, nil
}

// RequireTransportSecurity returns false.
func (tokenCredentials) RequireTransportSecurity() bool { return false }
