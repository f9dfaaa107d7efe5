// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// holdCommits blocks commits until the returned function is called.
func (f *fixture) holdCommits() (release func()) {
	hold := make(chan struct{})
	f.queue.mu.Lock()
	f.queue.hold = hold
	f.queue.mu.Unlock()
	return func() {
		f.queue.mu.Lock()
		f.queue.hold = nil
		f.queue.mu.Unlock()
		close(hold)
	}
}

// InFlight also returns messages with an uncommitted outcome, so that they are not dead-lettered after they were
// processed.
func TestInFlightDuringAck(t *testing.T) {
	for name, outcome := range map[string]func(uint64) dispatch.Outcomes{
		"ack":    func(s uint64) dispatch.Outcomes { return dispatch.Outcomes{Acks: one(s)} },
		"nack":   func(s uint64) dispatch.Outcomes { return dispatch.Outcomes{Nacks: one(s)} },
		"reject": func(s uint64) dispatch.Outcomes { return dispatch.Outcomes{Rejects: one(s)} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, limits())
				f.ctx = t.Context()
				f.queue.publish("1", "2", "3", "4")
				c := f.attach(3)
				f.take(c, 3)
				release := f.holdCommits()
				require.NoError(t, c.Settle(f.ctx, outcome(1)))
				synctest.Wait() // the outcome is being committed
				require.NoError(t, c.Settle(f.ctx, outcome(2)))
				require.ElementsMatch(t, []uint64{1, 2, 3}, f.registry.InFlight(1, []uint64{1, 2, 3, 4}))
				release()
				synctest.Wait()
				require.Equal(t, []uint64{3}, f.registry.InFlight(1, []uint64{1, 2, 3, 4}))
			})
		})
	}
}

// Withdraw does not remove messages that are in flight or have an outcome. Deliveries pause during the removal,
// and removed messages are not delivered.
func TestWithdraw(t *testing.T) {
	for name, prioritized := range map[string]bool{"plain": false, "priorities": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, limits())
				f.ctx = t.Context()
				f.queue.prioritized = prioritized
				for range 6 {
					f.queue.publish(string(timed(t, txn.Attributes{Subject: "s"})))
				}
				key := dispatch.Key{Queue: 1, Sub: 1}
				c := f.attach(2)
				require.Equal(t, []uint64{1, 2}, sequences(f.take(c, 2)))
				release := f.holdCommits()
				require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(1)}))
				synctest.Wait()
				require.NoError(t, f.registry.Withdraw(key, []uint64{1, 2, 3, 4, 5}, func(free []uint64) ([]uint64, error) {
					require.Equal(t, []uint64{3, 4, 5}, free)
					require.NoError(t, c.AddCredit(10))
					late, err := f.registry.Attach(key, "", nil)
					require.NoError(t, err)
					t.Cleanup(late.Close)
					require.NoError(t, late.AddCredit(10))
					synctest.Wait()
					n, _ := f.registry.Stats(key)
					require.Equal(t, uint64(1), n, "no message is delivered during the removal")
					late.Close()
					f.queue.mu.Lock()
					f.queue.acked[3], f.queue.acked[4] = true, true
					f.queue.mu.Unlock()
					return free[:2], nil
				}))
				require.Equal(t, []uint64{5, 6}, sequences(f.take(c, 2)))
				release()
				synctest.Wait()
				require.True(t, f.queue.isAcked(1))
				f.nothing(c)
			})
		})
	}
}

// Messages that Withdraw has not removed are delivered in order, even to a consumer that attached during Withdraw.
func TestWithdrawFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits())
		f.ctx = t.Context()
		f.queue.publish("1", "2", "3")
		key, reason := dispatch.Key{Queue: 1, Sub: 1}, errors.New("not committed")
		var c *dispatch.Consumer
		require.ErrorIs(t, f.registry.Withdraw(key, []uint64{1, 2}, func(free []uint64) ([]uint64, error) {
			require.Equal(t, []uint64{1, 2}, free)
			c = f.attach(10)
			synctest.Wait()
			n, _ := f.registry.Stats(key)
			require.Zero(t, n)
			return free, reason
		}), reason)
		require.Equal(t, []uint64{1, 2, 3}, sequences(f.take(c, 3)))
	})
}

// Dead letters are moved oldest first. As many as fit are moved, and the others when there is space.
func TestRejectsInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits())
		f.ctx = t.Context()
		room := 100
		f.queue.deadRoom = &room
		for range 300 {
			f.queue.publish("x")
		}
		c := f.attach(300)
		f.take(c, 300)
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Rejects: span(1, 300)}))
		synctest.Wait()
		for moved := uint64(100); ; moved += 100 {
			dead := f.queue.moved()
			require.Len(t, dead, int(moved))
			require.Equal(t, moved, dead[moved-1].Sequence, "the oldest are moved first")
			if moved == 300 {
				break
			}
			require.Equal(t, []dispatch.FullError{{Queue: "source", DeadLetter: "source.dead"}}, f.registry.Full())
			f.queue.mu.Lock()
			room = 100
			f.queue.mu.Unlock()
			time.Sleep(2 * time.Second) //nolint:forbidigo // the clock is that of synctest
			synctest.Wait()
		}
		time.Sleep(10 * time.Second) //nolint:forbidigo // the clock is that of synctest
		require.Empty(t, f.registry.Full())
	})
}

// After EnablePendingEvents, a pending reject does not delay confirmations, and each reject is reported once.
func TestRejectsStayPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits())
		f.ctx = t.Context()
		f.queue.setMove(txn.ErrQueueFull)
		f.queue.publish("1", "2", "3", "4")
		c := f.attach(4)
		c.EnablePendingEvents()
		f.take(c, 4)
		next := func() (waiting []uint64, confirmed uint64) {
			for confirmed == 0 {
				event, err := c.Next(f.ctx)
				require.NoError(t, err)
				waiting = append(waiting, event.PendingRejects...)
				confirmed = event.Confirmed
			}
			return waiting, confirmed
		}
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Rejects: one(1), Confirm: 1}))
		waiting, confirmed := next()
		require.Equal(t, []uint64{1}, waiting)
		require.Equal(t, uint64(1), confirmed)
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Rejects: one(2), Acks: one(3), Confirm: 2}))
		waiting, confirmed = next()
		require.Equal(t, []uint64{2}, waiting, "also between two retries of the move")
		require.Equal(t, uint64(2), confirmed)
		require.True(t, f.queue.isAcked(3))
		time.Sleep(10 * time.Second) //nolint:forbidigo // the clock is that of synctest
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(4), Confirm: 3}))
		waiting, confirmed = next()
		require.Empty(t, waiting)
		require.Equal(t, uint64(3), confirmed)
		f.queue.setMove(nil)
		time.Sleep(2 * time.Second) //nolint:forbidigo // the clock is that of synctest
		synctest.Wait()
		require.Len(t, f.queue.moved(), 2)
	})
}

// Acknowledgements are accepted regardless of the number of pending dead letters.
func TestManyPendingDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead = 1 << 15
		l := limits()
		l.Outstanding, l.BatchBytes, l.OutboxBytes = dead+1, 1<<20, 1<<20
		f := newFixture(t, l)
		f.ctx = t.Context()
		f.queue.setMove(txn.ErrQueueFull)
		for range dead + 1 {
			f.queue.publish("x")
		}
		c := f.attach(dead + 1)
		c.EnablePendingEvents()
		f.take(c, dead+1)
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Rejects: span(1, dead)}))
		synctest.Wait()
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(dead + 1)}))
		synctest.Wait()
		require.True(t, f.queue.isAcked(dead+1))
	})
}

// Only the messages passed to Detach count as delivered, even if others were sent to the consumer.
func TestDetachCountsSeenMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits())
		f.ctx = t.Context()
		f.queue.publish("1", "2", "3", "4", "5")
		c, other := f.attach(5), f.attach(0)
		synctest.Wait()
		f.take(c, 5)
		require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(1), Confirm: 1}))
		c.Detach(span(2, 3))
		c.Finish()
		event, err := c.Next(f.ctx)
		require.NoError(t, err)
		require.Equal(t, dispatch.Event{Confirmed: 1}, event)
		_, err = c.Next(f.ctx)
		require.ErrorIs(t, err, dispatch.ErrFinished)
		c.Close()
		synctest.Wait()
		require.NoError(t, other.AddCredit(10))
		counts := map[uint64]uint32{}
		for _, m := range f.take(other, 4) {
			counts[m.Sequence] = m.DeliveryCount
		}
		require.Equal(t, map[uint64]uint32{2: 1, 3: 1, 4: 0, 5: 0}, counts)
	})
}
