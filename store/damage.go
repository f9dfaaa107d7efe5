// SPDX-License-Identifier: Apache-2.0

package store

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
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// maxDamaged bounds the number of corrupt messages that are tracked individually. A store with more corruption needs
// a new disk, not a longer list.
const maxDamaged = 100_000

// unreadable reports whether a read error means that the data on this disk is lost. It is either corrupt, or cannot
// be read at all, as with a bad sector. The other node still has the data. A failed write or sync is a different
// error (INV-7).
func unreadable(err error) bool {
	return errors.Is(err, page.ErrCorrupt) || (errors.Is(err, syscall.EIO) && !errors.Is(err, page.ErrFailed))
}

// DamagedMessagesError lists the messages of a queue that cannot be read. It matches index.ErrDataLoss.
type DamagedMessagesError struct {
	// Queue that contains the messages.
	Queue uint64
	// Sequences of the requested messages that are corrupt, in ascending order.
	Sequences []uint64
	// Err is the underlying error.
	Err error
}

// Error returns the queue, the sequences and the underlying error.
func (e *DamagedMessagesError) Error() string {
	what := fmt.Sprintf("sequence %d", e.Sequences[0])
	if n := len(e.Sequences); n > 1 {
		what = fmt.Sprintf("%d messages from sequence %d to %d", n, e.Sequences[0], e.Sequences[n-1])
	}
	return fmt.Sprintf("%v: queue %d, %s: %v", index.ErrDataLoss, e.Queue, what, e.Err)
}

// Is reports whether target is index.ErrDataLoss.
func (e *DamagedMessagesError) Is(target error) bool { return target == index.ErrDataLoss }

// Unwrap returns the underlying error.
func (e *DamagedMessagesError) Unwrap() error { return e.Err }

// DamagedMessage is a message that a subscription needs and that this node cannot read.
type DamagedMessage struct {
	// Queue is the number of the queue, Name its name.
	Queue uint64
	Name  string
	// Sequence in the queue.
	Sequence uint64
	// Reason is the error on this node and the reason why the message was not repaired.
	Reason string
	// Lost is set if the other node reported that its copy is corrupt too. Otherwise the other node will be asked.
	Lost bool
	// Since is the time at which the corruption was detected.
	Since time.Time
}

// DamageStatus counts corruption found and repaired since the store was opened.
type DamageStatus struct {
	// ScrubbedPages and ScrubbedLogBytes were checked by the scrub. Scrubs is the number of complete scrubs; the last
	// one finished at LastScrub.
	ScrubbedPages, ScrubbedLogBytes, Scrubs uint64
	LastScrub                               time.Time
	// FoundPages and FoundLog count corrupt extents and corrupt positions in the log.
	FoundPages, FoundLog uint64
	// RepairedPages counts repaired extents, RepairedMessages the messages fetched from the other node for them.
	// RepairedLog counts corrupt log positions that were discarded because a checkpoint holds their content.
	RepairedPages, RepairedMessages, RepairedLog uint64
	// SuspectPages counts corrupt pages that have not yet been assigned to an extent.
	SuspectPages uint64
	// DamagedMessages counts messages that are needed but cannot be read. LostMessages of them are also corrupt on
	// the other node.
	DamagedMessages, LostMessages uint64
	// DamagedLogLSN is a log record that cannot be read and is not yet discarded; 0 if none.
	DamagedLogLSN uint64
	// Index is set if data other than messages is corrupt. Only a copy of the other node's store repairs that.
	Index error
}

type messageKey struct{ queue, seq uint64 }

// damaged describes a corrupt message.
type damaged struct {
	reason string
	lost   bool
	since  time.Time
	tried  time.Time // time of the last repair attempt
}

// damage tracks and counts the corruption in a store.
type damage struct {
	source atomic.Pointer[MessageSource] // nil if no other node can be asked
	alone  atomic.Bool                   // the data was never replicated to another node
	busy   chan struct{}                 // holds one token during a repair

	// index is the reason why the store must be replaced, if any.
	index  atomic.Pointer[error]
	giveUp atomic.Bool // the store is about to be replaced: nothing waits for its pages

	mu       sync.Mutex // guards the fields below
	messages map[messageKey]*damaged
	suspects map[page.No]error // corrupt pages; RepairAll determines their extents
	log      uint64            // LSN of a corrupt log record that must be discarded; 0 if none
	status   DamageStatus
}

func (d *damage) init() {
	d.busy = make(chan struct{}, 1)
	d.messages = make(map[messageKey]*damaged)
	d.suspects = make(map[page.No]error)
}

// use makes file the store's page file. mu is held, or the store is not yet in use.
func (s *Store) use(file *page.File) {
	s.file = file
	file.UseCache(s.cacheUse())
	file.OnCorruption(func(no page.No, err error) {
		d := &s.damage
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.suspects) < maxDamaged {
			d.suspects[no] = err
		}
	})
}

func (d *damage) count(fn func(*DamageStatus)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fn(&d.status)
}

// note records corrupt messages and logs new ones.
func (s *Store) note(e *DamagedMessagesError) {
	d := &s.damage
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	fresh := 0
	for _, seq := range e.Sequences {
		key := messageKey{e.Queue, seq}
		m := d.messages[key]
		if m == nil {
			if len(d.messages) >= maxDamaged {
				continue
			}
			fresh++
			m = &damaged{since: now}
			d.messages[key] = m
		}
		m.reason = e.Err.Error()
	}
	if fresh > 0 {
		s.o.Events(events.MessagesCorrupt{
			Queue: e.Queue, First: e.Sequences[0], Last: e.Sequences[len(e.Sequences)-1], Messages: fresh, Err: e.Err,
		})
	}
}

// noteAnswer records the other node's response about corrupt messages.
func (s *Store) noteAnswer(e *DamagedMessagesError, lost bool) {
	s.note(e)
	s.damage.mu.Lock()
	defer s.damage.mu.Unlock()
	for _, seq := range e.Sequences {
		if m := s.damage.messages[messageKey{e.Queue, seq}]; m != nil {
			m.lost = lost
		}
	}
}

// mayRepair returns an error if all missing messages had a recent repair attempt, within lostAgain or repairAgain.
// With atOnce only lostAgain applies. Otherwise it records a new attempt.
func (s *Store) mayRepair(queueID uint64, missing []uint64, why error, atOnce bool) error {
	s.note(&DamagedMessagesError{Queue: queueID, Sequences: missing, Err: why})
	d := &s.damage
	d.mu.Lock()
	defer d.mu.Unlock()
	now, recent, found := time.Now(), true, false
	for _, q := range missing {
		if m := d.messages[messageKey{queueID, q}]; m != nil {
			wait := repairAgain
			switch {
			case m.lost:
				wait = lostAgain
			case atOnce:
				wait = 0
			}
			found = found || m.tried.IsZero()
			recent = recent && !m.tried.IsZero() && now.Sub(m.tried) < wait
		}
	}
	if found {
		d.status.FoundPages++
	}
	if recent {
		return fmt.Errorf("%w (its repair was tried a moment ago)", why)
	}
	for _, q := range missing {
		if m := d.messages[messageKey{queueID, q}]; m != nil {
			m.tried = now
		}
	}
	return nil
}

// has reports whether a message is known to be corrupt.
func (d *damage) has(queueID, seq uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.messages[messageKey{queueID, seq}] != nil
}

// forget removes messages that became readable or that no subscription needs.
func (d *damage) forget(queueID uint64, sequences []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, seq := range sequences {
		delete(d.messages, messageKey{queueID, seq})
	}
}

// noteIndex records that data other than messages is corrupt. It returns the error, wrapped in ErrIndexDamaged.
func (s *Store) noteIndex(err error) error {
	err = fmt.Errorf("%w: %w", ErrIndexDamaged, err)
	if s.damage.index.CompareAndSwap(nil, &err) {
		s.damage.count(func(st *DamageStatus) { st.FoundPages++ })
		s.o.Events(events.IndexCorrupt{Err: err})
	}
	return err
}

// IndexDamage returns the reason why the store must be replaced by a copy of the other node's store, or nil.
func (s *Store) IndexDamage() error {
	if err := s.damage.index.Load(); err != nil {
		return *err
	}
	return nil
}

// GiveUpPages is called before the store is replaced by a snapshot because of IndexDamage. Records applied until then
// stay in memory regardless of the budget, because pages cannot be written.
func (s *Store) GiveUpPages() {
	s.damage.giveUp.Store(true)
	s.wakeRoom()
}

// replaced clears all recorded corruption after the affected files were replaced.
func (d *damage) replaced() {
	d.index.Store(nil)
	d.giveUp.Store(false)
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.messages)
	clear(d.suspects)
	d.log = 0
}

// NoteDamage schedules a check of the corruption described by err. It is for errors of callers that read pages
// directly, such as a backup.
func (s *Store) NoteDamage(err error) {
	var bad *DamagedMessagesError
	if errors.As(err, &bad) {
		s.note(bad)
		return
	}
	var in *page.CorruptError
	if errors.As(err, &in) && in.Page != 0 {
		s.damage.mu.Lock()
		defer s.damage.mu.Unlock()
		s.damage.suspects[in.Page] = err
	}
}

// LogDamaged records that a log record cannot be read. The reader of the log calls it; the next RepairAll discards
// the record.
func (s *Store) LogDamaged(err error) {
	var in *wal.CorruptError
	if !errors.As(err, &in) {
		return
	}
	d := &s.damage
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.log < in.LSN {
		d.log = in.LSN
		d.status.FoundLog++
		s.o.Events(events.LogCorrupt{Err: err})
	}
}

// inLog returns the LSN of the last corrupt log record, or 0.
func (d *damage) inLog() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log
}

// logGivenUp records that the log up to a corrupt record was discarded. It reports whether that was the last known
// one.
func (d *damage) logGivenUp(at uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.log != at {
		return false
	}
	d.log = 0
	d.status.RepairedLog++
	return true
}

// suspectPages returns the corrupt pages that have not been resolved yet, with their errors.
func (d *damage) suspectPages() map[page.No]error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.suspects)
}

// lookedUp removes suspect pages after they were resolved.
func (d *damage) lookedUp(suspects map[page.No]error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for no := range suspects {
		delete(d.suspects, no)
	}
}

// Damaged lists up to limit messages that are needed but cannot be read, by queue and sequence. Messages acknowledged
// since then are dropped from the list.
func (s *Store) Damaged(limit int) []DamagedMessage {
	d := &s.damage
	d.mu.Lock()
	all := make([]DamagedMessage, 0, len(d.messages))
	for key, m := range d.messages {
		all = append(all, DamagedMessage{
			Queue: key.queue, Sequence: key.seq, Reason: m.reason, Lost: m.lost,
			Since: m.since,
		})
	}
	d.mu.Unlock()
	slices.SortFunc(all, func(a, b DamagedMessage) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Sequence, b.Sequence))
	})
	gone := make(map[uint64][]uint64)
	s.mu.RLock()
	all = slices.DeleteFunc(all, func(m DamagedMessage) bool {
		q := s.state.Queue(m.Queue)
		dead := q == nil || q.Dead(m.Sequence)
		if dead {
			gone[m.Queue] = append(gone[m.Queue], m.Sequence)
		}
		return dead
	})
	for i := range all {
		all[i].Name = s.state.Queue(all[i].Queue).Name()
	}
	s.mu.RUnlock()
	for id, sequences := range maps.All(gone) {
		d.forget(id, sequences)
	}
	return all[:min(limit, len(all))]
}

// DamageStatus returns the counters of found and repaired corruption.
func (s *Store) DamageStatus() DamageStatus {
	all := s.Damaged(maxDamaged)
	s.damage.mu.Lock()
	st := s.damage.status
	st.DamagedLogLSN, st.SuspectPages = s.damage.log, uint64(len(s.damage.suspects))
	s.damage.mu.Unlock()
	st.DamagedMessages, st.Index = uint64(len(all)), s.IndexDamage()
	for i := range all {
		if all[i].Lost {
			st.LostMessages++
		}
	}
	return st
}

// alive returns the sequences in [first, last] that a subscription needs. mu is held, at least for reading.
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
