// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// This file models pauses.

// changePause pauses or resumes a queue or a subscription. The subscription may be missing.
func (m *model) changePause(b *txn.Builder, q *modelQueue, s *modelSub) txn.Code {
	sub, publish, deliver := uint32(0), m.rng.IntN(2) == 0, m.rng.IntN(2) == 0
	switch {
	case m.rng.IntN(30) == 0:
		sub = q.nextSub + 5
	case s != nil && m.rng.IntN(2) == 0:
		sub = s.id
	}
	if sub != 0 {
		publish, deliver = false, true
	}
	deliver = deliver || !publish
	now := q.pauses[sub]
	if m.rng.IntN(3) > 0 {
		b.Resume(q.id, sub, publish, deliver)
		now.Publish, now.Deliver = now.Publish && !publish, now.Deliver && !deliver
	} else {
		now = txn.Pause{
			Publish: now.Publish || publish, Deliver: now.Deliver || deliver, TimeMS: uint64(m.now),
			By: "operator", Reason: fmt.Sprint(m.rng.IntN(100)),
		}
		b.Pause(q.id, sub, txn.Pause{Publish: publish, Deliver: deliver, By: now.By, Reason: now.Reason})
	}
	if sub != 0 && q.subs[sub] == nil {
		return txn.ErrSubscriptionNotFound
	}
	if now.Paused() {
		q.pauses[sub] = now
	} else {
		delete(q.pauses, sub)
	}
	return txn.OK
}

func (q *modelQueue) checkPauses(t *testing.T, have *Queue) {
	t.Helper()
	require.Equal(t, q.pauses[0], have.Pause())
	for id := range q.subs {
		s := have.Sub(id)
		require.Equal(t, q.pauses[id], s.Pause())
		require.Equal(t, q.pauses[0].Deliver || q.pauses[id].Deliver, s.Paused())
	}
}
