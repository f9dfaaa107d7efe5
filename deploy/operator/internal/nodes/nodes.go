// SPDX-License-Identifier: Apache-2.0

// Package nodes sends requests of the operator to the nodes of pairs.
package nodes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/objects"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// statusLimit is the timeout of a status request.
const statusLimit = 3 * time.Second

// Dialer opens connections to the nodes of pairs.
type Dialer struct {
	// Secrets reads Secrets. It must not use a cache, because the operator has no right to list Secrets.
	Secrets kube.Reader
	// Options are additional gRPC options; optional.
	Options []grpc.DialOption
}

// Conn is a connection to the nodes of a pair. It must be closed.
type Conn struct {
	Admin  *admin.Client
	client *client.Client
	pair   *objects.Pair
}

// Close closes the connection.
func (c *Conn) Close() { _ = c.client.Close() }

// Open returns a connection to a pair. Calls retry until their context ends. Errors include [ErrCredentials] if a
// Secret cannot be read or is malformed.
func (d *Dialer) Open(ctx context.Context, pair *v1alpha1.LockstepPair) (*Conn, error) {
	p := objects.New(pair)
	return d.open(ctx, pair, p, p.Addresses())
}

// OpenOther returns a connection to another pair of the same fleet, with the credentials of pair. Statuses and Node of
// the connection must not be called.
func (d *Dialer) OpenOther(ctx context.Context, pair *v1alpha1.LockstepPair, addresses []string) (*Conn, error) {
	return d.open(ctx, pair, nil, addresses)
}

func (d *Dialer) open(
	ctx context.Context, pair *v1alpha1.LockstepPair, p *objects.Pair, addresses []string,
) (*Conn, error) {
	o := client.Options{Addresses: addresses, DialOptions: d.Options}
	if err := d.credentials(ctx, pair, &o); err != nil {
		return nil, err
	}
	c, err := client.OpenWith(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("connect to pair %s: %w", pair.Name, err)
	}
	return &Conn{Admin: admin.New(c), client: c, pair: p}, nil
}

// ErrCredentials is returned if the credentials of the operator cannot be read.
var ErrCredentials = errors.New("credentials of the operator")

func (d *Dialer) credentials(ctx context.Context, pair *v1alpha1.LockstepPair, o *client.Options) error {
	p := objects.New(pair)
	if name := pair.Spec.Operator.TokenSecret; name != "" {
		s, err := d.secret(ctx, pair.Namespace, name, "token")
		if err != nil {
			return err
		}
		o.Token = strings.TrimSpace(string(s["token"]))
		o.AllowPlaintextToken = !p.TLS()
	}
	if !p.TLS() {
		return nil
	}
	name := pair.Spec.Operator.TLSSecret
	if name == "" {
		name = p.TLSSecret()
	}
	s, err := d.secret(ctx, pair.Namespace, name, "ca.crt", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	if err != nil {
		return err
	}
	certificate, err := tls.X509KeyPair(s[corev1.TLSCertKey], s[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("%w: Secret %s: %w", ErrCredentials, name, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s["ca.crt"]) {
		return fmt.Errorf("%w: Secret %s: ca.crt contains no certificate", ErrCredentials, name)
	}
	o.TLS = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	return nil
}

func (d *Dialer) secret(ctx context.Context, namespace, name string, keys ...string) (map[string][]byte, error) {
	var s corev1.Secret
	if err := d.Secrets.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCredentials, err)
	}
	for _, key := range keys {
		if len(s.Data[key]) == 0 {
			return nil, fmt.Errorf("%w: Secret %s has no %s", ErrCredentials, name, key)
		}
	}
	return s.Data, nil
}

// Statuses requests the status of both nodes. The status of a node that does not respond is nil; err joins the errors
// of all failed requests.
func (c *Conn) Statuses(ctx context.Context) (statuses [objects.Nodes]*pb.GetStatusResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	var failed [objects.Nodes]error
	var wg sync.WaitGroup
	for i := range statuses {
		wg.Go(func() {
			var n *admin.Node
			if n, failed[i] = c.Node(i); failed[i] == nil {
				statuses[i], failed[i] = n.Status(ctx)
			}
		})
	}
	wg.Wait()
	return statuses, errors.Join(failed[:]...)
}

// Node returns a node of the pair, 0 or 1.
func (c *Conn) Node(i int) (*admin.Node, error) {
	n, err := c.Admin.Node(c.pair.Address(i))
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", c.pair.PodName(i), err)
	}
	return n, nil
}

// ErrNoActive is returned if a pair has no active node.
var ErrNoActive = errors.New("no active node")

// Active returns the node among the addresses that serves clients, in the highest term. Errors include [ErrNoActive].
func (c *Conn) Active(ctx context.Context, addresses []string) (*admin.Node, error) {
	var found *admin.Node
	var term uint64
	for _, address := range addresses {
		n, err := c.Admin.Node(address)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", address, err)
		}
		limited, cancel := context.WithTimeout(ctx, statusLimit)
		s, err := n.Status(limited)
		cancel()
		if err == nil && Serves(s) && (found == nil || s.GetPair().GetTerm() > term) {
			found, term = n, s.GetPair().GetTerm()
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoActive, strings.Join(addresses, ", "))
	}
	return found, nil
}

// Serves reports whether a node is active and serves clients.
func Serves(s *pb.GetStatusResponse) bool {
	return slices.Contains([]pb.Role{pb.Role_ROLE_ACTIVE, pb.Role_ROLE_ACTIVE_ALONE}, s.GetRole())
}
