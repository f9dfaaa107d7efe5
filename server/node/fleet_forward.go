// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/amqp/broker"
	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/auth/authn"
	"github.com/lockstep-mq/lockstep/server/console"
	"github.com/lockstep-mq/lockstep/server/forward"
	"github.com/lockstep-mq/lockstep/server/ops/mover"
	"github.com/lockstep-mq/lockstep/server/peerclient"
)

const (
	// amqpForwardWait and consoleForwardWait limit the time for which a unary call waits for the active node of another
	// pair.
	amqpForwardWait    = 15 * time.Second
	consoleForwardWait = 2 * time.Second
	forwardPing        = 10 * time.Second
	forwardPingTimeout = 5 * time.Second
	// forwardStreamBytes and forwardBytes are the windows for received data of a stream and of a connection.
	forwardStreamBytes = 1 << 20
	forwardBytes       = 4 << 20
	maxPairAddresses   = 64 // connections of the console to nodes of other pairs
)

// forwardAuthenticator returns the authenticator of calls that nodes of other pairs have forwarded. It returns nil
// without a fleet.
func (n *node) forwardAuthenticator() *forward.Authenticator {
	if n.fleet == nil {
		return nil
	}
	return &forward.Authenticator{Node: n.isFleetNode, Token: n.authn.Authenticate}
}

// isFleetNode reports whether the sender of a call is a node of a pair of the fleet. Such a node sends the secret of
// the fleet, or its connection has the right to operate this pair, as for moves.
func (n *node) isFleetNode(ctx context.Context) bool {
	if tokens := n.secrets.fleetToken; tokens != nil && peerclient.Sent(ctx, mover.TokenKey, tokens) {
		return true
	}
	id, err := authn.Connection(ctx)
	return err == nil && n.rules.May(id, access.Operate, "") == nil
}

// dialPair connects to a node of another pair, with the certificate of this node and the secret of the fleet. Calls
// must be sent over a forward.Client.
func (n *node) dialPair(address string) (*grpc.ClientConn, error) {
	options := slices.Concat([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: forwardPing, Timeout: forwardPingTimeout}),
		grpc.WithInitialWindowSize(forwardStreamBytes), grpc.WithInitialConnWindowSize(forwardBytes),
	}, codec.DialOptions(), mover.DialOptions(n.secrets.own, n.secrets.fleetToken))
	c, err := grpc.NewClient("passthrough:///"+address, n.environment.dialOptions(options)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return c, nil
}

func (n *node) forwardOptions(home grpc.ClientConnInterface) forward.Options {
	return forward.Options{
		Pair: n.cfg.Fleet.Pair, Node: cmp.Or(n.cfg.Node.Name, n.advertise), Home: home, Pairs: n.otherPairs,
	}
}

// callerOf returns the caller of calls with the context ctx over a connection to this pair.
func callerOf(ctx context.Context, home grpc.ClientConnInterface, address net.Addr) (forward.Caller, error) {
	c := forward.Caller{Address: address.String()}
	md, _ := metadata.FromOutgoingContext(ctx)
	if values := md.Get("authorization"); len(values) > 0 {
		token, is := strings.CutPrefix(values[0], "Bearer ")
		if !is || len(values) > 1 {
			return c, fmt.Errorf("%w: credentials cannot be forwarded", access.ErrUnauthenticated)
		}
		c.Token = token
		return c, nil
	}
	who, err := pb.NewAccessServiceClient(home).WhoAmI(ctx, &pb.WhoAmIRequest{})
	if err != nil {
		return c, err
	}
	switch who.GetMethod() {
	case access.MethodCertificate.String():
		c.Principal, c.Groups = who.GetPrincipal(), who.GetGroups()
	case access.MethodNone.String():
		c.Principal = access.Anonymous
	default:
		return c, fmt.Errorf("%w: callers with %s cannot be forwarded", access.ErrUnauthenticated, who.GetMethod())
	}
	return c, nil
}

// otherPairs returns the other pairs of the fleet that have an address, from the copy of the directory.
func (n *node) otherPairs() (list []*pb.NotOwner) {
	d := n.fleet.Directory()
	if d == nil {
		return nil
	}
	for _, p := range d.Pairs() {
		if p.Name != n.cfg.Fleet.Pair && len(p.Addresses) > 0 {
			list = append(list, &pb.NotOwner{Pair: p.Name, Addresses: p.Addresses})
		}
	}
	return list
}

// forwardAMQP returns the connections of an AMQP client to all pairs. It returns nil without a fleet.
func (n *node) forwardAMQP(c broker.Client) broker.Forwarder {
	if n.fleet == nil {
		return nil
	}
	o := n.forwardOptions(n.inProcess.link)
	o.Wait = amqpForwardWait
	o.Dial = func(address string) (forward.Conn, error) { return n.dialPair(address) }
	o.Caller = func(ctx context.Context) (forward.Caller, error) { return callerOf(ctx, n.inProcess.link, c.Address) }
	return forward.New(o)
}

// sharedConn is a connection that the sessions of the console share.
type sharedConn struct{ *grpc.ClientConn }

// Close implements forward.Conn. It does nothing.
func (sharedConn) Close() error { return nil }

// forwardConsole returns the function that connects sessions of the console to all pairs. It returns nil without a
// fleet.
func (n *node) forwardConsole(
	p *consolePort,
) func(home grpc.ClientConnInterface, caller func(context.Context) (console.Caller, error)) console.Fleet {
	if n.cfg.Fleet.Pair == "" {
		return nil
	}
	return func(home grpc.ClientConnInterface, caller func(context.Context) (console.Caller, error)) console.Fleet {
		o := n.forwardOptions(home)
		o.Wait = consoleForwardWait
		o.Caller = func(ctx context.Context) (forward.Caller, error) {
			c, err := caller(ctx)
			return forward.Caller(c), err
		}
		o.Dial = func(address string) (forward.Conn, error) { return p.otherPair(n, address) }
		return forward.New(o)
	}
}

// otherPair returns the connection of the console to a node of another pair. It replaces a failed connection. If too
// many connections exist, it closes some of them.
func (p *consolePort) otherPair(n *node, address string) (forward.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.pairs[address]
	if c != nil && c.GetState() != connectivity.TransientFailure {
		return sharedConn{c}, nil
	}
	if c != nil {
		_ = c.Close() // until its next attempt succeeds, it would return the error of the last one
		delete(p.pairs, address)
	}
	for a, c := range p.pairs {
		if len(p.pairs) < maxPairAddresses {
			break
		}
		_ = c.Close() // calls in progress fail
		delete(p.pairs, a)
	}
	c, err := n.dialPair(address)
	if err != nil {
		return nil, err
	}
	p.pairs[address] = c
	return sharedConn{c}, nil
}
