// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/tls"
	"net"

	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Options of New. All fields are needed but for those that say otherwise.
type Options struct {
	// Listener has the connections. The Server closes it.
	Listener net.Listener
	// TLS of the connections; nil: none.
	TLS *tls.Config
	// ContainerID names this node to its clients, and Version the software.
	ContainerID, Version string
	// Services are the node's own. What is sent to them is not changed afterwards, and what comes from them is not
	// changed at all.
	Services grpc.ClientConnInterface
	// Enter makes a client known to the services. Until leave is called, calls with the context that as returns are the
	// client's.
	Enter func(Client) (as func(context.Context) context.Context, leave func())
	// Introduce is told what the client at the other end of a connection calls itself.
	Introduce func(of net.Addr, name string)
	// Role tells whether this node serves clients, and when to ask again.
	Role func() (Role, <-chan struct{})
	// AutoCreate: queues are made that a link names and that are not there, if the client may manage them.
	AutoCreate func() bool
	// MaxMessageBytes is the largest message that is taken in.
	MaxMessageBytes int
	// MaxTransactionBytes is how many bytes the open transactions of a connection may publish.
	MaxTransactionBytes int
	// Logger of the server.
	Logger *zap.Logger
}

// Client is where a client is, and what it has shown.
type Client struct {
	// Address of its end of the connection.
	Address net.Addr
	// TLS of the connection; nil without.
	TLS *tls.ConnectionState
}

// Role is what a node is to its clients.
type Role struct {
	// Active: it serves them.
	Active bool
	// Elsewhere is where clients that speak AMQP find the active node, host:port; empty if that is not known.
	Elsewhere string
	// Others are such addresses of the nodes of the pair, for clients that look for another one later.
	Others []string
}
