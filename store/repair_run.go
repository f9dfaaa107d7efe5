// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// replaceRun writes the readable messages of an extent to new pages and updates the index. The visible content and
// the digests do not change. It does nothing if the extent was freed concurrently.
func (p *pager) replaceRun(st *runState) error {
	p.hold()
	defer p.mu.Unlock()
	s := p.s
	if err := s.Usable(); err != nil {
		return err
	}
	tail := queue.TailRun{Queue: st.entry.Queue, First: st.have[0].Sequence}
	last := st.have[len(st.have)-1].Sequence
	tail.Records = make([][]byte, last-tail.First+1)
	s.mu.RLock()
	q := s.state.Queue(st.entry.Queue)
	for i := range st.have {
		// The last batch may already have removed messages consumed in the meantime from the index. No later batch
		// would remove them again.
		if d := &st.have[i]; q != nil && !q.Dead(d.Sequence) {
			tail.Records[d.Sequence-tail.First] = d.Record
		}
	}
	s.mu.RUnlock()
	entries, err := p.writeTails([]queue.TailRun{tail})
	if err == nil {
		if err = p.exchange(&st.entry, entries); err != nil {
			for i := range entries {
				s.file.Free(entries[i].Run)
			}
		}
	}
	if errors.Is(err, errRunGone) {
		return nil
	}
	if err != nil && !errors.Is(err, page.ErrFull) && !errors.Is(err, syscall.ENOSPC) &&
		!errors.Is(err, ErrIndexDamaged) && s.Usable() == nil {
		s.fail(fmt.Errorf("write repaired pages: %w", err)) // INV-7
	}
	return err
}

// errRunGone is returned when an extent is no longer in the index.
var errRunGone = errors.New("the run is gone")

// exchange replaces a corrupt extent in the index with new ones.
func (p *pager) exchange(old *index.Entry, entries []index.Entry) error {
	edit := p.s.index.Edit()
	defer edit.Discard()
	k, v, ok, err := edit.SeekFloor(index.AppendKey(nil, old.Queue, old.Last()))
	if err != nil {
		return p.s.indexError(err)
	}
	now, found, err := entryOf(k, v, ok, old.Queue)
	if err != nil {
		return err
	}
	switch {
	case old.Run.IsZero() && found && now.Last() >= old.First, !old.Run.IsZero() && (!found || now.Run != old.Run):
		return errRunGone
	case !old.Run.IsZero():
		if _, err := edit.Delete(index.AppendKey(nil, old.Queue, old.First)); err != nil {
			return p.s.indexError(err)
		}
	}
	for i := range entries {
		if err := edit.Put(index.AppendKey(nil, entries[i].Queue, entries[i].First),
			entries[i].AppendValue(nil)); err != nil {
			return p.s.indexError(err)
		}
		p.spans.in(p.s.index).note(&entries[i])
	}
	p.s.mu.Lock()
	err = edit.Commit()
	p.s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("publish the index: %w", err)
	}
	if !old.Run.IsZero() {
		p.s.file.Free(old.Run)
	}
	p.repaired = true
	return nil
}

// lookUpSuspects determines the use of corrupt pages. Messages are recorded for repair. The map of used pages is
// rewritten by the next checkpoint. Other pages were freed, or are tree nodes, whose next reader reports the
// corruption.
func (s *Store) lookUpSuspects() error {
	suspects := s.damage.suspectPages()
	if len(suspects) == 0 {
		return nil
	}
	s.ioMu.RLock()
	defer s.ioMu.RUnlock()
	if err := s.Usable(); err != nil {
		return err
	}
	for no := range suspects {
		s.file.RelocateOwn(no)
	}
	guard := s.file.ReadGuard()
	defer guard.Release()
	it := s.index.View().Scan([]byte{index.Letter}, []byte{index.Letter + 1})
	for it.Next() {
		e, err := index.Decode(it.Key(), it.Value())
		if err != nil {
			return err
		}
		if why := suspects[e.Run.First]; why != nil {
			if b := s.wantedIn(&e, why); b != nil {
				s.note(b)
			}
		}
	}
	if err := it.Err(); err != nil {
		return s.indexError(err)
	}
	s.damage.lookedUp(suspects)
	return nil
}
