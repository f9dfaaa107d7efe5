// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/tls"
	"net"

	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Options of New. All fields are required unless stated otherwise.
type Options struct {
	// Listener accepts the connections. The Server closes it.
	Listener net.Listener
	// TLS of the connections; if nil, connections are not encrypted.
	TLS *tls.Config
	// ContainerID identifies this node to its clients. Version is the software version.
	ContainerID, Version string
	// Services is the connection to the node's own gRPC services. Messages passed in either direction are not modified
	// afterwards.
	Services grpc.ClientConnInterface
	// Enter registers a client with the services. Until leave is called, calls with the context returned by as are
	// attributed to the client.
	Enter func(Client) (as func(context.Context) context.Context, leave func())
	// Hello receives the self-reported name of the client at the other end of a connection.
	Hello func(of net.Addr, name string)
	// Role returns the role of this node, and a channel that signals a change.
	Role func() (Role, <-chan struct{})
	// AutoCreate reports whether missing queues named by a link are created, if the client may manage them.
	AutoCreate func() bool
	// MaxMessageBytes is the maximum size of a message.
	MaxMessageBytes int
	// MaxTransactionBytes is the maximum size of all publishes in the open transactions of a connection.
	MaxTransactionBytes int
	// Logger of the server.
	Logger *zap.Logger
}

// Client is the network address and TLS state of a client.
type Client struct {
	// Address of the client's end of the connection.
	Address net.Addr
	// TLS state of the connection; nil without TLS.
	TLS *tls.ConnectionState
}

// Role is the role of a node as seen by its clients.
type Role struct {
	// Active reports whether the node serves clients.
	Active bool
	// ActiveAddress is the AMQP address of the active node, host:port; empty if unknown.
	ActiveAddress string
	// Others are the AMQP addresses of the nodes of the pair, for clients that reconnect later.
	Others []string
}
