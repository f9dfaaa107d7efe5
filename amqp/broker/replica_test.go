// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// replica is a node that refuses clients after they have connected, because another site has become the primary.
type replica struct {
	*store

	singly bool // refuses each publish instead of the stream
	attach bool // refuses the calls for new links
}

var errReplica = refused(codes.FailedPrecondition, "REPLICA")

func (r *replica) GetQueue(ctx context.Context, req *pb.GetQueueRequest) (*pb.GetQueueResponse, error) {
	if r.attach {
		return nil, errReplica
	}
	return r.store.GetQueue(ctx, req)
}

func (r *replica) PublishStream(
	stream grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse],
) error {
	for {
		req, err := stream.Recv()
		if err != nil || !r.singly {
			return errors.Join(err, errReplica)
		}
		for _, one := range append([]*pb.PublishStreamRequest{req}, req.GetMore()...) {
			if err := stream.Send(&pb.PublishStreamResponse{
				Correlation: one.GetCorrelation(),
				Error:       &pb.RequestError{Code: uint32(codes.FailedPrecondition), Reason: "REPLICA"},
			}); err != nil {
				return err
			}
		}
	}
}

func (*replica) Consume(stream grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(&pb.ConsumeResponse{Attached: true, QueueId: 1}); err != nil {
		return err
	}
	return errReplica
}

// When the site is no longer the primary, the connection is closed, so that the client sends its messages to the other
// site. No message is rejected, and no link is detached with an error.
func TestSiteNoLongerPrimary(t *testing.T) {
	publishes := func(p *peer) {
		p.attachSender(0, &wire.Node{Address: "q"})
		p.write(transfers(0, 0, 1, false, nil))
	}
	consumes := func(p *peer) {
		p.write(wire.AppendFrame(nil, 0, &wire.Attach{
			Name: "r", Handle: 0, Role: wire.RoleReceiver, Source: &wire.Source{Address: "q"},
			Target: &wire.Node{Address: "here"},
		}, nil))
	}
	for name, c := range map[string]struct {
		replica replica
		use     func(p *peer)
	}{
		"sender": {replica{attach: true}, func(p *peer) {
			p.write(wire.AppendFrame(nil, 0, &wire.Attach{
				Name: "s", Role: wire.RoleSender, Source: &wire.Source{}, Target: &wire.Node{Address: "q"},
				InitialDeliveryCount: wire.Some(uint32(0)),
			}, nil))
		}},
		"receiver":       {replica{attach: true}, consumes},
		"publish stream": {replica{}, publishes},
		"publish":        {replica{singly: true}, publishes},
		"consumer":       {replica{}, consumes},
		"commit": {replica{}, func(p *peer) {
			p.attachSender(0, &wire.Coordinator{})
			p.attachSender(1, &wire.Node{Address: "q"})
			id := p.declare(0, 0)
			p.write(transfers(1, 1, 1, true, &wire.TransactionalState{TxnID: id}))
			p.write(discharge(0, 2, id))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newStore("q").open()
				n.commitErrors = []error{errReplica}
				r := c.replica
				r.store = n
				s, _, stop := serveFor(t, &r, autoCreate)
				defer stop()
				p := dialAs(t, s, "c", wire.Fields{{Key: wire.Symbol("product"), Value: "QpidJMS"}})
				c.use(p)
				p.requireForced()
			})
		})
	}
}

// requireForced reads frames up to the close, which requests a reconnect. No outcome may precede it.
func (p *peer) requireForced() {
	p.t.Helper()
	for {
		var f wire.Frame
		require.NoError(p.t, p.in.Next(&f))
		switch body := f.Body.(type) {
		case *wire.Disposition:
			require.Nil(p.t, body.State)
		case *wire.Detach:
			require.Nil(p.t, body.Error)
		case *wire.Close:
			require.NotNil(p.t, body.Error)
			require.Equal(p.t, session.ConnectionForced, body.Error.Condition)
			return
		}
	}
}
