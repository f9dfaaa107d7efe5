// SPDX-License-Identifier: Apache-2.0

package checkpoint

import "time"

// Progress tells how far a long operation is: a scan, a plan, a rewrite, a backup, a restore. What an operation does
// not count is 0, and so is a total that is not known.
type Progress struct {
	// Phase is what is being done: "checkpoint", "plan", "scan", "copy", "finish" or "done"; of a backup also "verify",
	// "check" and "log".
	Phase string
	// Pages that were dealt with, and how many there are.
	Pages, TotalPages uint64
	// Messages that were read (scan, plan) or written (copy), and how many there are.
	Messages, TotalMessages uint64
	// Bytes that were dealt with, and how many there are: of a scan, a plan and a rewrite those of the messages.
	Bytes, TotalBytes uint64
	// Elapsed since the phase began, and how long it will still take if it goes on like this; Left is 0 when nothing is
	// known.
	Elapsed, Left time.Duration
}

const (
	// progressEvery is how often progress is reported, at most.
	progressEvery = 100 * time.Millisecond
	// After so many calls of Meter.Did, or so many bytes, the clock is looked at. What is slow on purpose reports in
	// time as well.
	ticksPerLook = 64
	bytesPerLook = 32 << 10
)

// Meter reports progress from the goroutine that does the work.
type Meter struct {
	report  func(Progress) // may be nil
	now     Progress
	started time.Time
	last    time.Time
	ticks   int
	unseen  uint64 // bytes since the clock was looked at
}

// NewMeter makes a meter that calls report, which may be nil.
func NewMeter(report func(Progress)) *Meter { return &Meter{report: report} }

// Expect says how many messages there are, and their bytes.
func (m *Meter) Expect(messages, bytes uint64) {
	m.now.TotalMessages, m.now.TotalBytes = messages, bytes
}

// Phase begins another phase over so many pages, and reports it at once.
func (m *Meter) Phase(name string, pages uint64) {
	m.started = time.Now()
	m.now = Progress{Phase: name, TotalPages: pages, TotalMessages: m.now.TotalMessages, TotalBytes: m.now.TotalBytes}
	m.send(m.started)
}

// Done begins the last phase.
func (m *Meter) Done() { m.Phase("done", m.now.TotalPages) }

// Did counts what was done. The clock is looked at now and then only.
func (m *Meter) Did(pages, messages, bytes uint64) {
	m.now.Pages += pages
	m.now.Messages += messages
	m.now.Bytes += bytes
	m.ticks++
	m.unseen += bytes
	if m.report == nil || m.ticks < ticksPerLook && m.unseen < bytesPerLook {
		return
	}
	m.ticks, m.unseen = 0, 0
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
