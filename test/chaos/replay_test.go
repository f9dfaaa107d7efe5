// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// A queue with a retention retains its last messages after their acknowledgement, while the active is killed
// repeatedly. A subscription that is reset to an earlier position, with a consumer attached, receives these messages
// again. At the end, it receives exactly the last messages, in order and unchanged. LOCKSTEP_ROUNDS sets the number
// of kills.
func TestSeekRedeliversRetainedMessages(t *testing.T) {
	t.Parallel() // mostly idle
	const kept = 500
	kills := roundsOr(t, 6)
	p := start(t, cluster.Options{})
	c, err := p.NewClient(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, _, err = admin.New(c).CreateQueue(limited(t), "log", admin.CreateQueueOptions{
		Config: admin.QueueConfig{RetentionMessages: kept}, Subscriptions: []string{"work", "replay"},
	})
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var work, replayed atomic.Int64
	ended := make(chan struct{}, 2)
	for sub, count := range map[string]*atomic.Int64{"work": &work, "replay": &replayed} {
		consumer, err := c.Consume(ctx, "log", client.ConsumerOptions{Subscription: sub})
		require.NoError(t, err)
		go func() {
			defer func() {
				_ = consumer.Close() // an error of Close is irrelevant
				ended <- struct{}{}
			}()
			for {
				d, err := consumer.Receive(ctx)
				if err != nil {
					return
				}
				count.Add(1)
				d.Ack()
			}
		}()
	}
	published := 0
	publish := func(n int) {
		t.Helper()
		for range n {
			published++
			r, err := c.Publish(limited(t), "log", client.Message{Body: []byte(fmt.Sprint(published))})
			require.NoError(t, err)
			require.Equal(t, uint64(published), r.Sequence)
		}
	}
	for range kills {
		publish(200)
		before := replayed.Load()
		at, err := admin.New(c).Seek(limited(t), "log", "replay", admin.Earliest())
		require.NoError(t, err)
		require.LessOrEqual(t, at.Sequence, uint64(max(1, published-kept+1)), "all retained messages exist")
		active, _ := inSync(t, p)
		require.NoError(t, active.Kill())
		require.NoError(t, active.Start())
		require.Eventually(t, func() bool { return replayed.Load() > before }, bound, 20*time.Millisecond)
	}
	publish(kept)
	inSync(t, p)
	require.Eventually(t, func() bool {
		q, err := admin.New(c).GetQueue(limited(t), "log")
		return err == nil && q.Messages == kept && q.Subscriptions[0].Backlog == 0 && q.Subscriptions[1].Backlog == 0
	}, bound, 20*time.Millisecond)
	require.GreaterOrEqual(t, work.Load(), int64(published), "each message was consumed at least once")
	stop()
	<-ended
	<-ended

	at, err := admin.New(c).Seek(limited(t), "log", "replay", admin.Earliest())
	require.NoError(t, err)
	require.Equal(t, admin.SeekResult{Sequence: uint64(published - kept + 1), Backlog: kept}, at)
	consumer, err := c.Consume(limited(t), "log", client.ConsumerOptions{Subscription: "replay"})
	require.NoError(t, err)
	defer func() { require.NoError(t, consumer.Close()) }()
	for i := published - kept + 1; i <= published; i++ {
		d, err := consumer.Receive(limited(t))
		require.NoError(t, err)
		require.Equal(t, uint64(i), d.Sequence)
		require.Equal(t, fmt.Sprint(i), string(d.Body))
		d.Ack()
	}
	require.NoError(t, consumer.Flush(limited(t)))
}
