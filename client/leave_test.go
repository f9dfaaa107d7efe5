// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A consumer that is closed reports the messages that the application has received and not answered. Other messages
// do not count as delivered.
func TestCloseReportsReceived(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 20)
	co, err := c.Consume(t.Context(), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	for range 3 {
		d, err := co.Receive(t.Context())
		require.NoError(t, err)
		if d.Sequence == 1 {
			d.Ack()
		}
	}
	require.NoError(t, co.Close())
	_, err = co.Receive(t.Context())
	require.ErrorIs(t, err, client.ErrClosed)
	require.Equal(t, 1, p.ackedCount("q"), "pending answers")
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Len(t, p.leaves, 1)
	require.True(t, proto.Equal(&pb.Leave{Seen: []*pb.SequenceRange{{First: 2, Last: 3}}}, p.leaves[0]), "%v", p.leaves)
}

// Receive with an ended context returns the error of the context, even if messages are available.
func TestReceiveWithEndedContext(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 10)
	co, err := c.Consume(t.Context(), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	_, err = co.Receive(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for _, err := range co.All(ctx) {
		require.NoError(t, err)
		n++
		cancel()
	}
	require.Equal(t, 1, n)
	_, err = co.Receive(ctx)
	require.ErrorIs(t, err, context.Canceled)
	d, err := co.Receive(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(3), d.Sequence, "messages lost")
}

// A reject that waits for space in the dead-letter queue does not delay other answers. Flush reports it once.
func TestRejectWaitsForSpace(t *testing.T) {
	p := newFakePair(t)
	p.noRoom = true
	c := p.client(client.Options{})
	fill(t, c, 3)
	co, err := c.Consume(t.Context(), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	var got []*client.Delivery
	for range 3 {
		d, err := co.Receive(t.Context())
		require.NoError(t, err)
		got = append(got, d)
	}
	got[0].Reject()
	require.NoError(t, got[1].AckSync(t.Context()))
	require.ErrorIs(t, co.Flush(t.Context()), client.ErrLimit)
	got[2].Ack()
	require.NoError(t, co.Flush(t.Context()))
}
