// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// Messages consumed from one queue and published to another in one transaction are stored exactly once, across kills
// of the active and reconnecting consumers. LOCKSTEP_ROUNDS sets the number of kills.
func TestTransactionalForwardUnderKills(t *testing.T) {
	t.Parallel() // mostly idle
	kills := roundsOr(t, 6)
	p := start(t, cluster.Options{})
	newQueue(t, p, "in")
	newQueue(t, p, "out")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() { forwardMessages(ctx, t, p) })
	}
	c, err := p.NewClient(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	published := 0
	publish := func(n int) {
		for range n {
			_, err := c.Publish(limited(t), "in", client.Message{Body: []byte(strconv.Itoa(published))})
			require.NoError(t, err)
			published++
		}
	}
	publish(50)
	for range kills {
		active, _ := inSync(t, p)
		publish(20)
		require.NoError(t, active.Kill())
		publish(10) // on the other node
		require.NoError(t, active.Start())
	}
	inSync(t, p)
	require.Eventually(t, func() bool {
		q, err := admin.New(c).GetQueue(limited(t), "in")
		return err == nil && q.Messages == 0
	}, bound, 20*time.Millisecond)
	stop()
	workers.Wait()
	got := map[string]int{}
	for m, err := range c.Browse(limited(t), "out", client.BrowseOptions{}) {
		require.NoError(t, err)
		got[string(m.Body)]++
	}
	for i := range published {
		require.Equal(t, 1, got[fmt.Sprint(i)], "message %d", i)
	}
	require.Len(t, got, published)
}

// forwardMessages moves messages with one client after another. Each client stops with messages in flight, which are
// redelivered to other clients.
func forwardMessages(ctx context.Context, t *testing.T, p *cluster.Pair) {
	for ctx.Err() == nil {
		c, err := p.NewClient(ctx)
		if err != nil {
			continue
		}
		life, end := context.WithTimeout(ctx, 700*time.Millisecond)
		if consumer, err := c.Consume(life, "in", client.ConsumerOptions{Prefetch: 16}); err == nil {
			err := consumer.Run(life, func(ctx context.Context, d *client.Delivery) error {
				_, err := c.Begin().Take(d).Publish("out", client.Message{Body: d.Body}).Commit(ctx)
				if life.Err() == nil && !errors.Is(err, client.ErrProcessed) && !errors.Is(err, client.ErrOutcomeUnknown) {
					assert.NoError(t, err)
				}
				return err
			}, 1)
			if life.Err() == nil {
				t.Errorf("the transaction was abandoned: %v", err)
			}
		}
		end()
		_ = c.Close()
	}
}
