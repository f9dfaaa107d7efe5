// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/out"
)

// Step says how far an operation is.
type Step struct {
	// Phase is what is being done.
	Phase string
	// Done and Total in bytes; Total 0: it is not known.
	Done, Total uint64
	// Left is the estimate of the node that does it; 0: none, it is made from the rate.
	Left time.Duration
}

const (
	barWidth   = 28
	plainEvery = 5 * time.Second // a plain line at most so often, except for the first and the last
)

// Bar is one operation. Safe for concurrent use.
type Bar struct {
	label string

	mu    sync.Mutex // guards all below
	step  Step
	began time.Time // of the phase; zero before the operation began
	ended string

	lineAt time.Time // of the last plain line
	fresh  bool      // something happened since
}

// NewBar makes a bar that shows nothing yet.
func NewBar(label string) *Bar { return &Bar{label: label} }

// Set says how far the operation is.
func (b *Bar) Set(s Step) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.began.IsZero() || s.Phase != b.step.Phase || s.Done < b.step.Done {
		b.began = time.Now()
	}
	b.fresh = b.fresh || s != b.step
	b.step, b.ended = s, ""
}

// End says how it ended.
func (b *Bar) End(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fresh = b.fresh || text != b.ended
	b.ended = text
}

// Line is the bar for a terminal; empty before it began.
func (b *Bar) Line() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended != "" {
		return b.label + ": " + b.ended
	}
	if b.began.IsZero() {
		return ""
	}
	bar := ""
	if s := b.step; s.Total > 0 {
		full := int(min(s.Done, s.Total) * barWidth / s.Total)
		bar = " " + strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
	}
	return b.label + ": " + b.step.Phase + bar + b.figures(time.Since(b.began))
}

// Due is a line for where there is no terminal, when it is time for another one.
func (b *Bar) Due() (line string, due bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.fresh {
		return "", false
	}
	now := time.Now()
	if b.ended == "" && now.Sub(b.lineAt) < plainEvery {
		return "", false
	}
	b.fresh, b.lineAt = false, now
	if b.ended != "" {
		return b.label + ": " + b.ended, true
	}
	return b.label + ": " + b.step.Phase + b.figures(now.Sub(b.began)), true
}

// figures are how much is done, how fast, and how long the rest takes. The caller holds mu.
func (b *Bar) figures(elapsed time.Duration) string {
	s, text := b.step, ""
	if s.Total > 0 {
		text = fmt.Sprintf(" %d%%, %s of %s", min(s.Done, s.Total)*100/s.Total, out.Bytes(s.Done), out.Bytes(s.Total))
	} else if s.Done > 0 {
		text = " " + out.Bytes(s.Done)
	}
	if elapsed < 50*time.Millisecond || s.Done == 0 {
		return text
	}
	rate := float64(s.Done) / elapsed.Seconds()
	text += fmt.Sprintf(", %s/s", out.Bytes(uint64(rate)))
	left := s.Left
	if left == 0 && s.Total > s.Done {
		left = time.Duration(float64(s.Total-s.Done) / rate * float64(time.Second))
	}
	if left > 0 {
		text += fmt.Sprintf(", %v left", left.Round(100*time.Millisecond))
	}
	return text
}
