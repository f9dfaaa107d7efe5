// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/events"
)

// storeEvents makes logs, metrics and conditions of what the store tells.
type storeEvents struct {
	log func(events.Event)

	mu     sync.Mutex // guards what follows
	counts map[string]uint64
}

func newStoreEvents(logger *zap.Logger) *storeEvents {
	return &storeEvents{log: events.Log(logger.Named("store")), counts: make(map[string]uint64)}
}

// told counts an event and logs it.
func (s *storeEvents) told(e events.Event) {
	s.log(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[e.Name()]++
}

// all returns how often each kind of event was told since the node was started.
func (s *storeEvents) all() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]uint64, len(s.counts))
	for _, name := range events.Names() {
		all[name] = s.counts[name]
	}
	return all
}

// storeEvent is called by the store.
func (n *node) storeEvent(e events.Event) {
	n.events.told(e)
	if f, ok := e.(events.Failed); ok {
		n.failed(f.Err)
	}
	if changesConditions(e) {
		n.monitor.wake()
	}
}

// changesConditions tells whether a condition may begin or end with an event.
func changesConditions(e events.Event) bool {
	switch e.(type) {
	case events.DiskFull, events.DiskHasSpace, events.MessagesDamaged, events.PageRepaired, events.IndexDamaged,
		events.LogDamaged, events.LogGivenUp, events.SnapshotInstalled, events.SlowSync:
		return true
	default:
		return false
	}
}
