// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"errors"
	"fmt"
)

// RelocateOwn makes the next Checkpoint write page n to a new position. It returns false if n is not a page of the
// bitmap or its directory.
func (f *File) RelocateOwn(n No) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.space == nil {
		return false
	}
	for _, c := range f.space.chunks {
		if c.at.page == n && n != 0 {
			c.dirty = true
			return true
		}
	}
	for i := range f.space.leaves {
		if l := &f.space.leaves[i]; l.at.page == n && n != 0 {
			l.dirty = true
			return true
		}
	}
	return false
}

// ReadHead reads the header and the meta slots like Open. It rewrites a corrupt header; the next two Checkpoints
// rewrite a corrupt meta slot. damage is the corruption found, whether or not it was repaired.
func (f *File) ReadHead() (damage, err error) {
	f.checkpointing.Lock() // a slot being written is neither old nor new
	defer f.checkpointing.Unlock()
	if err := f.writable(); err != nil {
		return nil, err
	}
	want := encodeHeader(header{pageSize: f.geo.pageSize, storeID: f.storeID})
	have, err := f.readUpTo(0, len(want))
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(have, want) {
		damage = &CorruptError{Path: f.path, Reason: "file header is corrupt"}
		if err := f.write(want, 0); err != nil {
			return damage, f.fail(fmt.Errorf("rewrite header: %w", err))
		}
		if err := f.sync(); err != nil {
			return damage, err
		}
	}
	for slot := range 2 {
		if _, err := f.readSlot(slot); errors.Is(err, ErrCorrupt) {
			damage = err
		} else if err != nil {
			return damage, err
		}
	}
	return damage, nil
}
