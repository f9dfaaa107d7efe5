// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// While other work needs the CPU (Limits.Busy), the dispatchers take short turns and together use a limited fraction
// of the CPU: Limits.CPUFraction, or the fraction that delivers each published message once, if that is more.
const (
	// batchCPUMessages and batchCPUBytes limit a turn.
	batchCPUMessages = 256
	batchCPUBytes    = 128 << 10
	// Approximate CPU time of a turn, of a message, and of each KiB of a message. It includes all work from the read to
	// the connection, and acknowledgements.
	batchCost   = 20 * time.Microsecond
	messageCost = time.Microsecond
	kibCost     = 400 * time.Nanosecond
	fullBatch   = batchCost + batchCPUMessages*messageCost + batchCPUBytes/1024*kibCost
	// rateEvery is the sampling interval of the publish rate, and rateWeight the weight of the newest sample.
	rateEvery  = 5 * time.Millisecond
	rateWeight = 0.1
	// late is the maximum unused time that the dispatchers may use later.
	late = 5 * time.Millisecond
)

// throttle charges all turns to one budget. Each dispatcher waits in proportion to the cost of its turn.
type throttle struct {
	busy      func() bool  // reports whether other work needs the CPU; nil means never
	free      atomic.Bool  // deliveries are not limited
	published atomic.Int64 // cost of delivering all published messages once, in nanoseconds

	mu       sync.Mutex    // guards the fields below
	fraction float64       // fraction of one CPU that deliveries may use; may exceed 1
	paid     time.Time     // time at which the budget covers all previous turns; zero if there is no debt
	idle     chan struct{} // closed and replaced when other work no longer needs the CPU
	seen     int64         // value of published at seenAt
	seenAt   time.Time
	rate     float64 // fraction of one CPU needed to deliver the published messages once
}

func newThrottle(busy func() bool, share float64) *throttle {
	return &throttle{busy: busy, fraction: share, idle: make(chan struct{})}
}

func (t *throttle) setFraction(share float64) {
	t.free.Store(share >= 1)
	t.mu.Lock()
	t.fraction = share * float64(runtime.GOMAXPROCS(0))
	t.mu.Unlock()
	t.isBusy() // wakes waiting dispatchers if the limit is off
}

// isBusy reports whether turns must be short and are charged. If not, isBusy wakes waiting dispatchers.
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

// wait waits after a turn that has read messages. others is the number of messages that the turn filtered out. wait
// returns early if ctx ends or other work no longer needs the CPU.
func (t *throttle) wait(ctx context.Context, messages []Message, others int) {
	if len(messages)+others == 0 || !t.isBusy() {
		return
	}
	bytes := 0
	for i := range messages {
		bytes += len(messages[i].Record)
	}
	wait, idle := t.charge(time.Now(), batchCost+price(len(messages)+others, bytes))
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		t.isBusy() // wakes waiting dispatchers if other work no longer needs the CPU
	case <-idle:
	case <-ctx.Done():
	}
}

func price(messages, bytes int) time.Duration {
	return time.Duration(messages)*messageCost + time.Duration(bytes)*kibCost/1024
}

func (t *throttle) publish(messages, bytes int) {
	if t.busy != nil && !t.free.Load() {
		t.published.Add(int64(price(messages, bytes)) + int64(messages)*int64(batchCost)/batchCPUMessages)
	}
}

func (t *throttle) follow(now time.Time) {
	d := now.Sub(t.seenAt)
	if d < rateEvery {
		return
	}
	n := t.published.Load()
	rate := float64(n-t.seen) / float64(d)
	if d > time.Second { // restart the average after a long gap
		t.rate = rate
	}
	t.rate += (rate - t.rate) * rateWeight
	t.seen, t.seenAt = n, now
}

// charge charges the cost of a turn. It returns how long the dispatcher must wait. The wait ends early when idle is
// closed.
func (t *throttle) charge(now time.Time, cost time.Duration) (wait time.Duration, idle <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if least := now.Add(-late); t.paid.Before(least) {
		t.paid = least
	}
	t.follow(now)
	t.paid = t.paid.Add(time.Duration(float64(cost) / max(t.fraction, t.rate)))
	return time.Duration(float64(t.paid.Sub(now)) * float64(cost) / float64(fullBatch)), t.idle
}
