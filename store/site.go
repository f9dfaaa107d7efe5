// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"

	"github.com/lockstep-mq/lockstep/store/queue"
)

// siteWatch signals changes of the role, epoch or lineage of the site.
type siteWatch struct {
	mu      sync.Mutex
	changed chan struct{} // nil if no caller has requested it since the last change
}

func (w *siteWatch) channel() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.changed
}

func (w *siteWatch) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// Site returns the site state of the pair as of the last applied record.
func (s *Store) Site() (site queue.SiteState) {
	s.View(func(state *queue.State) { site = state.Site() })
	return site
}

// SiteChanged returns a channel that is closed after the next change of the role, epoch or lineage of Site. To see all
// changes, call SiteChanged before Site.
func (s *Store) SiteChanged() <-chan struct{} { return s.site.channel() }
