// SPDX-License-Identifier: Apache-2.0

// Package pace keeps long work in the background from being felt in the foreground: it makes the work pause, so that it
// takes a share of the time, copies so many bytes per second, or both. A Governor finds the share for all work of a
// node, by what commits take; limits are the most that work takes in any case.
package pace

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// slice is how long work goes on before it pauses. It is short, because other work that wants the processor or the
	// disk meanwhile may have to wait for its end.
	slice = 2 * time.Millisecond
	// longest bounds a pause: after a slow disk, for which a piece of work took seconds, it need not stand still for as
	// long.
	longest = time.Second
	// burstTime is how much of its rate a limited work may be ahead, burstLeast and burstMost bound the bytes of that.
	burstTime  = 100 * time.Millisecond
	burstLeast = 4 << 10
	burstMost  = 1 << 20
)

// Limits of a piece of work. The zero value has none.
type Limits struct {
	// Percent of the time that the work may go on; it pauses for the rest. 0, or 100 and more, means without a pause.
	Percent int
	// BytesPerSecond that the work may read or write; 0 means any number.
	BytesPerSecond int64
	// Governor, if not nil, makes the share smaller while commits take longer than without the work.
	Governor *Governor
}

// Pacer makes a piece of work keep its limits. A nil Pacer has none. Its methods may be called from any goroutine; the
// share of the time is that of all of them together, as long as only one of them works at a time.
type Pacer struct {
	percent  int
	bytes    *rate.Limiter // nil: no limit
	governor *Governor     // nil: none

	mu    sync.Mutex // guards since
	since time.Time  // when the work last went on
}

// fullSpeed is the key of a context's wish.
type fullSpeed struct{}

// FullSpeed says, to whatever work in the background ctx is for, that it need not be kept from being felt.
func FullSpeed(ctx context.Context) context.Context { return context.WithValue(ctx, fullSpeed{}, true) }

// IsFullSpeed tells whether FullSpeed was said.
func IsFullSpeed(ctx context.Context) bool { return ctx.Value(fullSpeed{}) != nil }

// New begins a piece of work. It returns nil if nothing limits it.
func New(l Limits) *Pacer {
	if l.Percent >= 100 {
		l.Percent = 0
	}
	if l.Percent <= 0 && l.BytesPerSecond <= 0 && l.Governor == nil {
		return nil
	}
	p := &Pacer{percent: max(l.Percent, 0), since: time.Now(), governor: l.Governor}
	if l.BytesPerSecond > 0 {
		burst := min(max(int64(float64(l.BytesPerSecond)*burstTime.Seconds()), burstLeast), burstMost)
		p.bytes = rate.NewLimiter(rate.Limit(l.BytesPerSecond), int(burst))
	}
	return p
}

// Did is called between two pieces of the work, often, with the bytes that the last one read or wrote. It pauses when
// it is time to. It returns the error of the context as soon as that ends.
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
			if ctx.Err() == nil { // the limiter sees that the context will end before it is n's turn
				<-ctx.Done()
			}
			return fmt.Errorf("wait for the rate limit: %w", ctx.Err())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Now() // waiting is no work
	return nil
}

// Unhindered tells whether the work goes on without a pause at present, so that it may do larger pieces at a time.
func (p *Pacer) Unhindered() bool {
	if p == nil {
		return true
	}
	return p.percent == 0 && p.governor.shareOf(time.Now()) == fullShare
}

// rest pauses in proportion to how long the work went on.
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
	share := p.governor.shareOf(now)
	if p.percent > 0 {
		share = min(share, p.percent*fullShare/100)
	}
	if share < fullShare {
		pause := min(worked*time.Duration(fullShare-share)/time.Duration(share), longest)
		p.governor.pauses(now.Add(pause))
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
