// SPDX-License-Identifier: Apache-2.0

package member

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// SetBlocked sets the function that reports whether a queue moves to this pair and may be fenced at the source. While
// it is fenced, neither pair serves the queue. f must not block.
func (m *Manager) SetBlocked(f func(queue string) bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocked = f
}

func (m *Manager) isBlocked(queue string) bool {
	m.mu.Lock()
	f := m.blocked
	m.mu.Unlock()
	return f != nil && f(queue)
}

// moving reports whether a queue of this pair is fenced, or was taken by a move that has not ended.
func (m *Manager) moving(name string) bool {
	if _, _, fenced := query.Fence(m.o.Store, name); fenced {
		return true
	}
	epoch, exists := query.OwnershipEpoch(m.o.Store, name)
	if !exists {
		return false
	}
	move, found := query.Move(m.o.Store, epoch)
	return found && move.State == queue.MoveTaken
}

// Refusal returns the error that rejects clients after an operator has removed this pair from its fleet as lost.
// Otherwise it returns nil. It does not block. A node that has not loaded the directory since its start cannot detect
// the removal.
func (m *Manager) Refusal() *apierror.NotActiveError {
	d := m.Directory()
	if d == nil || !d.Forgotten() {
		return nil
	}
	return &apierror.NotActiveError{
		Role: "REMOVED", RetryAfter: retryMax,
		Reason: fmt.Sprintf("pair %s was removed from the fleet as lost (lockstep fleet forget)", m.o.Pair),
	}
}
