// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Request makes an administrative call one that can be made again after ErrOutcomeUnknown: with the same Request, the
// call is answered with the original result, and is carried out once at most. Without one, a call that ended with
// ErrOutcomeUnknown and is made again is another request, which may purge what was published meanwhile, or delete a
// queue that was made anew.
//
//	var r client.Request
//	_, err := c.PurgeQueue(ctx, "orders", "", &r)
//	for errors.Is(err, client.ErrOutcomeUnknown) && !errors.Is(err, client.ErrOutcomeLost) {
//		_, err = c.PurgeQueue(anotherContext(), "orders", "", &r)
//	}
//
// The zero Request is ready for use. It is for one call and its repetitions, with the same arguments, of one client; a
// refused one may be made again as a new attempt. Not safe for concurrent use.
//
// Nodes up to 0.1.0 know no identities: they carry a repetition out once more.
type Request struct {
	client   *Client
	identity identity
	sent     proto.Message // while its outcome is in doubt
	done     bool
}

// begin checks that req may be sent under r.
func (r *Request) begin(c *Client, op string, req proto.Message) error {
	switch {
	case r.done:
		return fmt.Errorf("%s: %w: the Request was carried out already; use another one for another call", op,
			ErrInvalid)
	case !r.identity.inDoubt():
		r.client, r.sent = c, req
	case r.client != c || !proto.Equal(r.sent, req):
		return fmt.Errorf("%s: %w: the Request is in use for another call, whose outcome is unknown; repeat that, or "+
			"use another Request; %w",
			op, ErrInvalid, ErrOutcomeUnknown)
	}
	return nil
}

// change makes one call on the active node that changes something, under an identity of its own or the one of as.
func change[Req any, Resp any, R interface {
	*Req
	proto.Message
}](
	ctx context.Context, c *Client, op string, req R, as []*Request,
	method func(pb.QueueServiceClient, context.Context, R, ...grpc.CallOption) (*Resp, error),
) (resp *Resp, err error) {
	return changeBy(ctx, c, op, req, as, queues, method)
}

// changeBy is change with any service.
func changeBy[Req any, Resp any, Service any, R interface {
	*Req
	proto.Message
}](
	ctx context.Context, c *Client, op string, req R, as []*Request, service func(*grpc.ClientConn) Service,
	method func(Service, context.Context, R, ...grpc.CallOption) (*Resp, error),
) (resp *Resp, err error) {
	r := &Request{}
	if len(as) > 1 {
		return nil, fmt.Errorf("%s: %w: %d Requests for one call", op, ErrInvalid, len(as))
	} else if len(as) == 1 && as[0] != nil {
		r = as[0]
	}
	if err := r.begin(c, op, req); err != nil {
		return nil, err
	}
	err = c.doAs(ctx, op, &r.identity, func(ctx context.Context, cc *grpc.ClientConn, p *pb.Producer) (err error) {
		attempt := proto.CloneOf(req)
		setProducer(attempt.ProtoReflect(), p)
		resp, err = method(service(cc), ctx, attempt)
		return err
	})
	r.done = err == nil
	return resp, err
}

// setProducer sets the field that all requests which change something have.
func setProducer(m protoreflect.Message, p *pb.Producer) {
	m.Set(m.Descriptor().Fields().ByName("producer"), protoreflect.ValueOfMessage(p.ProtoReflect()))
}

// doneBefore tells whether a refusal means that an attempt before it was probably carried out: the node is one that
// knows no identities, since another one would have answered with the original result, or settled the refusal.
func doneBefore(err, refusal error) bool {
	return errors.Is(err, refusal) && errors.Is(err, ErrOutcomeUnknown)
}
