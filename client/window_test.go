// SPDX-License-Identifier: Apache-2.0

package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/queue"
)

// The number of messages that a producer has in flight is at most the number of duplicates that a node retains in
// the results of a producer.
func TestUnansweredMessages(t *testing.T) {
	t.Parallel()
	require.Equal(t, queue.MaxProducerDuplicates, maxUnanswered)
	require.Equal(t, queue.ProducerWindow, maxWindow)
	const batch = maxBatchMessages
	p := &pipeline{opts: ProducerOptions{Window: maxWindow, BatchMessages: batch, BatchBytes: 1 << 30}, next: 1}
	for range 10 {
		e, err := newEntry("q", make([]Message, batch), 1<<30)
		require.NoError(t, err)
		p.pending.push(e)
		p.count += batch
	}
	next := func() bool { return p.nextRequest(0, 0) != nil }
	for range maxUnanswered / batch {
		require.True(t, next())
	}
	require.False(t, next(), "%d messages are in flight", p.unanswered)
	p.takeInFlight(1)
	p.sent--
	require.True(t, next())
	require.False(t, next())
	p.takeInFlight(p.inFlight.len())
	require.Zero(t, p.unanswered)
}
