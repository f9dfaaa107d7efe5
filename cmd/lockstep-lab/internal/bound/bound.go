// SPDX-License-Identifier: Apache-2.0

// Package bound measures an upper bound for the message rate of a pair: processes that only relay messages. A client
// sends messages to a first relay, which forwards them to a second one. The responses take the reverse path, like the
// responses of a standby and its active.
//
// The relays are separate processes. Messages are sent in gRPC streams like those of the product (Transport GRPC), or
// length-prefixed over TCP (TCP). With Sync, each relay writes received messages to a file, and syncs the file before
// it responds. relay.go implements the relay, load.go the client; tcp.go and grpc.go are the transports.
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

// Transport is the protocol between the processes.
type Transport string

// The transports.
const (
	// GRPC sends each message as one message of a gRPC stream.
	GRPC Transport = "grpc"
	// TCP sends a length and the message.
	TCP Transport = "tcp"
)

const maxMessage = 64 << 20

// A conn transfers whole messages in both directions. One goroutine may send while another one receives.
type conn interface {
	io.Closer
	// send sends a message. It may be buffered until flush.
	send(m message) error
	flush() error
	// receive waits for a message, which is valid until the next call.
	receive() (message, error)
	// waiting reports whether receive is known to return a message without waiting.
	waiting() bool
}

type listener interface {
	// serve calls handle for each connection, in a new goroutine, until close.
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
	return nil, fmt.Errorf("unknown transport %q; the transports are %s and %s", t, GRPC, TCP)
}

// dial connects to a relay. The end of ctx closes a gRPC connection, but not a TCP connection.
func dial(ctx context.Context, t Transport, address string) (conn, error) {
	if t == TCP {
		return dialTCP(ctx, address)
	}
	return dialGRPC(ctx, address)
}

// isEnd reports whether an error means that one side has closed the connection.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || status.Code(err) == codes.Canceled
}
