// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Request makes an administrative call idempotent, so that it can be retried after [client.ErrOutcomeUnknown]. With
// the same Request, the call is executed at most once, and a retry returns the original result. Without a Request, a
// second call is a new request: it may purge messages that were published in the meantime, or delete a queue that was
// created again.
//
//	var r admin.Request
//	_, err := adm.As(&r).PurgeQueue(ctx, "orders", "")
//	for errors.Is(err, client.ErrOutcomeUnknown) && !errors.Is(err, client.ErrOutcomeLost) {
//		_, err = adm.As(&r).PurgeQueue(anotherContext(), "orders", "")
//	}
//
// The zero Request is ready for use. A Request belongs to one call of one client, and to its retries with the same
// arguments. A Request is not safe for concurrent use. Nodes of release 0.1.0 do not support a Request: they execute
// a retry again.
type Request struct {
	conns    link.Conns
	identity link.Identity
	sent     proto.Message // the last attempt; a retry must be equal while the outcome is unknown
	done     bool
	parts    []Request // of the partitions of a partitioned queue
}

// As returns a client that makes its calls as attempts of r. r affects only calls that change queues, subscriptions,
// access rules, policies or schedules.
func (c *Client) As(r *Request) *Client { return &Client{conns: c.conns, request: r, atHome: c.atHome} }

func (r *Request) begin(c *Client, op string, req proto.Message) error {
	if r.identity == nil {
		r.identity = c.conns.NewIdentity()
	}
	switch {
	case r.done:
		return fmt.Errorf("%s: %w: the Request was already executed; use a new one for each call", op,
			client.ErrInvalid)
	case !r.identity.OutcomeUnknown():
		r.conns, r.sent = c.conns, req
	case r.conns != c.conns || !proto.Equal(r.sent, req):
		return fmt.Errorf("%s: %w: the Request belongs to another call with an unknown outcome: retry that call, or "+
			"use a new Request; %w",
			op, client.ErrInvalid, client.ErrOutcomeUnknown)
	}
	return nil
}

// change makes one call that changes state on the active node, under the identity of c.request or a new identity.
func change[Req any, Resp any, R interface {
	*Req
	proto.Message
}](
	ctx context.Context, c *Client, op string, req R,
	method func(pb.QueueServiceClient, context.Context, R, ...grpc.CallOption) (*Resp, error),
) (resp *Resp, err error) {
	return changeBy(ctx, c, op, req, queues, method)
}

func changeBy[Req any, Resp any, Service any, R interface {
	*Req
	proto.Message
}](
	ctx context.Context, c *Client, op string, req R, service func(*grpc.ClientConn) Service,
	method func(Service, context.Context, R, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	return changeAt(ctx, c, op, targetOf(req), req, service, method)
}

func changeAt[Req any, Resp any, Service any, R interface {
	*Req
	proto.Message
}](
	ctx context.Context, c *Client, op string, at link.Target, req R, service func(*grpc.ClientConn) Service,
	method func(Service, context.Context, R, ...grpc.CallOption) (*Resp, error),
) (resp *Resp, err error) {
	r := c.request
	if r == nil {
		r = &Request{}
	}
	if err := r.begin(c, op, req); err != nil {
		return nil, err
	}
	call := func(ctx context.Context, cc *grpc.ClientConn, p *pb.Producer) (err error) {
		attempt := proto.CloneOf(req)
		setProducer(attempt.ProtoReflect(), p)
		resp, err = method(service(cc), ctx, attempt)
		return err
	}
	err = c.conns.Change(ctx, op, at, r.identity, call)
	r.done = err == nil
	return resp, err
}

func setProducer(m protoreflect.Message, p *pb.Producer) {
	m.Set(m.Descriptor().Fields().ByName("producer"), protoreflect.ValueOfMessage(p.ProtoReflect()))
}

// doneBefore reports whether err is the given refusal and means that an earlier attempt was probably executed, by a
// node without support for identities. Other nodes return the original result or record the refusal.
func doneBefore(err, refusal error) bool {
	return errors.Is(err, refusal) && errors.Is(err, client.ErrOutcomeUnknown)
}
