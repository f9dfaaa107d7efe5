// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Step is the progress of an operation.
type Step struct {
	Phase string
	// Done and Total are in bytes, or in messages; Total is 0 if unknown.
	Done, Total uint64
	Messages    bool
	// Left is the remaining time estimated by the node; if 0, it is estimated from the rate.
	Left time.Duration
}

// StepOf converts the progress reported by a node.
func StepOf(p *pb.Progress) Step {
	return Step{
		Phase: p.GetPhase(), Done: p.GetDoneBytes(), Total: p.GetTotalBytes(), Left: p.GetEta().AsDuration(),
	}
}

const (
	barWidth   = 28
	plainEvery = 5 * time.Second // minimum interval of plain lines, except for the first and the last
)

// Bar is the progress bar of one operation. It is safe for concurrent use.
type Bar struct {
	label string

	mu    sync.Mutex // guards all fields below
	step  Step
	began time.Time // start of the phase; zero before the operation starts
	ended string

	lineAt time.Time // time of the last plain line
	fresh  bool      // changed after that line
}

// NewBar creates an empty bar.
func NewBar(label string) *Bar { return &Bar{label: label} }

// Set sets the progress of the operation.
func (b *Bar) Set(s Step) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.began.IsZero() || s.Phase != b.step.Phase || s.Done < b.step.Done {
		b.began = time.Now()
	}
	b.fresh = b.fresh || s != b.step
	b.step, b.ended = s, ""
}

// End sets the result of the operation.
func (b *Bar) End(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fresh = b.fresh || text != b.ended
	b.ended = text
}

// Line returns the bar for a terminal; empty before the operation starts.
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

// Due returns a line for plain output if one is due: the bar has changed, and either the operation has ended or
// plainEvery has passed since the previous line.
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

// figures returns the amount, rate and remaining time. The caller holds mu.
func (b *Bar) figures(elapsed time.Duration) string {
	s, text := b.step, ""
	amount := output.Bytes[uint64]
	if s.Messages {
		amount = func(n uint64) string { return output.Plural(n, "message") }
	}
	if s.Total > 0 {
		text = fmt.Sprintf(" %d%%, %s of %s", min(s.Done, s.Total)*100/s.Total, amount(s.Done), amount(s.Total))
	} else if s.Done > 0 {
		text = " " + amount(s.Done)
	}
	if elapsed < 50*time.Millisecond || s.Done == 0 {
		return text
	}
	rate := float64(s.Done) / elapsed.Seconds()
	text += fmt.Sprintf(", %s/s", amount(uint64(rate)))
	left := s.Left
	if left == 0 && s.Total > s.Done {
		left = time.Duration(float64(s.Total-s.Done) / rate * float64(time.Second))
	}
	if left > 0 {
		text += fmt.Sprintf(", %v left", left.Round(100*time.Millisecond))
	}
	return text
}
