// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// subscriptions is a store that refuses to create and delete subscriptions.
type subscriptions struct {
	*store

	list []*pb.Subscription // subscriptions of each queue
}

func (s *subscriptions) GetQueue(context.Context, *pb.GetQueueRequest) (*pb.GetQueueResponse, error) {
	return &pb.GetQueueResponse{Queue: &pb.Queue{Subscriptions: s.list}}, nil
}

func (s *subscriptions) CreateSubscription(
	context.Context, *pb.CreateSubscriptionRequest,
) (*pb.CreateSubscriptionResponse, error) {
	return nil, refused(codes.ResourceExhausted, "TOO_MANY_SUBSCRIPTIONS")
}

func (s *subscriptions) DeleteSubscription(
	context.Context, *pb.DeleteSubscriptionRequest,
) (*pb.DeleteSubscriptionResponse, error) {
	return nil, refused(codes.PermissionDenied, "DENIED")
}

// subscribe attaches a link to a volatile shared subscription, and returns the condition with which it is refused.
func (p *peer) subscribe(handle uint32) wire.Symbol {
	p.t.Helper()
	p.write(wire.AppendFrame(nil, 0, &wire.Attach{
		Name: "s", Handle: handle, Role: wire.RoleReceiver, Target: &wire.Node{},
		Source: &wire.Source{Address: "q", Capabilities: []wire.Symbol{capTopic, capShared}},
	}, nil))
	d := next[*wire.Detach](p)
	require.NotNil(p.t, d)
	require.NotNil(p.t, d.Error)
	return d.Error.Condition
}

// A refused link does not count as a user of its volatile subscription. Otherwise the subscription would keep messages
// after the last link has left.
func TestRefusedLinkDoesNotShareSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, stop := serveFor(t, &subscriptions{store: newStore("q").open()}, inMemory)
		defer stop()
		require.Equal(t, session.ResourceLimitExceeded, dial(t, s, "c").subscribe(0))
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Empty(t, s.sharing)
	})
}

// The log reports whether the subscription of a lost link was deleted.
func TestIdleSubscriptionNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		n := &subscriptions{store: newStore("q").open(), list: []*pb.Subscription{{Name: volatilePrefix + "lost"}}}
		s, _, stop := serveFor(t, n, func(o *Options) {
			inMemory(o)
			o.Logger = zap.New(core)
		})
		defer stop()
		dial(t, s, "c").subscribe(0)
		found := logs.FilterField(zap.String("subscription", volatilePrefix+"lost")).All()
		require.Len(t, found, 1)
		require.Equal(t, zapcore.WarnLevel, found[0].Level)
	})
}
