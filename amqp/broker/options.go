// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/tls"
	"net"

	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Options configures a Server. All fields except TLS and Forward are required.
type Options struct {
	Listener    net.Listener // closed by the Server
	TLS         *tls.Config  // nil: connections are not encrypted
	ContainerID string       // AMQP container ID of this node
	Version     string       // version of the software
	// Services is the connection to the node's gRPC services. Messages are not modified after they were passed to it.
	Services grpc.ClientConnInterface
	// Enter registers a client. Until leave is called, calls with the context returned by as are attributed to it.
	Enter func(Client) (as func(context.Context) context.Context, leave func())
	// Hello receives the self-reported name of a client.
	Hello func(of net.Addr, name string)
	// Role returns the role of this node, and a channel that signals a change.
	Role func() (Role, <-chan struct{})
	// AutoCreate reports whether missing queues that a link names are created, if the client may manage them.
	AutoCreate func() bool
	// Forward returns the connections of a client to all pairs of the fleet, or nil without a fleet. Optional.
	Forward             func(Client) Forwarder
	MaxMessageBytes     int
	MaxTransactionBytes int // limit of all publishes in the open transactions of a connection
	Logger              *zap.Logger
}

// Client is the network address and TLS state of a client.
type Client struct {
	Address net.Addr
	TLS     *tls.ConnectionState // nil without TLS
}

// Role is the role of a node as seen by its clients.
type Role struct {
	Active        bool
	ActiveAddress string // AMQP address (host:port) of the active node; empty if unknown
	Replica       bool   // the pair is a replica of another site: none of its nodes serves clients
}
