// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/proto/codec"
	"github.com/lockstep-mq/lockstep/server/wire"
)

// AlarmService is the name under which the gRPC health service tells whether an operator should look: NOT_SERVING while
// a condition is a warning or critical.
const AlarmService = "lockstep.alarm"

// Registrar is a server whose services answer a request that is no protobuf with INVALID_ARGUMENT: gRPC calls it
// INTERNAL, as if the node were to blame, and as if another attempt could do better. gRPC ends a call whose request its
// codec refuses, so the server must have codec.MarkingServerOptions, which marks the request instead, and all services
// must be registered here: the handlers refuse what is marked.
type Registrar struct{ *grpc.Server }

// RegisterService registers a copy of desc whose handlers look at what they receive.
func (r Registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Methods, own.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i := range own.Methods {
		own.Methods[i].Handler = unary(own.Methods[i].Handler)
	}
	for i := range own.Streams {
		handle := own.Streams[i].Handler
		own.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
			return handle(srv,
				&checkedStream{stream})
		}
	}
	r.Server.RegisterService(&own, impl)
}

// unary makes the handler of one method. What it needs for a call is used again, so that a call costs no memory for it.
func unary(handle grpc.MethodHandler) grpc.MethodHandler {
	requests := &sync.Pool{New: func() any {
		r := &checkedRequest{}
		r.check = r.decode
		return r
	}}
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any,
		error,
	) {
		r, _ := requests.Get().(*checkedRequest)
		r.dec = dec
		resp, err := handle(srv, ctx, r.check, interceptor)
		r.dec = nil
		requests.Put(r)
		return resp, err
	}
}

// checkedRequest decodes one request.
type checkedRequest struct {
	dec   func(any) error
	check func(any) error // decode
}

func (r *checkedRequest) decode(v any) error {
	if err := r.dec(v); err != nil {
		return err
	}
	return checkDecoded(v)
}

// checkedStream looks at each request of a stream.
type checkedStream struct{ grpc.ServerStream }

// RecvMsg receives a request.
func (s *checkedStream) RecvMsg(v any) error {
	if err := s.ServerStream.RecvMsg(v); err != nil {
		return err //nolint:wrapcheck // it is gRPC's
	}
	return checkDecoded(v)
}

func checkDecoded(v any) error {
	name, bad := codec.Undecodable(v)
	if !bad {
		return nil
	}
	return wire.Undecodable(string(name))
}
