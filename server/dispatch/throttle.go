// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Deliveries are unbounded work: each message goes to every subscription, and a backlog can be as large as the disk.
// While others want the processors, too (Limits.Busy), the dispatchers therefore take turns, each of them small, and
// all of them together keep to a part of the time: what it takes to deliver each message that is published once, so
// that the consumers of a queue can keep up with its publishers, however many subscriptions there are besides; and at
// least Limits.Share. Otherwise nothing holds them back.
const (
	// turnMessages and turnBytes bound a turn: with many subscriptions none waits for long until all the others have
	// had theirs.
	turnMessages = 256
	turnBytes    = 128 << 10
	// What a turn, a message and each KiB of it cost a node in time of a processor, about: measured with 350 B, 128 at
	// a time, from reading them to the connection, with their acknowledgements. It is not measured as it goes, since a
	// clock would also count the time in which others had the processor, the more the busier the node is.
	turnCost    = 20 * time.Microsecond
	messageCost = time.Microsecond
	kibCost     = 400 * time.Nanosecond
	// fullTurn is the price of a turn that was as long as it may be.
	fullTurn = turnCost + turnMessages*messageCost + turnBytes/1024*kibCost
	// rateEvery is how often it is looked how much is published, and rateWeight what part of the opinion the last look
	// is.
	rateEvery  = 5 * time.Millisecond
	rateWeight = 0.1
	// late is how much time the dispatchers may be behind and make up for: on a busy machine none wakes up in time.
	late = 5 * time.Millisecond
)

// throttle says when the next turn may begin. All turns are paid for from one budget, and the dispatcher that had one
// waits in proportion to its price: every dispatcher that has something to do gets as much as the others, and one that
// has little does not wait for those that have much.
type throttle struct {
	busy      func() bool  // nil: never
	free      atomic.Bool  // nothing holds deliveries back
	published atomic.Int64 // what it costs to deliver once what was published, in nanoseconds

	mu     sync.Mutex    // guards what is below
	share  float64       // of the time of one processor; can be above 1
	paid   time.Time     // when all turns so far will be paid for; zero: there is nothing to pay
	idle   chan struct{} // closed and replaced when only dispatchers want the processors any more
	seen   int64         // of published, at seenAt
	seenAt time.Time
	rate   float64 // of the time of one processor: what it takes to deliver once what is published
}

func newThrottle(busy func() bool, share float64) *throttle {
	return &throttle{busy: busy, share: share, idle: make(chan struct{})}
}

// setShare changes what part of the node's processors deliveries may use; 1: nothing holds them back.
func (t *throttle) setShare(share float64) {
	t.free.Store(share >= 1)
	t.mu.Lock()
	t.share = share * float64(runtime.GOMAXPROCS(0))
	t.mu.Unlock()
	t.isBusy() // those who wait may not have to
}

// isBusy tells whether a turn must be small and paid for. When it need not, those who wait may go on.
func (t *throttle) isBusy() bool {
	if t.busy == nil {
		return false
	}
	if !t.free.Load() && t.busy() {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.paid.IsZero() {
		t.paid = time.Time{}
		close(t.idle)
		t.idle = make(chan struct{})
	}
	return false
}

// pay waits after a turn that gave out the messages, and has looked at others that do not match a filter. It returns at
// once while only dispatchers want the processors, and soon when ctx ends.
func (t *throttle) pay(ctx context.Context, messages []Message, others int) {
	if len(messages)+others == 0 || !t.isBusy() {
		return
	}
	bytes := 0
	for i := range messages {
		bytes += len(messages[i].Record)
	}
	wait, idle := t.charge(time.Now(), turnCost+price(len(messages)+others, bytes))
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		t.isBusy() // the dispatchers that wait must find out when it is over
	case <-idle:
	case <-ctx.Done():
	}
}

// price is what it costs to deliver messages, but for the turns.
func price(messages, bytes int) time.Duration {
	return time.Duration(messages)*messageCost + time.Duration(bytes)*kibCost/1024
}

// publish notes that messages were published, which have to be delivered.
func (t *throttle) publish(messages, bytes int) {
	if t.busy != nil && !t.free.Load() {
		t.published.Add(int64(price(messages, bytes)) + int64(messages)*int64(turnCost)/turnMessages)
	}
}

// follow looks how much is published. mu is held.
func (t *throttle) follow(now time.Time) {
	d := now.Sub(t.seenAt)
	if d < rateEvery {
		return
	}
	n := t.published.Load()
	rate := float64(n-t.seen) / float64(d)
	if d > time.Second { // nothing was delivered meanwhile
		t.rate = rate
	}
	t.rate += (rate - t.rate) * rateWeight
	t.seen, t.seenAt = n, now
}

// charge adds a turn's cost and tells how long the dispatcher that had it has to wait, unless idle is closed before.
func (t *throttle) charge(now time.Time, cost time.Duration) (wait time.Duration, idle <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if least := now.Add(-late); t.paid.Before(least) {
		t.paid = least
	}
	t.follow(now)
	t.paid = t.paid.Add(time.Duration(float64(cost) / max(t.share, t.rate)))
	return time.Duration(float64(t.paid.Sub(now)) * float64(cost) / float64(fullTurn)), t.idle
}
