// SPDX-License-Identifier: Apache-2.0

package checkpoint

import "time"

// Progress is the progress of a long operation, such as a scan, rewrite, backup or restore. Unknown values are 0.
type Progress struct {
	// Phase is "checkpoint", "plan", "scan", "copy", "finish" or "done"; for a backup or restore also "verify", "check"
	// and "log".
	Phase             string
	Pages, TotalPages uint64
	// Messages is the number of messages read (scan, plan) or written (copy).
	Messages, TotalMessages uint64
	// Bytes counts message bytes for a scan, a plan and a rewrite, and bytes read or written for a backup and a restore.
	Bytes, TotalBytes uint64
	Elapsed, Left     time.Duration
}

const (
	progressEvery = 100 * time.Millisecond
	// The clock is read after this many calls of Meter.Did or this many bytes.
	clockCheckTicks = 64
	clockCheckBytes = 32 << 10
)

// Meter reports progress from the goroutine that does the work.
type Meter struct {
	report         func(Progress)
	now            Progress
	started        time.Time
	last           time.Time
	ticks          int
	uncheckedBytes uint64
}

// NewMeter returns a meter that calls report, which may be nil.
func NewMeter(report func(Progress)) *Meter { return &Meter{report: report} }

// Expect sets the total number of messages and bytes.
func (m *Meter) Expect(messages, bytes uint64) {
	m.now.TotalMessages, m.now.TotalBytes = messages, bytes
}

// Phase begins a phase over the given number of pages, and reports it immediately.
func (m *Meter) Phase(name string, pages uint64) {
	m.started = time.Now()
	m.now = Progress{Phase: name, TotalPages: pages, TotalMessages: m.now.TotalMessages, TotalBytes: m.now.TotalBytes}
	m.send(m.started)
}

// Done begins and reports the last phase, "done".
func (m *Meter) Done() { m.Phase("done", m.now.TotalPages) }

// Did adds the numbers of processed pages, messages and bytes, and reports the progress at most every 100 ms.
func (m *Meter) Did(pages, messages, bytes uint64) {
	m.now.Pages += pages
	m.now.Messages += messages
	m.now.Bytes += bytes
	m.ticks++
	m.uncheckedBytes += bytes
	if m.report == nil || m.ticks < clockCheckTicks && m.uncheckedBytes < clockCheckBytes {
		return
	}
	m.ticks, m.uncheckedBytes = 0, 0
	if t := time.Now(); t.Sub(m.last) >= progressEvery {
		m.send(t)
	}
}

func (m *Meter) send(t time.Time) {
	m.last = t
	if m.report == nil {
		return
	}
	p := m.now
	p.Elapsed = t.Sub(m.started)
	if p.Pages > 0 && p.TotalPages > p.Pages {
		p.Left = time.Duration(float64(p.Elapsed) * float64(p.TotalPages-p.Pages) / float64(p.Pages))
	}
	m.report(p)
}
