// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/events"
)

type storeEvents struct {
	log func(events.Event)

	mu     sync.Mutex // guards the fields below
	counts map[string]uint64
}

func newStoreEvents(logger *zap.Logger) *storeEvents {
	return &storeEvents{log: events.Log(logger.Named("store")), counts: make(map[string]uint64)}
}

func (s *storeEvents) record(e events.Event) {
	s.log(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[events.Name(e)]++
}

func (s *storeEvents) all() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]uint64, len(s.counts))
	for _, name := range events.Names() {
		all[name] = s.counts[name]
	}
	return all
}

func (n *node) storeEvent(e events.Event) {
	n.events.record(e)
	if f, ok := e.(events.Failed); ok {
		n.failed(f.Err)
	}
	if changesConditions(e) {
		n.monitor.wake()
	}
}

// changesConditions reports whether an event may raise or clear a condition.
func changesConditions(e events.Event) bool {
	switch e.(type) {
	case events.DiskFull, events.DiskHasSpace, events.MessagesCorrupt, events.PageRepaired, events.IndexCorrupt,
		events.LogCorrupt, events.LogDiscarded, events.SnapshotInstalled, events.SlowSync:
		return true
	default:
		return false
	}
}
