// SPDX-License-Identifier: Apache-2.0

// Package repair records corruption in a store, searches for it with a scrub, and repairs it with copies of messages
// from the other node.
package repair

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// maxDamaged limits the number of corrupt messages that are tracked individually.
const maxDamaged = 100_000

// Unreadable reports whether a read error means that the data on this disk is lost, because it is corrupt or cannot
// be read (a bad sector). It returns false for a failed write or sync (INV-7).
func Unreadable(err error) bool {
	return errors.Is(err, page.ErrCorrupt) || (errors.Is(err, syscall.EIO) && !errors.Is(err, page.ErrFailed))
}

// CorruptError lists messages of a queue that cannot be read. It matches index.ErrDataLoss.
type CorruptError struct {
	Queue     uint64
	Sequences []uint64 // in ascending order
	Err       error
}

func (e *CorruptError) Error() string {
	what := fmt.Sprintf("sequence %d", e.Sequences[0])
	if n := len(e.Sequences); n > 1 {
		what = fmt.Sprintf("%d messages from sequence %d to %d", n, e.Sequences[0], e.Sequences[n-1])
	}
	return fmt.Sprintf("%v: queue %d, %s: %v", index.ErrDataLoss, e.Queue, what, e.Err)
}

// Is reports whether target is index.ErrDataLoss.
func (e *CorruptError) Is(target error) bool { return target == index.ErrDataLoss }

func (e *CorruptError) Unwrap() error { return e.Err }

// CorruptMessage is a message that a subscription needs and that this node cannot read.
type CorruptMessage struct {
	Queue    uint64
	Name     string // of the queue
	Sequence uint64
	// Reason contains the error on this node and the reason why the message was not repaired.
	Reason string
	// Lost is set if the other node has reported that its copy is also corrupt, or if no other node has a copy.
	Lost  bool
	Since time.Time
}

// Status contains the corruption found and repaired since the store was opened, and the current corruption.
type Status struct {
	// Scrubs is the number of complete scrubs; the last one finished at LastScrub.
	ScrubbedPages, ScrubbedLogBytes, Scrubs uint64
	LastScrub                               time.Time
	// FoundPages counts corrupt extents, and corruption of data other than messages. FoundLog counts corrupt records in
	// the log.
	FoundPages, FoundLog uint64
	// RepairedPages counts repaired extents, including those of the bitmap, and repairs of the header or the meta slots.
	// RepairedMessages counts messages that were fetched from the other node for these extents. RepairedLog counts
	// corrupt log records that were discarded because checkpoints contain their changes.
	RepairedPages, RepairedMessages, RepairedLog uint64
	// SuspectPages counts corrupt pages that are not yet assigned to an extent.
	SuspectPages uint64
	// DamagedMessages counts messages that are needed but cannot be read. LostMessages counts those without a valid
	// copy on the other node (CorruptMessage.Lost).
	DamagedMessages, LostMessages uint64
	// DamagedLogLSN is the LSN of a log record that cannot be read and is not yet discarded; 0 if none.
	DamagedLogLSN uint64
	// Index is the error if data other than messages is corrupt; otherwise nil. The store must then be replaced.
	Index error
}

type messageKey struct{ queue, seq uint64 }

type damaged struct {
	reason string
	lost   bool
	since  time.Time
	tried  time.Time // last repair attempt
}

// Engine is the store that uses a Repairer.
type Engine interface {
	Usable() error
	Applied() lsn.Position
	View(fn func(*queue.State))
	WakeRoom()
}

// Repairer records the corruption in a store and repairs it.
type Repairer struct {
	engine Engine
	events func(events.Event)
	pages  *pager.Pager
	wal    *wal.Log

	source atomic.Pointer[Source] // nil until SetSource is called
	alone  atomic.Bool            // no other node has a copy
	busy   chan struct{}

	index          atomic.Pointer[error]
	awaitsSnapshot atomic.Bool // set by AwaitSnapshot

	mu       sync.Mutex // guards the fields below
	messages map[messageKey]*damaged
	suspects map[page.No]error // corrupt pages of unknown use: see resolveSuspects
	log      uint64            // LSN of a corrupt log record to discard; 0 if none
	status   Status
}

// New returns a Repairer that only records corruption until Use is called.
func New(engine Engine, events func(events.Event)) *Repairer {
	return &Repairer{
		engine: engine, events: events, busy: make(chan struct{}, 1),
		messages: make(map[messageKey]*damaged), suspects: make(map[page.No]error),
	}
}

// Use sets the page file and the log that r repairs.
func (r *Repairer) Use(pages *pager.Pager, log *wal.Log) { r.pages, r.wal = pages, log }

// FoundPage records a corrupt page.
func (r *Repairer) FoundPage(no page.No, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.suspects) < maxDamaged {
		r.suspects[no] = err
	}
}

func (r *Repairer) count(fn func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(&r.status)
}

// Note records corrupt messages, and sends an event if some of them were not recorded before.
func (r *Repairer) Note(e *CorruptError) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := 0
	for _, seq := range e.Sequences {
		key := messageKey{e.Queue, seq}
		m := r.messages[key]
		if m == nil {
			if len(r.messages) >= maxDamaged {
				continue
			}
			fresh++
			m = &damaged{since: now}
			r.messages[key] = m
		}
		m.reason = e.Err.Error()
	}
	if fresh > 0 {
		r.events(events.MessagesCorrupt{
			Queue: e.Queue, First: e.Sequences[0], Last: e.Sequences[len(e.Sequences)-1], Messages: fresh, Err: e.Err,
		})
	}
}

func (r *Repairer) recordAnswer(e *CorruptError, lost bool) {
	r.Note(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, seq := range e.Sequences {
		if m := r.messages[messageKey{e.Queue, seq}]; m != nil {
			m.lost = lost
		}
	}
}

// mayRepair records the missing messages as corrupt. It returns an error if a repair of all of them was attempted
// within lostInterval for lost messages, and within repairInterval for other messages. If immediate is set, only
// lostInterval applies.
func (r *Repairer) mayRepair(queueID uint64, missing []uint64, why error, immediate bool) error {
	r.Note(&CorruptError{Queue: queueID, Sequences: missing, Err: why})
	r.mu.Lock()
	defer r.mu.Unlock()
	now, recent, found := time.Now(), true, false
	for _, q := range missing {
		if m := r.messages[messageKey{queueID, q}]; m != nil {
			wait := repairInterval
			switch {
			case m.lost:
				wait = lostInterval
			case immediate:
				wait = 0
			}
			found = found || m.tried.IsZero()
			recent = recent && !m.tried.IsZero() && now.Sub(m.tried) < wait
		}
	}
	if found {
		r.status.FoundPages++
	}
	if recent {
		return fmt.Errorf("%w (repair was tried recently)", why)
	}
	for _, q := range missing {
		if m := r.messages[messageKey{queueID, q}]; m != nil {
			m.tried = now
		}
	}
	return nil
}

func (r *Repairer) has(queueID, seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.messages[messageKey{queueID, seq}] != nil
}

func (r *Repairer) forget(queueID uint64, sequences []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, seq := range sequences {
		delete(r.messages, messageKey{queueID, seq})
	}
}

// recordIndex records that data other than messages is corrupt. It returns err combined with index.ErrCorrupt.
func (r *Repairer) recordIndex(err error) error {
	err = fmt.Errorf("%w: %w", index.ErrCorrupt, err)
	if r.index.CompareAndSwap(nil, &err) {
		r.count(func(st *Status) { st.FoundPages++ })
		r.events(events.IndexCorrupt{Err: err})
	}
	return err
}

// IndexError wraps the error of a failed index read. If err means that the index is corrupt, IndexError records this
// and returns an error that matches index.ErrCorrupt.
func (r *Repairer) IndexError(err error) error {
	if Unreadable(err) {
		return r.recordIndex(err)
	}
	return fmt.Errorf("read the index: %w", err)
}

// Survives reports whether an error of the pager is corruption that can be repaired from the other node. The store then
// continues without checkpoints, and Index returns an error.
func (r *Repairer) Survives(err error) bool {
	if !errors.Is(err, page.ErrCorrupt) && !errors.Is(err, index.ErrCorrupt) || !r.HasSource() {
		return false
	}
	if r.Index() == nil {
		_ = r.recordIndex(err)
	}
	return true
}

// Index returns an error if data other than messages is corrupt (Status.Index). Otherwise it returns nil.
func (r *Repairer) Index() error {
	if err := r.index.Load(); err != nil {
		return *err
	}
	return nil
}

// AwaitSnapshot removes the memory limit until a snapshot replaces the corrupt store (Index). The messages of applied
// records stay in memory until then.
func (r *Repairer) AwaitSnapshot() {
	r.awaitsSnapshot.Store(true)
	r.engine.WakeRoom()
}

// AwaitsSnapshot reports whether AwaitSnapshot was called and the store has not been replaced since.
func (r *Repairer) AwaitsSnapshot() bool { return r.awaitsSnapshot.Load() }

// Replaced clears all recorded corruption after the affected files were replaced.
func (r *Repairer) Replaced() {
	r.index.Store(nil)
	r.awaitsSnapshot.Store(false)
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.messages)
	clear(r.suspects)
	r.log = 0
}

// NoteError records the corruption described by err, if any, for the next RepairAll.
func (r *Repairer) NoteError(err error) {
	var bad *CorruptError
	if errors.As(err, &bad) {
		r.Note(bad)
		return
	}
	var in *page.CorruptError
	if errors.As(err, &in) && in.Page != 0 {
		r.FoundPage(in.Page, err)
	}
}

// NoteLogError records the corrupt log record described by err, if any. RepairAll discards the log up to the record
// once checkpoints contain its changes.
func (r *Repairer) NoteLogError(err error) {
	var in *wal.CorruptError
	if !errors.As(err, &in) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log < in.LSN {
		r.log = in.LSN
		r.status.FoundLog++
		r.events(events.LogCorrupt{Err: err})
	}
}

func (r *Repairer) corruptLSN() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log
}

// logDiscarded records that the log up to a corrupt record was discarded. It returns false if a later corrupt record
// was recorded in the meantime.
func (r *Repairer) logDiscarded(at uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log != at {
		return false
	}
	r.log = 0
	r.status.RepairedLog++
	return true
}

func (r *Repairer) suspectPages() map[page.No]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.suspects)
}

func (r *Repairer) suspectsResolved(suspects map[page.No]error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for no := range suspects {
		delete(r.suspects, no)
	}
}

// Damaged returns up to limit messages that are needed but cannot be read, sorted by queue and sequence. It removes
// the entries of messages that are no longer needed.
func (r *Repairer) Damaged(limit int) []CorruptMessage {
	r.mu.Lock()
	all := make([]CorruptMessage, 0, len(r.messages))
	for key, m := range r.messages {
		all = append(all, CorruptMessage{
			Queue: key.queue, Sequence: key.seq, Reason: m.reason, Lost: m.lost,
			Since: m.since,
		})
	}
	r.mu.Unlock()
	slices.SortFunc(all, func(a, b CorruptMessage) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Sequence, b.Sequence))
	})
	gone := make(map[uint64][]uint64)
	r.engine.View(func(state *queue.State) {
		all = slices.DeleteFunc(all, func(m CorruptMessage) bool {
			q := state.Queue(m.Queue)
			dead := q == nil || q.Dead(m.Sequence)
			if dead {
				gone[m.Queue] = append(gone[m.Queue], m.Sequence)
			}
			return dead
		})
		for i := range all {
			all[i].Name = state.Queue(all[i].Queue).Name()
		}
	})
	for id, sequences := range gone {
		r.forget(id, sequences)
	}
	return all[:min(limit, len(all))]
}

// Status returns the counters of found and repaired corruption, and the current corruption.
func (r *Repairer) Status() Status {
	all := r.Damaged(maxDamaged)
	r.mu.Lock()
	st := r.status
	st.DamagedLogLSN, st.SuspectPages = r.log, uint64(len(r.suspects))
	r.mu.Unlock()
	st.DamagedMessages, st.Index = uint64(len(all)), r.Index()
	for i := range all {
		if all[i].Lost {
			st.LostMessages++
		}
	}
	return st
}

// alive returns the sequences in [first, last] that at least one subscription needs.
func alive(q *queue.Queue, first, last uint64) []uint64 {
	if q == nil {
		return nil
	}
	var out []uint64
	for seq := q.NextAlive(first); seq <= last && seq < q.NextSequence(); seq = q.NextAlive(seq + 1) {
		out = append(out, seq)
	}
	return out
}
