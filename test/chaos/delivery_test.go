// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// killActive kills the active, restarts it, and waits until the pair is in sync again.
func killActive(t *testing.T, p *cluster.Pair) {
	t.Helper()
	active, _ := inSync(t, p)
	require.NoError(t, active.Kill())
	require.NoError(t, active.Start())
	inSync(t, p)
}

// A schedule with an interval of one second publishes each occurrence exactly once while the active is killed
// repeatedly. LOCKSTEP_SCHEDULE=20m sets the duration, and LOCKSTEP_KILL_EVERY=30s the interval of the kills.
func TestScheduleUnderKills(t *testing.T) {
	t.Parallel() // mostly idle
	limit, err := cluster.FromEnv("LOCKSTEP_SCHEDULE", time.Minute, time.ParseDuration)
	require.NoError(t, err)
	every, err := cluster.FromEnv("LOCKSTEP_KILL_EVERY", 10*time.Second, time.ParseDuration)
	require.NoError(t, err)
	p := start(t, cluster.Options{})
	k, err := p.NewClient(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, k.Close()) }()
	a := admin.New(k)
	_, _, err = a.CreateQueue(limited(t), "ticks", admin.CreateQueueOptions{})
	require.NoError(t, err)
	put, err := a.PutSchedule(limited(t), &pb.Schedule{
		Name: "tick", Queue: "ticks", Every: durationpb.New(time.Second), Message: &pb.Message{Body: []byte("tick")},
		Missed: pb.MissedOccurrences_MISSED_OCCURRENCES_ALL,
	})
	require.NoError(t, err)

	kills, end := 0, time.Now().Add(limit)
	for next := time.Now().Add(every); next.Before(end); next = next.Add(every) {
		sleepUntil(t.Context(), next)
		killActive(t, p)
		kills++
	}
	sleepUntil(t.Context(), end)
	paused, err := a.SetSchedulePaused(limited(t), "tick", true)
	require.NoError(t, err)

	first, last := put.GetStartedAt().AsTime().Add(time.Second), paused.GetLastAt().AsTime()
	want := int(last.Sub(first)/time.Second) + 1
	require.GreaterOrEqual(t, want, int(limit/time.Second)-1, "occurrences until the pause")
	published := 0
	for m, err := range k.Browse(limited(t), "ticks", client.BrowseOptions{}) {
		require.NoError(t, err)
		id := "tick@" + first.Add(time.Duration(published)*time.Second).Format(time.RFC3339Nano)
		require.Equal(t, id, m.MessageID, "occurrence %d", published)
		published++
	}
	require.Equal(t, want, published)
	t.Logf("%d of %d occurrences, each once, %d kills", published, want, kills)
}

func sleepUntil(ctx context.Context, at time.Time) {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// resenders is the number of clients that publish each message ID.
const resenders = 2

// A queue with a deduplication window stores each message ID once, although several clients publish it, and the
// active is killed repeatedly. LOCKSTEP_PUBLISHES=2000000 sets the number of publishes, and LOCKSTEP_KILLS=60 sets
// the number of kills, which are distributed over the publishes.
func TestDeduplicationUnderKills(t *testing.T) {
	publishes, err := cluster.FromEnv("LOCKSTEP_PUBLISHES", 60_000, strconv.Atoi)
	require.NoError(t, err)
	kills, err := cluster.FromEnv("LOCKSTEP_KILLS", 3, strconv.Atoi)
	require.NoError(t, err)
	p := start(t, cluster.Options{})
	k, err := p.NewClient(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, k.Close()) }()
	_, _, err = admin.New(k).CreateQueue(limited(t), "once", admin.CreateQueueOptions{
		Config: admin.QueueConfig{DedupWindow: 24 * time.Hour},
	})
	require.NoError(t, err)

	r := &resending{ids: publishes / resenders, perKill: publishes / (kills + 1)}
	r.sequences = make([]atomic.Uint64, r.ids)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var running sync.WaitGroup
	for range resenders {
		running.Go(func() {
			if err := r.publish(ctx, p); err != nil {
				cancel(err)
			}
		})
	}
	for n := 1; n <= kills && ctx.Err() == nil; n++ {
		r.await(ctx, n)
		killActive(t, p)
	}
	running.Wait()
	require.NoError(t, context.Cause(ctx))

	stored := 0
	for m, err := range k.Browse(t.Context(), "once", client.BrowseOptions{HeadersOnly: true}) {
		require.NoError(t, err)
		n, err := strconv.Atoi(m.MessageID)
		require.NoError(t, err)
		require.Equal(t, r.sequences[n].Load(), m.Sequence, "message ID %d is stored once", n)
		stored++
	}
	require.Equal(t, r.ids, stored)
	t.Logf("%d publishes of %d message IDs, %d kills: each ID is stored once", r.done.Load(), r.ids, kills)
}

// resending is the state of clients that publish the same message IDs.
type resending struct {
	ids, perKill int
	sequences    []atomic.Uint64 // by ID, from the first receipt
	done         atomic.Int64    // receipts
}

// await waits for the receipts of all publishes that precede kill n.
func (r *resending) await(ctx context.Context, n int) {
	for int(r.done.Load()) < n*r.perKill && ctx.Err() == nil {
		sleepUntil(ctx, time.Now().Add(10*time.Millisecond))
	}
}

// publish publishes each ID once, with a separate client.
func (r *resending) publish(ctx context.Context, p *cluster.Pair) (err error) {
	k, err := p.NewClient(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	producer, err := k.NewProducer(ctx, client.ProducerOptions{})
	if err != nil {
		return err
	}
	type sent struct {
		id      int
		pending *client.Pending
	}
	inFlight, failed := make(chan sent, 4096), make(chan error, 1)
	go func() {
		var err error
		for s := range inFlight {
			if err == nil {
				err = r.receive(ctx, s.id, s.pending)
			}
		}
		failed <- err
	}()
	for id := range r.ids {
		m := client.Message{MessageID: strconv.Itoa(id), Body: []byte("content")}
		inFlight <- sent{id, producer.PublishAsync(ctx, "once", m)}
	}
	close(inFlight)
	return errors.Join(<-failed, producer.Close())
}

// receive waits for the receipt of a message ID, and compares its sequence with those that other clients received.
func (r *resending) receive(ctx context.Context, id int, pending *client.Pending) error {
	receipt, err := pending.Wait(ctx)
	if err != nil {
		return fmt.Errorf("message ID %d: %w", id, err)
	}
	r.done.Add(1)
	if s := &r.sequences[id]; !s.CompareAndSwap(0, receipt.Sequence) && s.Load() != receipt.Sequence {
		return fmt.Errorf("message ID %d has the sequences %d and %d", id, s.Load(), receipt.Sequence)
	}
	return nil
}
