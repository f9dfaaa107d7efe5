// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// While the active is killed repeatedly, a message nacked on every delivery, and a rejected message, are moved to the
// dead-letter queue exactly once. Valid messages are consumed. LOCKSTEP_ROUNDS sets the number of kills.
func TestPoisonMessageIsMovedOnce(t *testing.T) {
	t.Parallel() // mostly idle
	kills := roundsOr(t, 6)
	p := start(t, cluster.Options{})
	c, err := p.NewClient(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	newQueue(t, p, "dead")
	_, _, err = admin.New(c).CreateQueue(limited(t), "orders", admin.CreateQueueOptions{
		Config: admin.QueueConfig{MaxDeliveries: uint32(kills), DeadLetter: "dead"},
	})
	require.NoError(t, err)
	for _, body := range []string{"poison", "bad", "good"} {
		_, err := c.Publish(limited(t), "orders", client.Message{Body: []byte(body)})
		require.NoError(t, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	good := make(chan struct{}, 1)
	go func() { ended <- consumePoison(ctx, c, good) }()
	for range kills {
		active, _ := inSync(t, p)
		require.NoError(t, active.Kill())
		require.NoError(t, active.Start())
	}
	inSync(t, p)
	dead := map[string]int{}
	require.Eventually(t, func() bool {
		dead = map[string]int{}
		for m, err := range c.Browse(limited(t), "dead", client.BrowseOptions{}) {
			if err != nil {
				return false
			}
			require.Equal(t, "orders", m.DeadLetter.Queue)
			dead[string(m.Body)]++
		}
		return len(dead) == 2
	}, bound, 20*time.Millisecond, "%v", dead)
	<-good
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Equal(t, map[string]int{"poison": 1, "bad": 1}, dead)
	q, err := admin.New(c).GetQueue(limited(t), "orders")
	require.NoError(t, err)
	require.Zero(t, q.Messages)
}

// consumePoison nacks "poison", rejects "bad" and acknowledges "good", until ctx is done.
func consumePoison(ctx context.Context, c *client.Client, good chan<- struct{}) error {
	consumer, err := c.Consume(ctx, "orders", client.ConsumerOptions{})
	if err != nil {
		return err
	}
	for {
		d, err := consumer.Receive(ctx)
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		switch string(d.Body) {
		case "poison":
			select { // otherwise all deliveries finish before the second kill
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
			d.Nack()
		case "bad":
			d.Reject()
		default:
			d.Ack()
			select {
			case good <- struct{}{}:
			default:
			}
		}
	}
}
