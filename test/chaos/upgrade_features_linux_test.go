// SPDX-License-Identifier: Apache-2.0

//go:build deep

package chaos

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// describedQueue is the queue under test, and describedDead its dead-letter queue. At the end, describedSource
// forwards to describedQueue.
const describedQueue, describedDead, describedSource = "described", "described-dead", "described-source"

// describedMessage has attributes that release 0.1.0 does not support, and no delivery attributes.
var describedMessage = client.Message{
	Body: []byte("{}"), Subject: "order", CorrelationID: "c-1", Values: map[string]any{"count": int64(7)},
}

// unsupportedFeature is a feature that a node of release 0.1.0 would misinterpret.
type unsupportedFeature struct {
	name string
	try  func(t *testing.T, k *client.Client) error
}

func unsupportedFeatures() []unsupportedFeature {
	list := []unsupportedFeature{
		{"attributes", func(t *testing.T, k *client.Client) error {
			_, err := k.Publish(limited(t), describedQueue, describedMessage)
			return err
		}},
		{"a queue with priorities", func(t *testing.T, k *client.Client) error {
			_, _, err := admin.New(k).CreateQueue(limited(t), describedSource, admin.CreateQueueOptions{
				Config: admin.QueueConfig{Priorities: true},
			})
			return err
		}},
		{"an access role", func(t *testing.T, k *client.Client) error {
			_, err := admin.New(k).PutRole(limited(t), &pb.AccessRole{
				Name: "reader", Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_BROWSE},
			}, false)
			return err
		}},
		{"a forward", func(t *testing.T, k *client.Client) error {
			queue := describedSource
			if _, err := admin.New(k).GetQueue(limited(t), queue); err != nil {
				queue = describedQueue // describedSource is missing while its creation is rejected
			}
			_, err := admin.New(k).SetForwards(limited(t), queue, []admin.Forward{{To: describedQueue}})
			return err
		}},
		{"a filter", func(t *testing.T, k *client.Client) error {
			_, _, err := admin.New(k).CreateSubscription(limited(t), describedQueue, "filtered",
				admin.SubscriptionOptions{Filter: "size > 3"})
			return err
		}},
		{"a subscription's policy", func(t *testing.T, k *client.Client) error {
			_, _, err := admin.New(k).CreateSubscription(limited(t), describedQueue, "strict",
				admin.SubscriptionOptions{Redelivery: admin.RedeliveryPolicy{MaxDeliveries: new(uint32(3))}})
			return err
		}},
		{"an altered subscription", func(t *testing.T, k *client.Client) error {
			_, err := admin.New(k).AlterSubscription(limited(t), describedQueue, client.DefaultSubscription,
				admin.SubscriptionChange{Inherit: admin.PolicyFields()})
			return err
		}},
		{"a consumer's filter", func(t *testing.T, k *client.Client) error {
			c, err := k.Consume(limited(t), describedQueue, client.ConsumerOptions{Filter: "size > 3"})
			if err == nil {
				err = c.Close()
			}
			return err
		}},
		{"a start", func(t *testing.T, k *client.Client) error {
			_, _, err := admin.New(k).CreateSubscription(limited(t), describedQueue, "from-first",
				admin.SubscriptionOptions{At: admin.AtSequence(1)})
			return err
		}},
		{"a prepared transaction", func(t *testing.T, k *client.Client) error {
			err := k.Begin().Publish(describedQueue, client.Message{}).Prepare(limited(t), "xid-1")
			if err == nil {
				_, err = admin.New(k).RollbackPrepared(limited(t), "xid-1")
			}
			return err
		}},
		{"a transaction that takes messages", func(t *testing.T, k *client.Client) error {
			_, err := k.Publish(limited(t), describedQueue, client.Message{})
			require.NoError(t, err)
			c, err := k.Consume(limited(t), describedQueue, client.ConsumerOptions{})
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close()) }()
			d, err := c.Receive(limited(t))
			require.NoError(t, err)
			_, err = k.Begin().Take(d).Commit(limited(t))
			if err != nil {
				require.NoError(t, d.AckSync(limited(t))) // leaves the queue empty
			}
			return err
		}},
		{"a seek", func(t *testing.T, k *client.Client) error {
			_, err := admin.New(k).Seek(limited(t), describedQueue, client.DefaultSubscription, admin.Earliest())
			return err
		}},
	}
	return append(append(list, unsupportedMessages()...), unsupportedConfigs()...)
}

// unsupportedMessages returns the message fields that affect delivery.
func unsupportedMessages() (list []unsupportedFeature) {
	for name, m := range map[string]client.Message{
		"group": {Group: "g"}, "priority": {Priority: new(uint8(7))}, "ttl": {TTL: time.Hour},
		"expires_at": {ExpiresAt: time.Now().Add(time.Hour)}, "delay": {Delay: time.Millisecond},
		"deliver_at": {DeliverAt: time.Now()},
	} {
		list = append(list, unsupportedFeature{"a message's " + name, func(t *testing.T, k *client.Client) error {
			_, err := k.Publish(limited(t), describedQueue, m)
			return err
		}})
	}
	return list
}

// unsupportedConfigs returns the configuration fields that release 0.1.0 does not support, except for priorities, which
// are set when a queue is created.
func unsupportedConfigs() (list []unsupportedFeature) {
	all := admin.QueueConfig{
		MaxDeliveries: 3, DeadLetter: describedDead, TTL: time.Hour, Delay: time.Millisecond, RedeliveryDelay: time.Second,
		RedeliveryMultiplier: 2, RedeliveryMaxDelay: time.Minute, RetentionAge: time.Hour, RetentionBytes: 1 << 30,
		RetentionMessages: 1 << 20, Overflow: admin.OverflowDropHead, Exclusive: true, DeadLetterExpired: true,
		TemporaryGrace: time.Hour,
	}
	from := reflect.ValueOf(all)
	for i := range from.NumField() {
		field := from.Type().Field(i).Name
		if from.Field(i).IsZero() {
			continue
		}
		list = append(list, unsupportedFeature{"a queue's " + field, func(t *testing.T, k *client.Client) error {
			q, err := admin.New(k).GetQueue(limited(t), describedQueue)
			if err != nil {
				return fmt.Errorf("%s: %w", field, err)
			}
			c := q.Config
			reflect.ValueOf(&c).Elem().FieldByName(field).Set(from.Field(i))
			_, err = admin.New(k).AlterQueue(limited(t), describedQueue, c)
			return err
		}})
	}
	return list
}

// requireRefused requires that every new feature is rejected while a node runs release 0.1.0.
func requireRefused(t *testing.T, k *client.Client) {
	t.Helper()
	for _, n := range unsupportedFeatures() {
		require.ErrorIs(t, n.try(t, k), client.ErrRefused, n.name)
	}
}

// requireUsable requires that every new feature works when both nodes support it.
func requireUsable(t *testing.T, k *client.Client) {
	t.Helper()
	for _, n := range unsupportedFeatures() {
		require.NoError(t, n.try(t, k), n.name)
	}
}

// limitedBytes are the sizes of the bodies that newLimited publishes.
var limitedBytes = []int{10, 5000}

// newLimited creates a queue with a byte limit, a small message and a large message.
func newLimited(t *testing.T, k *client.Client, name string) {
	t.Helper()
	_, _, err := admin.New(k).CreateQueue(limited(t), name, admin.CreateQueueOptions{
		Config: admin.QueueConfig{MaxBytes: 1 << 20},
	})
	require.NoError(t, err)
	for _, n := range limitedBytes {
		_, err := k.Publish(limited(t), name, client.Message{Body: make([]byte, n)})
		require.NoError(t, err)
	}
}

// requireExactBytes requires exact byte counts of two queues with a byte limit. After the upgrade of both nodes, it
// creates one of the queues, and sets the limit of the other queue again.
func requireExactBytes(t *testing.T, k *client.Client) {
	t.Helper()
	newLimited(t, k, "exact")
	_, err := admin.New(k).AlterQueue(limited(t), "limited-0", admin.QueueConfig{MaxBytes: 1 << 20})
	require.NoError(t, err)
	_, err = admin.New(k).PurgeQueue(limited(t), "limited-0", "")
	require.NoError(t, err)
	for _, n := range limitedBytes {
		_, err := k.Publish(limited(t), "limited-0", client.Message{Body: make([]byte, n)})
		require.NoError(t, err)
	}
	for _, name := range []string{"limited-0", "exact"} {
		c, err := k.Consume(limited(t), name, client.ConsumerOptions{})
		require.NoError(t, err)
		for i := range limitedBytes {
			d, err := c.Receive(limited(t))
			require.NoError(t, err)
			if i > 0 {
				require.NoError(t, d.AckSync(limited(t)))
			}
		}
		require.NoError(t, c.Close())
		q, err := admin.New(k).GetQueue(limited(t), name)
		require.NoError(t, err)
		require.Equal(t, uint64(1), q.Messages, name)
		require.Less(t, q.Bytes, uint64(100), name)
	}
}
