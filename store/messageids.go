// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// idReader reads message IDs from the tree for Apply (see store/queue/dedup.go). The caller must hold Store.mu.
type idReader struct {
	pages pager.Pages
	view  *tree.View
	guard *page.Guard
}

// readsIDs prepares the state to read message IDs from the tree, if a queue uses them. release ends the reads and
// must be called after mu is released.
func (s *Store) readsIDs() (release func()) {
	if !s.dedups.Load() {
		return func() {}
	}
	r := &idReader{pages: s.pages.Acquire()}
	s.state.ReadIDs(r.get)
	return func() {
		if r.guard != nil {
			r.guard.Release()
		}
		s.pages.Release()
	}
}

func (r *idReader) get(key []byte) (value []byte, ok bool, err error) {
	if r.view == nil {
		r.guard = r.pages.File.ReadGuard() // acquired before the view, so that no page of the view is overwritten
		r.view = r.pages.Index.View()
	}
	return r.view.Get(key)
}
