// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
)

// DialOptions have a connection use the codec for all calls, and its buffers for what it receives: gRPC's own are set
// to zero before each use.
func DialOptions() []grpc.DialOption {
	c := newCodec()
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.ForceCodecV2(c)), experimental.WithBufferPool(c.buffers)}
}

// BulkDialOptions are DialOptions for a connection that brings large messages of one call, of at most so many bytes,
// which are kept: they are received where they stay.
func BulkDialOptions(most int) []grpc.DialOption {
	c := newCodec()
	c.places = newPlaces(most)
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.ForceCodecV2(c)), experimental.WithBufferPool(c.places)}
}

// ServerOptions are DialOptions for a server.
func ServerOptions() []grpc.ServerOption {
	c := newCodec()
	return []grpc.ServerOption{grpc.ForceServerCodecV2(c), experimental.BufferPool(c.buffers)}
}

// MarkingServerOptions are ServerOptions for a server whose handlers ask Undecodable of each request: gRPC would end
// the call, with INTERNAL, before they could say anything.
func MarkingServerOptions() []grpc.ServerOption {
	c := newCodec()
	c.marks = true
	return []grpc.ServerOption{grpc.ForceServerCodecV2(c), experimental.BufferPool(c.buffers)}
}
