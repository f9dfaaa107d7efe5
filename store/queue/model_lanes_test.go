// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// This file models priorities.

// somePriority draws a message priority. It often repeats a priority, so that chunks of one priority occur.
func (m *model) somePriority(q *modelQueue) *uint8 {
	if q == nil || m.rng.IntN(3) > 0 {
		return nil
	}
	if m.rng.IntN(20) > 0 {
		return new(uint8(q.id+q.next/500) % PriorityLevels)
	}
	return new(uint8(m.rng.IntN(PriorityLevels)))
}

// checkPriorities compares the search by priority with the messages.
func (q *modelQueue) checkPriorities(t *testing.T, ws *modelSub, s *Sub) {
	t.Helper()
	require.Equal(t, q.config.Priorities == 1, s.Queue().Prioritized())
	if !s.Queue().Prioritized() {
		return
	}
	found := 0
	for lane := range uint8(PriorityLevels) {
		for seq := s.NextUnackedIn(lane, 1); seq < q.next; seq = s.NextUnackedIn(lane, seq+1) {
			found++
			_, needed := ws.needs[seq]
			if !needed || txn.RecordPriority(q.records[seq]) != lane || s.Queue().Priority(seq) != lane {
				require.Failf(t, "priority", "queue %d message %d: needed %v, priority %d found as %d", q.id, seq, needed,
					txn.RecordPriority(q.records[seq]), lane)
			}
		}
	}
	require.Len(t, ws.needs, found)
}
