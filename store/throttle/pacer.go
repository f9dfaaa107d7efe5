// SPDX-License-Identifier: Apache-2.0

// Package throttle limits background work to a fraction of the time and to a number of bytes per second. A Governor
// adapts the fraction for all work of a node to the commit latency, up to the configured limit.
package throttle

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// slice is the time for which work runs before it pauses. The pauses must be frequent: while all processors are busy,
	// the Go scheduler checks the network only every 10 ms, and a thread of another process waits for a time slice of
	// the kernel (3 ms).
	slice = time.Millisecond
	// longest is the maximum pause, even after a slow disk operation of several seconds.
	longest = time.Second
	// burstTime determines the size of a burst: its duration at the rate limit. minBurst and maxBurst limit the size
	// in bytes.
	burstTime = 100 * time.Millisecond
	minBurst  = 4 << 10
	maxBurst  = 1 << 20
)

// Limits contains the limits of background work. The zero value means unlimited.
type Limits struct {
	// Percent is the percentage of the time for which work may run. 0, or 100 and more, means no pauses.
	Percent int
	// BytesPerSecond is the maximum rate of reads or writes; 0 means unlimited.
	BytesPerSecond int64
	// Governor, if not nil, reduces the fraction while the work slows down commits.
	Governor *Governor
}

// Pacer enforces the limits of background work. A nil Pacer has no limits. It is safe for concurrent use, but the
// fraction of the time is only exact if its callers do not work concurrently.
type Pacer struct {
	percent  int
	bytes    *rate.Limiter // nil: no limit
	governor *Governor     // nil: none

	mu    sync.Mutex // guards since
	since time.Time  // end of the last pause
}

type fullSpeed struct{}

// FullSpeed returns a context in which background work is not limited to a fraction of the time. The code that creates
// the Pacer must check it with IsFullSpeed.
func FullSpeed(ctx context.Context) context.Context { return context.WithValue(ctx, fullSpeed{}, true) }

// IsFullSpeed reports whether ctx is derived from a context returned by FullSpeed.
func IsFullSpeed(ctx context.Context) bool { return ctx.Value(fullSpeed{}) != nil }

// New returns a Pacer with the given limits, or nil if l has no limits.
func New(l Limits) *Pacer {
	if l.Percent >= 100 {
		l.Percent = 0
	}
	if l.Percent <= 0 && l.BytesPerSecond <= 0 && l.Governor == nil {
		return nil
	}
	p := &Pacer{percent: max(l.Percent, 0), since: time.Now(), governor: l.Governor}
	if l.BytesPerSecond > 0 {
		burst := min(max(int64(float64(l.BytesPerSecond)*burstTime.Seconds()), minBurst), maxBurst)
		p.bytes = rate.NewLimiter(rate.Limit(l.BytesPerSecond), int(burst))
	}
	return p
}

// Did pauses as the limits require. It must be called frequently, after each step of the work, with the number of
// bytes that the step read or wrote. If ctx ends during a pause, Did immediately returns an error that wraps the
// error of ctx. If no pause is necessary, Did may not check ctx.
func (p *Pacer) Did(ctx context.Context, bytes int) error {
	if p == nil {
		return nil
	}
	if err := p.rest(ctx); err != nil {
		return err
	}
	if p.bytes == nil {
		return nil
	}
	for bytes > 0 {
		n := min(bytes, p.bytes.Burst())
		bytes -= n
		if err := p.bytes.WaitN(ctx, n); err != nil {
			if ctx.Err() == nil { // the limiter detects that the context will end before n bytes are available
				<-ctx.Done()
			}
			return fmt.Errorf("wait for the rate limit: %w", ctx.Err())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Now() // waiting does not count as work
	return nil
}

// Unhindered reports whether the work currently gets the whole time. It ignores the limit on bytes per second. The
// Governor counts the call as work.
func (p *Pacer) Unhindered() bool {
	if p == nil {
		return true
	}
	return p.percent == 0 && p.governor.fractionAt(time.Now()) == fullFraction
}

func (p *Pacer) rest(ctx context.Context) error {
	if p.percent == 0 && p.governor == nil {
		return nil
	}
	now := time.Now()
	p.mu.Lock()
	worked := now.Sub(p.since)
	p.mu.Unlock()
	if worked < slice {
		return nil
	}
	share := p.governor.fractionAt(now)
	if p.percent > 0 {
		share = min(share, p.percent*fullFraction/100)
	}
	if share < fullFraction {
		pause := min(worked*time.Duration(fullFraction-share)/time.Duration(share), longest)
		p.governor.recordPause(now.Add(pause))
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("pause: %w", ctx.Err())
		}
		now = time.Now()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = now
	return nil
}
