// SPDX-License-Identifier: Apache-2.0

package pager

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// ReplaceExtent writes the messages of a corrupt extent to new pages and updates the index. The visible content and
// the digests do not change. It calls messages while no batch in progress can remove messages from the index. If
// old.Extent is zero, the index has no entry for the messages. If the extent was freed or replaced concurrently,
// ReplaceExtent changes nothing and returns nil.
func (p *Pager) ReplaceExtent(old *index.Entry, messages func() queue.TailRun) error {
	p.hold()
	defer p.mu.Unlock()
	if err := p.engine.Usable(); err != nil {
		return err
	}
	entries, err := p.writeTails([]queue.TailRun{messages()})
	if err == nil {
		if err = p.exchange(old, entries); err != nil {
			for i := range entries {
				p.file.Free(entries[i].Extent)
			}
		}
	}
	if errors.Is(err, errExtentGone) {
		return nil
	}
	if err != nil && !errors.Is(err, page.ErrFull) && !errors.Is(err, syscall.ENOSPC) &&
		!errors.Is(err, index.ErrCorrupt) && p.engine.Usable() == nil {
		_ = p.engine.Fail(fmt.Errorf("write repaired pages: %w", err)) // INV-7
	}
	return err
}

var errExtentGone = errors.New("extent is no longer in the index")

func (p *Pager) exchange(old *index.Entry, entries []index.Entry) error {
	edit := p.index.Edit()
	defer edit.Discard()
	k, v, ok, err := edit.SeekFloor(index.AppendKey(nil, old.Queue, old.Last()))
	if err != nil {
		return p.damage.IndexError(err)
	}
	now, found, err := index.EntryOf(k, v, ok, old.Queue)
	if err != nil {
		return err
	}
	switch {
	case old.Extent.IsZero() && found && now.Last() >= old.First,
		!old.Extent.IsZero() && (!found || now.Extent != old.Extent):
		return errExtentGone
	case !old.Extent.IsZero():
		if _, err := edit.Delete(index.AppendKey(nil, old.Queue, old.First)); err != nil {
			return p.damage.IndexError(err)
		}
	}
	for i := range entries {
		if err := edit.Put(index.AppendKey(nil, entries[i].Queue, entries[i].First),
			entries[i].AppendValue(nil)); err != nil {
			return p.damage.IndexError(err)
		}
		p.spans.in(p.index).note(&entries[i])
	}
	if err := p.engine.Publish(edit.Commit, nil); err != nil {
		return fmt.Errorf("publish the index: %w", err)
	}
	if !old.Extent.IsZero() {
		p.file.Free(old.Extent)
	}
	p.repaired = true
	return nil
}
