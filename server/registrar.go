// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/proto/codec"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
)

// AlarmService is the name under which the gRPC health service reports alarms. Its status is NOT_SERVING while a
// condition is a warning or critical.
const AlarmService = "lockstep.alarm"

// Services is a gRPC server or an in-process link.
type Services interface {
	grpc.ServiceRegistrar

	GetServiceInfo() map[string]grpc.ServiceInfo
}

// Registrar registers services so that requests that cannot be decoded are answered with INVALID_ARGUMENT. The server
// must use codec.MarkingServerOptions. All services must be registered with a Registrar.
type Registrar struct {
	Services

	// Interceptor authenticates and authorizes all calls.
	Interceptor *auth.Interceptor
}

// RegisterService registers a copy of desc. The handlers of the copy authorize each call and reject marked
// requests.
func (r Registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Methods, own.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i := range own.Methods {
		m := &own.Methods[i]
		m.Handler = r.unary(methodOf(desc, m.MethodName), m.Handler)
	}
	for i := range own.Streams {
		m := &own.Streams[i]
		m.Handler = r.stream(methodOf(desc, m.StreamName), m.Handler)
	}
	r.Services.RegisterService(&own, impl)
}

type method struct {
	name string // includes the service name
	// anonymous is set if the method requires no authentication. forPeer is set if only the other node may call it.
	anonymous, forPeer bool
}

func methodOf(desc *grpc.ServiceDesc, name string) method {
	m := method{name: "/" + desc.ServiceName + "/" + name}
	need, _ := access.NeedOf(m.name)
	m.anonymous, m.forPeer = need.Unauthenticated, need.Right == access.Peer
	return m
}

// enter calls the auth interceptor. In the connection of the call, it records a failed authentication or, unless the
// method requires no authentication, the caller. It also reports whether the call is audited.
func (r Registrar) enter(ctx context.Context, m *method) (context.Context, bool, error) {
	inner, audited, err := r.Interceptor.Begin(ctx, m.name)
	switch {
	case err != nil && status.Code(err) == codes.Unauthenticated:
		admission.FromContext(ctx).AuthenticationFailed()
	case err == nil && !m.anonymous:
		conn := admission.FromContext(ctx)
		conn.Authenticated(m.forPeer)
		id := access.FromContext(inner)
		conn.SetCaller(id.Principal, id.Authentication(), id.Peer || m.forPeer, func() (client, tlsVersion string) {
			return about(ctx)
		})
	}
	return inner, audited, err
}

func about(ctx context.Context) (client, tlsVersion string) {
	if agent := metadata.ValueFromIncomingContext(ctx, "user-agent"); len(agent) > 0 {
		client = agent[0]
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			tlsVersion = tls.VersionName(info.State.Version)
		}
	}
	return client, tlsVersion
}

// unary creates the handler of a unary method. The handler reuses the objects that each call needs.
func (r Registrar) unary(m method, handle grpc.MethodHandler) grpc.MethodHandler {
	requests := &sync.Pool{New: func() any {
		c := &checkedRequest{}
		c.check = c.decode
		return c
	}}
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any,
		error,
	) {
		ctx, audited, err := r.enter(ctx, &m)
		if err != nil {
			return nil, err
		}
		incoming := admission.IncomingFromContext(ctx)
		incoming.Begin()
		defer incoming.End()
		c, _ := requests.Get().(*checkedRequest)
		c.dec, c.incoming = dec, incoming
		var start time.Time
		if audited {
			start = time.Now()
		}
		resp, err := handle(srv, ctx, c.check, interceptor)
		if audited || err != nil {
			r.Interceptor.Finish(ctx, m.name, c.request, start, err)
		}
		c.dec, c.request, c.incoming = nil, nil, nil
		requests.Put(c)
		return resp, err
	}
}

func (r Registrar) stream(m method, handle grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		ctx, audited, err := r.enter(stream.Context(), &m)
		if err != nil {
			return err
		}
		if m.anonymous {
			conn := admission.FromContext(ctx)
			conn.Begin()
			defer conn.End()
		}
		var start time.Time
		if audited {
			start = time.Now()
		}
		incoming := admission.IncomingFromContext(ctx)
		incoming.Begin()
		defer incoming.End()
		s := &checkedStream{ServerStream: stream, keep: audited, incoming: incoming}
		err = r.Interceptor.RunStream(ctx, m.name, func(ctx context.Context) error {
			s.ctx = ctx
			return handle(srv, s)
		})
		if audited || err != nil {
			r.Interceptor.Finish(ctx, m.name, s.request(), start, err)
		}
		return err
	}
}

type checkedRequest struct {
	dec      func(any) error
	check    func(any) error // method value of decode, created once for each pooled object
	request  any
	incoming *admission.Incoming
}

func (r *checkedRequest) decode(v any) error {
	if err := r.dec(v); err != nil {
		return err
	}
	r.incoming.Received()
	r.request = v
	return checkDecoded(v)
}

type checkedStream struct {
	grpc.ServerStream

	ctx      context.Context //nolint:containedctx // the stream's context with the caller's identity
	keep     bool            // keep the first request for the audit log
	first    atomic.Pointer[any]
	incoming *admission.Incoming
	last     codec.Counted
}

// request returns the first request. It returns nil if no request was received yet, or if requests are not kept.
func (s *checkedStream) request() any {
	if first := s.first.Load(); first != nil {
		return *first
	}
	return nil
}

// Context returns the stream's context with the identity of the caller.
func (s *checkedStream) Context() context.Context { return s.ctx }

// RecvMsg receives a request. The handler calls it only when it has processed the previous request.
func (s *checkedStream) RecvMsg(v any) error {
	if err := s.receive(v); err != nil {
		return err
	}
	if s.keep {
		first := v
		s.first.CompareAndSwap(nil, &first)
	}
	return checkDecoded(v)
}

func (s *checkedStream) receive(v any) error {
	if s.incoming == nil {
		return s.ServerStream.RecvMsg(v) //nolint:wrapcheck // a status of gRPC
	}
	s.incoming.Consumed(s.last.Bytes)
	s.last = codec.Counted{Message: v}
	err := s.ServerStream.RecvMsg(&s.last)
	s.last.Message = nil
	return err //nolint:wrapcheck // a status of gRPC
}

func checkDecoded(v any) error {
	name, bad := codec.Undecodable(v)
	if !bad {
		return nil
	}
	return apierror.Undecodable(string(name))
}
