// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// coordinator decides transactions. Its decisions survive crashes, like the decisions of a coordinator with a
// durable log.
type coordinator struct {
	t *testing.T
	p *cluster.Pair

	mu        sync.Mutex // guards the fields below
	next      int
	committed map[string]bool // by xid; all others are rolled back
}

// Two-phase transactions end as decided, although the active is killed between phases, coordinators crash, and both
// nodes are killed. Each message is stored in the second queue exactly once. LOCKSTEP_ROUNDS sets the number of kills
// of the active.
func TestTwoPhase(t *testing.T) {
	t.Parallel() // mostly idle
	kills := roundsOr(t, 6)
	p := start(t, cluster.Options{})
	newQueue(t, p, "in")
	newQueue(t, p, "out")
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
	co := &coordinator{t: t, p: p, committed: map[string]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers sync.WaitGroup
	for i := range 3 {
		workers.Go(func() { co.work(ctx, rand.New(rand.NewPCG(uint64(i), 7))) })
	}
	publish(40)
	for range kills {
		active, _ := inSync(t, p)
		publish(20)
		require.NoError(t, active.Kill())
		publish(5) // on the other node
		require.NoError(t, active.Start())
	}
	stop() // with transactions in progress
	workers.Wait()
	a, b := inSync(t, p)
	require.NoError(t, a.Kill())
	require.NoError(t, b.Kill())
	require.NoError(t, a.Start())
	require.NoError(t, b.Start())
	inSync(t, p)
	co.recover(c)
	t.Logf("%d transactions, %d committed", co.next, len(co.committed))

	for began := time.Now(); ; {
		co.life(t.Context(), nil)
		co.recover(c) // the last coordinator was interrupted
		q, err := admin.New(c).GetQueue(limited(t), "in")
		require.NoError(t, err)
		if q.Messages == 0 {
			break
		}
		require.Less(t, time.Since(began), bound, "%d messages remain", q.Messages)
	}
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

// decide records a decision that survives a crash of the coordinator.
func (co *coordinator) decide(xid string) {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.committed[xid] = true
}

func (co *coordinator) xid() string {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.next++
	return fmt.Sprintf("transfer/%d", co.next)
}

// work moves messages with one client after another. If rng is not nil, each client crashes at a random point: between
// the phases, or after the decision.
func (co *coordinator) work(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		co.life(ctx, rng)
	}
}

// life runs one client until it crashes, or for at most 500 ms.
func (co *coordinator) life(ctx context.Context, rng *rand.Rand) {
	c, err := co.p.NewClient(ctx)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	life, end := context.WithTimeout(ctx, 500*time.Millisecond)
	defer end()
	if err := co.transfer(life, c, rng); err != nil && life.Err() == nil && !errors.Is(err, client.ErrProcessed) {
		co.t.Errorf("the transfer ended: %v", err)
	}
}

var errCrash = errors.New("crash")

func (co *coordinator) transfer(ctx context.Context, c *client.Client, rng *rand.Rand) error {
	consumer, err := c.Consume(ctx, "in", client.ConsumerOptions{Prefetch: 8})
	if err != nil {
		return err
	}
	for {
		d, err := consumer.Receive(ctx)
		if err != nil {
			return err
		}
		if err := co.one(ctx, c, d, rng); err != nil && !errors.Is(err, errCrash) {
			return err
		}
	}
}

func (co *coordinator) one(ctx context.Context, c *client.Client, d *client.Delivery, rng *rand.Rand) error {
	xid := co.xid()
	err := c.Begin().Take(d).Publish("out", client.Message{Body: d.Body}).Prepare(ctx, xid)
	if errors.Is(err, client.ErrProcessed) {
		d.Nack()
		return nil
	}
	if err != nil {
		return err // the transaction may be prepared; recover decides it
	}
	switch {
	case rng == nil || rng.IntN(10) > 2:
		co.decide(xid)
		_, err = admin.New(c).CommitPrepared(ctx, xid)
	case rng.IntN(3) == 0:
		return errCrash // undecided
	case rng.IntN(2) == 0:
		co.decide(xid)
		return errCrash // decided, but not sent to a node
	default:
		_, err = admin.New(c).RollbackPrepared(ctx, xid)
	}
	return err
}

// recover completes the prepared transactions after a restart of the coordinator.
func (co *coordinator) recover(c *client.Client) {
	co.t.Helper()
	co.mu.Lock()
	defer co.mu.Unlock()
	for p, err := range admin.New(c).ListPrepared(limited(co.t)) {
		require.NoError(co.t, err)
		decide := admin.New(c).RollbackPrepared
		if co.committed[p.XID] {
			decide = admin.New(c).CommitPrepared
		}
		for range 2 { // a retry has no effect
			_, err = decide(limited(co.t), p.XID)
			require.NoError(co.t, err)
		}
	}
	for xid := range co.committed {
		_, err := admin.New(c).CommitPrepared(limited(co.t), xid)
		require.NoError(co.t, err, "%s was committed, so its commit is stored", xid)
	}
}
