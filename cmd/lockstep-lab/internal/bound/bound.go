// SPDX-License-Identifier: Apache-2.0

// Package bound measures what a pair could do at most if nothing was stored: a client sends messages to a first relay,
// that sends them on to a second one, and the answers come back the same way, as those of an active and its standby do.
//
// The relays are processes of their own. Messages go in gRPC streams, as those of the product do (Transport GRPC), or
// with nothing but a length before each over TCP (TCP). With Sync, both relays write what they receive to a file, and
// sync it before they answer. relay.go is what a relay does, load.go the client; tcp.go and grpc.go are the transports.
package bound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Transport is how messages go from one process to the next.
type Transport string

// The transports.
const (
	// GRPC is one message of a gRPC stream for each.
	GRPC Transport = "grpc"
	// TCP is a length and the message.
	TCP Transport = "tcp"
)

// maxMessage is the most bytes that a message can have.
const maxMessage = 64 << 20

// A conn carries whole messages in both directions. One goroutine may send while another one receives.
type conn interface {
	io.Closer
	// send takes a message; it may wait in a buffer until flush.
	send(m message) error
	// flush has all that was sent go.
	flush() error
	// receive waits for a message, which is valid until the next call.
	receive() (message, error)
	// waiting tells whether a whole message has arrived already, as far as that is known.
	waiting() bool
}

// listener takes the connections of a transport.
type listener interface {
	// serve calls handle for each connection, in a goroutine of its own, until close.
	serve(handle func(conn)) error
	address() string
}

func listen(t Transport) (listener, error) {
	switch t {
	case TCP:
		return listenTCP()
	case GRPC:
		return listenGRPC()
	}
	return nil, fmt.Errorf("unknown transport %q: there are %s and %s", t, GRPC, TCP)
}

// dial connects to a relay. The connection may end with ctx.
func dial(ctx context.Context, t Transport, address string) (conn, error) {
	if t == TCP {
		return dialTCP(ctx, address)
	}
	return dialGRPC(ctx, address)
}

// isEnd tells whether an error only says that the other side has ended the connection.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || status.Code(err) == codes.Canceled
}
