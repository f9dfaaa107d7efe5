// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// producer creates a client with a producer. Publishes made before the client connects are sent in one request.
func (n *testNode) producer() (*client.Producer, func()) {
	n.t.Helper()
	c, err := client.OpenWith(n.t.Context(), client.Options{
		Addresses: []string{n.ready.Address}, MaxMessageBytes: 80 << 20,
	})
	require.NoError(n.t, err)
	p, err := c.NewProducer(n.t.Context(), client.ProducerOptions{})
	require.NoError(n.t, err)
	return p, func() { require.NoError(n.t, c.Close()) }
}

// outcomes publishes messages in order without waiting for each, and returns their outcomes.
func outcomes(t *testing.T, p *client.Producer, queue string, ms []client.Message) []error {
	t.Helper()
	pending := make([]*client.Pending, len(ms))
	for i, m := range ms {
		pending[i] = p.PublishAsync(t.Context(), queue, m)
	}
	all := make([]error, len(ms))
	for i, e := range pending {
		_, all[i] = e.Wait(t.Context())
	}
	return all
}

func numbered(n int) (ms []client.Message) {
	for i := range n {
		ms = append(ms, client.Message{Body: []byte(fmt.Sprint(i + 1))})
	}
	return ms
}

// Publishes in one request have separate outcomes. A full queue accepts as many publishes as fit, in order. A queue
// with overflow drop-head accepts all publishes and retains the newest message.
func TestIndependentPublishes(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("five", &pb.QueueConfig{MaxMessages: 5}))
	require.NoError(t, n.createWith("ring", &pb.QueueConfig{
		MaxMessages: 1, Overflow: pb.Overflow_OVERFLOW_DROP_HEAD,
	}))
	p, closeClient := n.producer()
	defer closeClient()
	for i, err := range outcomes(t, p, "five", numbered(8)) {
		if i < 5 {
			require.NoError(t, err, "message %d", i+1)
		} else {
			require.ErrorIs(t, err, client.ErrLimit, "message %d", i+1)
		}
	}
	require.Equal(t, []string{"1", "2", "3", "4", "5"}, n.bodiesIn("five"))
	for i, err := range outcomes(t, p, "ring", numbered(50)) {
		require.NoError(t, err, "message %d", i+1)
	}
	require.Equal(t, []string{"50"}, n.bodiesIn("ring"))
}

// If a publish is refused, the other publishes of its request are still accepted.
func TestInvalidPublishInBatch(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	p, closeClient := n.producer()
	defer closeClient()
	ms := numbered(3)
	ms[1].Body = make([]byte, 65<<20) // the node's limit is 64 MiB
	all := outcomes(t, p, "q", ms[:1])
	all = append(all, outcomes(t, p, "q", ms)...)
	require.NoError(t, all[0])
	require.NoError(t, all[1])
	require.Error(t, all[2])
	require.NoError(t, all[3])
	require.Equal(t, []string{"1", "1", "3"}, n.bodiesIn("q"))
}
