// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// testFleet is a fleet of two pairs, each with one node, and a client with the address of the first pair. Queues with
// names that begin with "a." and "b." are created at the pair of this name.
//
// Its tests use real sockets, because the directory requires a real etcd.
type testFleet struct {
	t       *testing.T
	dir     string
	etcd    *embedded.Server
	records *clientv3.Client
	a, b    *testNode
	client  *client.Client
	admin   *admin.Client
}

func startFleet(t *testing.T) *testFleet {
	t.Helper()
	f := &testFleet{t: t, dir: t.TempDir()}
	f.etcd = coordtest.StartEtcd(t, f.dir, "")
	t.Cleanup(func() { require.NoError(t, f.etcd.Close()) })
	var err error
	f.records, err = clientv3.New(clientv3.Config{Endpoints: f.etcd.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.records.Close()) })
	f.place("a.*", "a")
	f.place("b.*", "b")
	f.a, f.b = f.start("a"), f.start("b")
	f.client, err = client.OpenWith(t.Context(), client.Options{Addresses: []string{f.a.ready.Address}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.client.Close()) })
	f.admin = admin.New(f.client)
	return f
}

func (f *testFleet) start(pair string) *testNode {
	f.t.Helper()
	return startAlone(f.t, func(c *config.Config) {
		c.Node.Name = pair
		c.Fleet.Pair, c.Fleet.Endpoints = pair, f.etcd.Endpoints()
		withAMQP(c)
		c.AMQP.AutoCreate = true
	})
}

// place writes a placement rule.
func (f *testFleet) place(pattern, pair string) {
	f.t.Helper()
	_, err := f.records.Put(f.t.Context(), fleet.DefaultPrefix+"/rules/"+pattern, fmt.Sprintf(`{"pair":%q}`, pair))
	require.NoError(f.t, err)
}

func (f *testFleet) create(name string, o admin.CreateQueueOptions) error {
	f.t.Helper()
	_, _, err := f.admin.CreateQueue(f.t.Context(), name, o)
	return err
}

// owner requires that a pair has a queue, and that the other pair returns its owner.
func (f *testFleet) owner(queue string, pair *testNode) {
	f.t.Helper()
	_, err := pair.queues.GetQueue(f.t.Context(), &pb.GetQueueRequest{Name: queue})
	require.NoError(f.t, err)
	other := f.a
	if pair == f.a {
		other = f.b
	}
	require.Eventually(f.t, func() bool {
		n := notOwner(get(other, queue))
		return n.GetPair() == pair.config.Fleet.Pair && n.GetAddresses()[0] == pair.ready.Address
	}, testTimeout, 5*time.Millisecond, "%s must name the owner of %s", other.config.Node.Name, queue)
}

func get(n *testNode, queue string) error {
	_, err := n.queues.GetQueue(n.t.Context(), &pb.GetQueueRequest{Name: queue})
	return err
}

// notOwner returns the NotOwner detail of an error, or nil.
func notOwner(err error) *pb.NotOwner {
	for _, d := range status.Convert(err).Details() {
		if n, is := d.(*pb.NotOwner); is {
			return n
		}
	}
	return nil
}

func message(text string) client.Message { return client.Message{Body: []byte(text)} }

// exchange publishes a message, receives it and acknowledges it.
func (f *testFleet) exchange(queue, text string) {
	f.t.Helper()
	ctx := f.t.Context()
	_, err := f.client.Publish(ctx, queue, message(text))
	require.NoError(f.t, err)
	co, err := f.client.Consume(ctx, queue, client.ConsumerOptions{})
	require.NoError(f.t, err)
	d, err := co.Receive(ctx)
	require.NoError(f.t, err)
	require.Equal(f.t, text, string(d.Body))
	require.NoError(f.t, d.AckSync(ctx))
	require.NoError(f.t, co.Close())
}

func reasonIn(t *testing.T, err error) string {
	t.Helper()
	var e *client.Error
	require.ErrorAs(t, err, &e)
	return e.Reason
}

// A client with the address of one pair uses queues of both. A queue that is deleted and created at the other pair is
// found there.
func TestFleetQueues(t *testing.T) {
	f := startFleet(t)
	for _, name := range []string{"a.q", "b.q", "b.q2"} {
		require.NoError(t, f.create(name, admin.CreateQueueOptions{}))
		require.NoError(t, f.create(name, admin.CreateQueueOptions{IfNotExists: true}))
		require.ErrorIs(t, f.create(name, admin.CreateQueueOptions{}), client.ErrAlreadyExists)
	}
	f.owner("a.q", f.a)
	f.owner("b.q", f.b)
	for _, name := range []string{"a.q", "b.q", "a.q"} {
		f.exchange(name, "in "+name)
	}
	ctx := t.Context()
	_, err := f.client.Publish(ctx, "none", message("x"))
	require.ErrorIs(t, err, client.ErrQueueNotFound)

	_, err = f.client.Begin().Publish("a.q", message("x")).Publish("b.q", message("x")).Commit(ctx)
	require.ErrorIs(t, err, client.ErrRefused)
	require.Equal(t, "CROSS_PAIR", reasonIn(t, err))
	_, err = f.client.Begin().Publish("b.q", message("x")).Publish("b.q2", message("y")).Commit(ctx)
	require.NoError(t, err)
	err = f.create("a.dead", admin.CreateQueueOptions{Config: admin.QueueConfig{DeadLetter: "b.q"}})
	require.Equal(t, "CROSS_PAIR", reasonIn(t, err))
	err = f.create("b.dead", admin.CreateQueueOptions{Config: admin.QueueConfig{DeadLetter: "b.q"}})
	require.NoError(t, err)

	_, err = f.admin.DeleteQueue(ctx, "b.q2", false)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return status.Code(get(f.a, "b.q2")) == codes.NotFound }, testTimeout,
		5*time.Millisecond, "the name is released")
	require.NoError(t, f.create("b.temporary", admin.CreateQueueOptions{
		Config: admin.QueueConfig{TemporaryGrace: time.Second},
	}))
	require.Eventually(t, func() bool {
		resp, err := f.records.Get(ctx, fleet.DefaultPrefix+"/queues/b.temporary")
		return err == nil && resp.Count == 0
	}, testTimeout, 5*time.Millisecond, "the name is released after the grace period")

	f.place("b.*", "a")
	require.NoError(t, f.create("b.q2", admin.CreateQueueOptions{}))
	f.owner("b.q2", f.a)
	f.exchange("b.q2", "at the other pair")
}

// Queues of one placement group are created at one pair: by tag, by option, and by the name of a queue.
func TestFleetPlacementGroups(t *testing.T) {
	f := startFleet(t)
	f.place("one.*", "b")
	require.NoError(t, f.create("one.{g}", admin.CreateQueueOptions{}))
	f.place("*", "a")
	for name, group := range map[string]string{"two.{g}": "", "three": "g", "four": "one.{g}"} {
		require.NoError(t, f.create(name, admin.CreateQueueOptions{PlacementGroup: group}))
		f.owner(name, f.b)
	}
	require.NoError(t, f.create("other.{h}", admin.CreateQueueOptions{}))
	f.owner("other.{h}", f.a)
	f.exchange("two.{g}", "x")
	_, err := f.client.Begin().Publish("one.{g}", message("x")).Publish("four", message("y")).Commit(t.Context())
	require.NoError(t, err)
}

// Without etcd, existing queues can be used, and the owners of others are unknown. A retry has a definite outcome.
func TestFleetWithoutDirectory(t *testing.T) {
	f := startFleet(t)
	require.NoError(t, f.create("a.q", admin.CreateQueueOptions{}))
	require.NoError(t, f.create("b.q", admin.CreateQueueOptions{}))
	f.exchange("b.q", "before")
	publish := func(queue string, sequence uint64, retry bool) error {
		_, err := f.a.queues.Publish(t.Context(), &pb.PublishRequest{
			Queue: queue, Messages: batch("x"),
			Producer: &pb.Producer{Id: "p", Epoch: 1, Sequence: sequence, Retry: retry},
		})
		return err
	}
	reason := func(err error) (name string, settled bool) {
		for _, d := range status.Convert(err).Details() {
			if info, is := d.(interface {
				GetReason() string
				GetMetadata() map[string]string
			}); is {
				return info.GetReason(), info.GetMetadata()["settled"] == "true"
			}
		}
		return "", false
	}
	requireReason := func(want string, settled bool, err error) {
		t.Helper()
		got, is := reason(err)
		require.Equal(t, want, got)
		require.Equal(t, settled, is)
	}
	require.NoError(t, publish("a.q", 1, false))
	address := f.etcd.Address()
	require.NoError(t, f.etcd.Close())
	require.Eventually(t, func() bool {
		name, _ := reason(get(f.a, "b.later"))
		return name == "DIRECTORY_UNAVAILABLE"
	}, testTimeout, 5*time.Millisecond)
	f.exchange("a.q", "x") // published above
	f.exchange("b.q", "during the outage")
	requireReason("NOT_OWNER", false, publish("b.q", 2, false))
	requireReason("NOT_OWNER", true, publish("b.q", 2, true))
	requireReason("DIRECTORY_UNAVAILABLE", false, publish("b.later", 3, false))
	requireReason("DIRECTORY_UNAVAILABLE", true, publish("b.later", 3, true))
	waiting := make(chan error, 2)
	go func() { waiting <- f.create("b.later", admin.CreateQueueOptions{}) }()

	f.etcd = coordtest.StartEtcd(t, f.dir, address)
	require.NoError(t, <-waiting)
	f.owner("b.later", f.b)
	requireReason("NOT_OWNER", true, publish("b.later", 3, true))
	require.NoError(t, publish("a.q", 1, true), "the result of the first attempt")
	f.exchange("b.later", "after the outage")
}

// A request to discard corrupt messages reaches the owner of the queue.
func TestFleetDropDamaged(t *testing.T) {
	f := startFleet(t)
	ctx := t.Context()
	for _, queue := range []string{"a.q", "b.q"} {
		require.NoError(t, f.create(queue, admin.CreateQueueOptions{}))
		resp, err := f.admin.DropDamaged(ctx, &pb.DropDamagedRequest{Queue: queue})
		require.NoError(t, err)
		require.Empty(t, resp.GetSequences())
	}
	_, err := f.admin.DropDamaged(ctx, &pb.DropDamagedRequest{Queue: "none"})
	require.ErrorIs(t, err, client.ErrQueueNotFound)
}
