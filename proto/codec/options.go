// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
)

// DialOptions makes a connection use the codec for all calls, and its buffers for received data: gRPC zeroes its own
// before each use.
func DialOptions() []grpc.DialOption {
	c := newCodec()
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.ForceCodecV2(c)), experimental.WithBufferPool(c.buffers)}
}

// BulkDialOptions is DialOptions for a connection with one call with large messages, up to the given size, that are
// received directly into their final memory.
func BulkDialOptions(most int) []grpc.DialOption {
	c := newCodec()
	c.places = newPlaces(most)
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.ForceCodecV2(c)), experimental.WithBufferPool(c.places)}
}

// ServerOptions is DialOptions for a server.
func ServerOptions() []grpc.ServerOption {
	c := newCodec()
	return []grpc.ServerOption{grpc.ForceServerCodecV2(c), experimental.BufferPool(c.buffers)}
}

// MarkingServerOptions is ServerOptions for a server with handlers that call Undecodable for each request: without it
// gRPC ends the call with INTERNAL before the handler runs.
func MarkingServerOptions() []grpc.ServerOption {
	c := newCodec()
	c.marks = true
	return []grpc.ServerOption{grpc.ForceServerCodecV2(c), experimental.BufferPool(c.buffers)}
}
