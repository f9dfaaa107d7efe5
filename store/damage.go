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

// maxDamaged bounds how many damaged messages are remembered one by one. A store that is damaged all over needs its
// disk replaced, not a longer list.
const maxDamaged = 100_000

// unreadable tells whether an error of a read says that what was written is not to be had from the disk any more: it
// reads back as something else or, as from a bad sector, not at all. Either way the other node has it. A failed write
// or sync is something else (INV-7).
func unreadable(err error) bool {
	return errors.Is(err, page.ErrDamaged) || (errors.Is(err, syscall.EIO) && !errors.Is(err, page.ErrFailed))
}

// DamagedMessagesError says which messages of a queue cannot be read. It is an ErrDataLoss.
type DamagedMessagesError struct {
	// Queue that they are in.
	Queue uint64
	// Sequences of the messages that were asked for and are damaged; rising.
	Sequences []uint64
	// Err is what was found.
	Err error
}

// Error names the messages.
func (e *DamagedMessagesError) Error() string {
	what := fmt.Sprintf("sequence %d", e.Sequences[0])
	if n := len(e.Sequences); n > 1 {
		what = fmt.Sprintf("%d messages from sequence %d to %d", n, e.Sequences[0], e.Sequences[n-1])
	}
	return fmt.Sprintf("%v: queue %d, %s: %v", index.ErrDataLoss, e.Queue, what, e.Err)
}

// Is makes every DamagedMessagesError an ErrDataLoss.
func (e *DamagedMessagesError) Is(target error) bool { return target == index.ErrDataLoss }

// Unwrap returns what was found.
func (e *DamagedMessagesError) Unwrap() error { return e.Err }

// DamagedMessage is a message that a subscription wants and that this node cannot read.
type DamagedMessage struct {
	// Queue and its Name.
	Queue uint64
	Name  string
	// Sequence in the queue.
	Sequence uint64
	// Reason is what was found on this node, and why it was not repaired.
	Reason string
	// Lost: the other node says that its copy is damaged as well. Otherwise it could not be asked yet, and will be.
	Lost bool
	// Since when it is known.
	Since time.Time
}

// DamageStatus counts what was found to be damaged and repaired since the store was opened.
type DamageStatus struct {
	// ScrubbedPages and ScrubbedLogBytes were looked at by the scrub; Scrubs have gone through everything, the last one
	// at LastScrub.
	ScrubbedPages, ScrubbedLogBytes, Scrubs uint64
	LastScrub                               time.Time
	// FoundPages and FoundLog are runs of pages and places in the log that were found damaged.
	FoundPages, FoundLog uint64
	// RepairedPages were made good; RepairedMessages came from the other node for that. RepairedLog is log that was
	// given up because a checkpoint holds what was in it.
	RepairedPages, RepairedMessages, RepairedLog uint64
	// SuspectPages were found damaged, and it is not yet known what they are part of.
	SuspectPages uint64
	// DamagedMessages are wanted and cannot be read now; LostMessages of them are damaged on the other node as well.
	DamagedMessages, LostMessages uint64
	// DamagedLogLSN is a record of the log that cannot be read and that was not given up yet; 0: none.
	DamagedLogLSN uint64
	// Index is set when something other than messages is damaged, which only a copy of the other node's store makes
	// good.
	Index error
}

type messageKey struct{ queue, seq uint64 }

// damaged is what is known of a damaged message.
type damaged struct {
	reason string
	lost   bool
	since  time.Time
	tried  time.Time // when its repair was last tried
}

// damage knows what is damaged in a store, and counts.
type damage struct {
	source atomic.Pointer[MessageSource] // nil: no node to ask
	alone  atomic.Bool                   // no other node ever had what is here
	busy   chan struct{}                 // holds one token while a repair is under way

	// index is why the store needs to be replaced, if it does.
	index  atomic.Pointer[error]
	giveUp atomic.Bool // it is about to be replaced: nothing waits for its pages any more

	mu       sync.Mutex // guards what follows
	messages map[messageKey]*damaged
	suspects map[page.No]error // pages that were found damaged; RepairAll finds out what they are part of
	log      uint64            // a damaged place in the log that must go; 0: none
	status   DamageStatus
}

func (d *damage) init() {
	d.busy = make(chan struct{}, 1)
	d.messages = make(map[messageKey]*damaged)
	d.suspects = make(map[page.No]error)
}

// use makes a file the store's own. mu is held, or the store is not yet in use.
func (s *Store) use(file *page.File) {
	s.file = file
	file.UseCache(s.cacheUse())
	file.OnDamage(func(no page.No, err error) {
		d := &s.damage
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.suspects) < maxDamaged {
			d.suspects[no] = err
		}
	})
}

// count changes the counts.
func (d *damage) count(fn func(*DamageStatus)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fn(&d.status)
}

// note remembers that messages are damaged; new ones are logged.
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
		s.o.Events(events.MessagesDamaged{
			Queue: e.Queue, First: e.Sequences[0], Last: e.Sequences[len(e.Sequences)-1], Messages: fresh, Err: e.Err,
		})
	}
}

// noteAnswer notes what the other node said of damaged messages.
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

// mayRepair tells whether a repair was not tried a moment ago, and notes that it is now.
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

// has tells whether a message is known to be damaged.
func (d *damage) has(queueID, seq uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.messages[messageKey{queueID, seq}] != nil
}

// forget says that messages can be read, or that no subscription wants them.
func (d *damage) forget(queueID uint64, sequences []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, seq := range sequences {
		delete(d.messages, messageKey{queueID, seq})
	}
}

// noteIndex remembers that something else than messages is damaged. It returns the error under which that is known.
func (s *Store) noteIndex(err error) error {
	err = fmt.Errorf("%w: %w", ErrIndexDamaged, err)
	if s.damage.index.CompareAndSwap(nil, &err) {
		s.damage.count(func(st *DamageStatus) { st.FoundPages++ })
		s.o.Events(events.IndexDamaged{Err: err})
	}
	return err
}

// IndexDamage tells why the store has to be replaced by a copy of the other node's, nil if it has not.
func (s *Store) IndexDamage() error {
	if err := s.damage.index.Load(); err != nil {
		return *err
	}
	return nil
}

// GiveUpPages is called when the store is about to be replaced by a snapshot because of IndexDamage: what is still
// applied until then stays in memory, whatever the budget, because pages cannot be written.
func (s *Store) GiveUpPages() {
	s.damage.giveUp.Store(true)
	s.wakeRoom()
}

// replaced forgets all damage, because everything that it was in has been replaced.
func (d *damage) replaced() {
	d.index.Store(nil)
	d.giveUp.Store(false)
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.messages)
	clear(d.suspects)
	d.log = 0
}

// NoteDamage has whatever an error says to be damaged looked at soon, for errors of those who read pages by themselves,
// such as a backup.
func (s *Store) NoteDamage(err error) {
	var bad *DamagedMessagesError
	if errors.As(err, &bad) {
		s.note(bad)
		return
	}
	var in *page.DamagedError
	if errors.As(err, &in) && in.Page != 0 {
		s.damage.mu.Lock()
		defer s.damage.mu.Unlock()
		s.damage.suspects[in.Page] = err
	}
}

// LogDamaged notes that a record in the log cannot be read, on behalf of its reader: the next RepairAll gives it up.
func (s *Store) LogDamaged(err error) {
	var in *wal.DamagedError
	if !errors.As(err, &in) {
		return
	}
	d := &s.damage
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.log < in.LSN {
		d.log = in.LSN
		d.status.FoundLog++
		s.o.Events(events.LogDamaged{Err: err})
	}
}

// inLog is the last record of the log that is known to be damaged; 0 if none is.
func (d *damage) inLog() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log
}

// logGivenUp notes that the log up to a damaged record is gone, and tells whether that was the last one known.
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

// suspectPages are those that were found damaged and not looked up yet, with the errors.
func (d *damage) suspectPages() map[page.No]error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.suspects)
}

// lookedUp forgets suspect pages: what they are part of was found out.
func (d *damage) lookedUp(suspects map[page.No]error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for no := range suspects {
		delete(d.suspects, no)
	}
}

// Damaged lists up to limit messages that are wanted and cannot be read, by queue and sequence; what was acknowledged
// meanwhile is forgotten.
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

// DamageStatus counts.
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

// alive returns which sequences of [first, last] a subscription wants. mu is held for reading at least.
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
