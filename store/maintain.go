package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/store/page"
)

// Errors of maintenance: scan, rewrite, shrink.
var (
	// ErrMaintenance is returned when a rewrite or a shrink is asked for while one is under way; see MaintenanceError.
	ErrMaintenance = errors.New("maintenance of the page file is under way")
	// ErrCanceled is returned by a rewrite or a shrink that was given up before it changed anything, because its
	// context ended, or because the store was closed or replaced by its peer's. The error of the context is wrapped,
	// too.
	ErrCanceled = errors.New("canceled; page.db is as it was")
	// ErrNoSpace is returned when a rewrite would not fit on the disk; see SpaceError.
	ErrNoSpace = errors.New("not enough free space")
)

// MaintenanceError says what is under way. errors.Is(err, ErrMaintenance) holds for it.
type MaintenanceError struct {
	// Running is "rewrite", "shrink" or "drop-old"; Since is when it began.
	Running string
	Since   time.Time
}

// Error says what is under way and what to do.
func (e *MaintenanceError) Error() string {
	return fmt.Sprintf("%v: a %s has been running since %s; wait for it, or cancel it", ErrMaintenance, e.Running,
		e.Since.UTC().Format(time.RFC3339))
}

// Is makes errors.Is(err, ErrMaintenance) hold.
func (e *MaintenanceError) Is(target error) bool { return target == ErrMaintenance }

// SpaceError has the two figures that a rewrite was refused for, or stopped. errors.Is(err, ErrNoSpace) holds for it.
type SpaceError struct {
	// NeedBytes is what the new file takes, 0 when it has its space already, and ReserveBytes what must stay free for
	// the log meanwhile.
	NeedBytes, ReserveBytes uint64
	// AvailableBytes is what this process may still use.
	AvailableBytes uint64
}

// Error has the figures.
func (e *SpaceError) Error() string {
	if e.NeedBytes == 0 {
		return fmt.Sprintf("%v: %d bytes must stay free for the log, and %d are available; free some space, or "+
			"consume messages first",
			ErrNoSpace, e.ReserveBytes, e.AvailableBytes)
	}
	return fmt.Sprintf("%v: the new page file takes %d bytes, %d more must stay free for the log, and %d are "+
		"available; free some space, "+
		"or consume messages first", ErrNoSpace, e.NeedBytes, e.ReserveBytes, e.AvailableBytes)
}

// Is makes errors.Is(err, ErrNoSpace) hold.
func (e *SpaceError) Is(target error) bool { return target == ErrNoSpace }

// Progress tells how far a scan, a plan or a rewrite is.
type Progress struct {
	// Phase is "checkpoint", "plan", "scan", "copy", "finish" or "done".
	Phase string
	// Pages of the present file that were dealt with, and how many there are.
	Pages, TotalPages uint64
	// Messages that were read (scan, plan) or written (copy), their bytes, and how many there are as far as that is
	// known.
	Messages, TotalMessages, Bytes, TotalBytes uint64
	// Elapsed since the phase began, and how long it will still take if it goes on like this; Left is 0 when nothing is
	// known.
	Elapsed, Left time.Duration
}

const (
	// progressEvery is how often progress is reported, at most.
	progressEvery = 100 * time.Millisecond
	// After so many calls of meter.did, or so many bytes, the clock is looked at. What is slow on purpose reports in
	// time as well.
	ticksPerLook = 64
	bytesPerLook = 32 << 10
)

// meter reports progress from the goroutine that does the work.
type meter struct {
	report  func(Progress) // may be nil
	now     Progress
	started time.Time
	last    time.Time
	ticks   int
	unseen  uint64 // bytes since the clock was looked at
}

// phase begins another phase, and reports it at once.
func (m *meter) phase(name string, pages uint64) {
	m.started = time.Now()
	m.now = Progress{Phase: name, TotalPages: pages, TotalMessages: m.now.TotalMessages, TotalBytes: m.now.TotalBytes}
	m.send(m.started)
}

// did counts what was done. The clock is looked at now and then only.
func (m *meter) did(pages, messages, bytes uint64) {
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

func (m *meter) send(t time.Time) {
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

// maintenance is what changes a store's page file as a whole: one thing at a time.
type maintenance struct {
	mu      sync.Mutex // guards what follows
	running *upkeep
	closed  bool
	stop    chan struct{} // closed by close
	joined  sync.WaitGroup
}

// upkeep is one piece of maintenance under way.
type upkeep struct {
	what   string
	since  time.Time
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing of it is left, also in the background
}

// begin registers a piece of maintenance, or says why it cannot be now. The context ends with ctx, end, or interrupt.
func (m *maintenance) begin(ctx context.Context, what string) (context.Context, *upkeep, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, ErrClosed
	}
	if r := m.running; r != nil {
		return nil, nil, &MaintenanceError{Running: r.what, Since: r.since}
	}
	ctx, cancel := context.WithCancel(ctx)
	m.running = &upkeep{what: what, since: time.Now(), cancel: cancel, done: make(chan struct{})}
	return ctx, m.running, nil
}

// end is called when nothing of it is left.
func (m *maintenance) end(u *upkeep) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u.cancel()
	m.running = nil
	close(u.done)
}

// interrupt cancels what is under way and waits until nothing of it is left.
func (m *maintenance) interrupt() {
	m.mu.Lock()
	u := m.running
	m.mu.Unlock()
	if u != nil {
		u.cancel()
		<-u.done
	}
}

// close cancels what is under way, waits for it, and lets nothing begin any more.
func (m *maintenance) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.interrupt()
	m.mu.Lock()
	if m.stop != nil {
		close(m.stop)
		m.stop = nil
	}
	m.mu.Unlock()
	m.joined.Wait()
}

// Maintenance tells what is under way; ok is false when nothing is.
func (s *Store) Maintenance() (what string, since time.Time, ok bool) {
	s.maint.mu.Lock()
	defer s.maint.mu.Unlock()
	if u := s.maint.running; u != nil {
		return u.what, u.since, true
	}
	return "", time.Time{}, false
}

// retireEvery is how often a replaced page file is looked at for readers.
const retireEvery = 50 * time.Millisecond

// retire closes a page file that was replaced as soon as nobody reads it any more: a snapshot that was opened before
// goes on.
func (m *maintenance) retire(file *page.File, failed func(error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stop == nil {
		m.stop = make(chan struct{})
	}
	stop := m.stop
	m.joined.Go(func() {
		tick := time.NewTicker(retireEvery)
		defer tick.Stop()
		for st := file.Stats(); st.Pins+st.Guards > 0; st = file.Stats() {
			select {
			case <-tick.C:
				continue
			case <-stop:
			}
			break
		}
		if err := file.Close(); err != nil {
			failed(err)
		}
	})
}
