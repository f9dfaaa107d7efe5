// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/console"
)

// consolePort is the console of a node, and its connections to the other node.
type consolePort struct {
	server *console.Server

	mu     sync.Mutex // guards all below
	others map[string]*grpc.ClientConn
}

// maxOthers bounds the connections to addresses of the other node: it has had so many names at most.
const maxOthers = 8

// listenConsole binds the console's port.
func (n *node) listenConsole(ctx context.Context) error {
	p := &consolePort{others: make(map[string]*grpc.ClientConn)}
	link := n.insideLink().link
	var err error
	p.server, err = console.Listen(ctx, console.Options{
		Address: n.cfg.Console.Listen, Listen: n.environment.Listen, TLS: portTLS(n.secrets.console),
		Node: n.cfg.Node.Name, Logger: n.log.Named("console"),
		Link: link, Other: func(address string) (grpc.ClientConnInterface, error) {
			return p.other(n, address)
		},
		OtherStatus: func(ctx context.Context, address string) (*pb.GetStatusResponse, error) {
			return n.peers.Status(ctx, address)
		},
		Anonymous: config.OnlyThisMachine(n.cfg.Console.Listen) && !n.cfg.Console.TLS.On() && !n.wantsCertificate(),
		//nolint:contextcheck // it carries the address only
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

// wantsCertificate tells whether nobody may call without a certificate.
func (n *node) wantsCertificate() bool {
	return n.cfg.TLS.On() && n.cfg.TLS.ClientAuth != config.ClientAuthNone
}

// other is a connection to the node at an address that shows nothing of this node, so that a call over it has the
// rights of the token that it shows, and no others.
func (p *consolePort) other(n *node, address string) (grpc.ClientConnInterface, error) {
	if n.wantsCertificate() {
		return nil, console.ErrNotForwarded
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.others[address]; c != nil {
		return c, nil
	}
	for a, c := range p.others {
		if len(p.others) < maxOthers {
			break
		}
		_ = c.Close() // its calls are answered with that
		delete(p.others, a)
	}
	secure := insecure.NewCredentials()
	if n.secrets.own != nil {
		secure = n.secrets.own.CheckOnly()
	}
	c, err := grpc.NewClient("passthrough:///"+address,
		n.environment.dialOptions([]grpc.DialOption{grpc.WithTransportCredentials(secure)})...)
	if err != nil {
		return nil, fmt.Errorf("connect to the other node at %s: %w", address, err)
	}
	p.others[address] = c
	return c, nil
}

// run serves the console until ctx ends.
func (p *consolePort) run(ctx context.Context, n *node) {
	n.inside.users.Go(func() {
		if err := p.server.Run(ctx); err != nil {
			n.log.Error("the console cannot be served any more", zap.Error(err)) // no reason to stop serving
		}
	})
}

// close gives everything back.
func (p *consolePort) close() {
	p.server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.others {
		_ = c.Close()
	}
}
