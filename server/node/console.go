// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/console"
	"github.com/lockstep-mq/lockstep/server/peerclient"
)

type consolePort struct {
	server *console.Server

	mu     sync.Mutex // guards the fields below
	others map[string]*grpc.ClientConn
	pairs  map[string]*grpc.ClientConn // to nodes of other pairs of the fleet
}

const maxPeerAddresses = 8

func (n *node) listenConsole(ctx context.Context) error {
	p := &consolePort{others: make(map[string]*grpc.ClientConn), pairs: make(map[string]*grpc.ClientConn)}
	link := n.inProcessLink().link
	var err error
	p.server, err = console.Listen(ctx, console.Options{
		Address: n.cfg.Console.Listen, Listen: n.environment.Listen, TLS: portTLS(n.secrets.console),
		Node: n.cfg.Node.Name, Logger: n.log.Named("console"),
		Link: link, Other: func(address string) (grpc.ClientConnInterface, error) {
			return p.other(n, address)
		},
		Forward: n.forward(), Pairs: n.forwardConsole(p),
		OtherStatus: func(ctx context.Context, address string) (*pb.GetStatusResponse, error) {
			return n.peers.Status(ctx, address)
		},
		Anonymous: config.LocalOnly(n.cfg.Console.Listen) && !n.cfg.Console.TLS.On() && !n.requiresCertificate(),
		//nolint:contextcheck // the context carries only the address
		SignInWait: func(from net.Addr) (seconds float64) {
			return n.authn.Wait(peer.NewContext(context.Background(), &peer.Peer{Addr: from})).Seconds()
		},
	})
	if err != nil {
		return err
	}
	n.console = p
	return nil
}

func (n *node) requiresCertificate() bool {
	return n.cfg.TLS.On() && n.cfg.TLS.ClientAuth != config.ClientAuthNone
}

// forward returns a function that adds a principal and its groups to the context of a call to the other node. It
// returns nil unless this node requires client certificates.
func (n *node) forward() func(context.Context, string, []string) (context.Context, error) {
	if !n.requiresCertificate() || n.cfg.TLS.CA == "" {
		return nil
	}
	return peerclient.Forward
}

// credentialed is a connection that presents this node's certificate. It rejects calls without credentials.
type credentialed struct{ grpc.ClientConnInterface }

var errCredentials = status.Error(codes.PermissionDenied, "session has no credentials for the other node")

func (c credentialed) check(ctx context.Context) error {
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get("authorization")) == 0 {
		return errCredentials
	}
	return nil
}

func (c credentialed) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	if err := c.check(ctx); err != nil {
		return err
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, o...) //nolint:wrapcheck // a status
}

func (c credentialed) NewStream(
	ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	return c.ClientConnInterface.NewStream(ctx, d, method, o...) //nolint:wrapcheck // a status
}

// other returns a connection to the node at an address. A call has only the rights of the token or the caller in its
// metadata. The connection presents this node's certificate only if tls.client-auth requires certificates. In that
// case, calls without credentials are rejected.
func (p *consolePort) other(n *node, address string) (grpc.ClientConnInterface, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.others[address]; c != nil {
		return n.guarded(c), nil
	}
	for a, c := range p.others {
		if len(p.others) < maxPeerAddresses {
			break
		}
		_ = c.Close() // calls in progress fail
		delete(p.others, a)
	}
	secure := insecure.NewCredentials()
	if n.secrets.own != nil {
		secure = n.secrets.own.CheckOnly()
	}
	if n.requiresCertificate() {
		secure = n.secrets.own.Credentials(n.acceptPeer())
	}
	c, err := grpc.NewClient("passthrough:///"+address,
		n.environment.dialOptions([]grpc.DialOption{grpc.WithTransportCredentials(secure)})...)
	if err != nil {
		return nil, fmt.Errorf("connect to the other node at %s: %w", address, err)
	}
	p.others[address] = c
	return n.guarded(c), nil
}

func (n *node) guarded(c *grpc.ClientConn) grpc.ClientConnInterface {
	if n.requiresCertificate() {
		return credentialed{c}
	}
	return c
}

func (p *consolePort) run(ctx context.Context, n *node) {
	n.inProcess.users.Go(func() {
		if err := p.server.Run(ctx); err != nil {
			n.log.Error("console listener failed", zap.Error(err)) // the node continues to serve other protocols
		}
	})
}

func (p *consolePort) close() {
	p.server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.others {
		_ = c.Close()
	}
	for _, c := range p.pairs {
		_ = c.Close()
	}
}
