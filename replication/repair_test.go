// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/repair"
)

// connect connects to a node's gRPC services.
func connect(t *testing.T, n *node) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+n.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(n.w.dial))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// A node serves messages in any role, also to a requester with a longer or shorter log.
func TestFetchMessages(t *testing.T) { synctest.Test(t, testFetchMessages) }

func testFetchMessages(t *testing.T) {
	w := newWorld(t)
	w.grpc = true
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, b)
	b.follow(a)
	a.createQueue()
	a.publish(a.queueID, 50, 100_000, 8) // sent in many parts
	require.Eventually(t, func() bool { return b.store.Applied() == a.store.Applied() }, waitLimit,
		time.Millisecond)
	want := a.messages()
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		requester, server := pair[0], pair[1]
		cc, have := connect(t, server), 0
		for first := uint64(1); first <= 50; {
			found, err := replication.FetchMessages(t.Context(), cc, requester.store, a.queueID, first, 50,
				requester.store.Applied())
			require.NoError(t, err)
			require.Empty(t, found.Damaged)
			require.GreaterOrEqual(t, found.Last, first)
			have += len(found.Messages)
			for _, m := range found.Messages {
				require.Contains(t, string(m.Record), string(want[m.Sequence-1]))
			}
			first = found.Last + 1
		}
		require.Equal(t, 50, have)
	}
	// A missing queue has no messages and causes no error: the requester's log will delete the queue as well.
	found, err := replication.FetchMessages(t.Context(), connect(t, b), a.store, 99, 1, 5, a.store.Applied())
	require.NoError(t, err)
	require.Equal(t, repair.FoundMessages{Last: 5}, found)
}

// Messages are served only to a node of the same pair with the same history. In another history, the sequence may
// belong to a different message.
func TestFetchMessagesRefused(t *testing.T) { synctest.Test(t, testFetchMessagesRefused) }

func testFetchMessagesRefused(t *testing.T) {
	w := newWorld(t)
	w.grpc = true
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, nil)
	a.createQueue()
	a.publish(a.queueID, 5, 100, 1)
	// b has a separate history, as after a failover with data loss.
	b.lead(1, 1, nil)
	b.createQueue()
	b.publish(b.queueID, 7, 100, 1)
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		requester, server := pair[0], pair[1]
		_, err := replication.FetchMessages(t.Context(), connect(t, server), requester.store, a.queueID, 1, 5,
			requester.store.Applied())
		require.ErrorIs(t, err, replication.ErrHistory)
	}
	_, err := replication.FetchMessages(t.Context(), connect(t, a), a.store, a.queueID, 1, 5, a.store.Applied())
	require.ErrorIs(t, err, replication.ErrProtocol, "a node that requests messages from itself")
	_, err = replication.FetchMessages(t.Context(), connect(t, b), a.store, a.queueID, 5, 1, lsn.Position{})
	require.ErrorIs(t, err, replication.ErrProtocol)

	foreign := newWorld(t)
	foreign.grpc, foreign.pair = true, uuid.New()
	c := foreign.node("c")
	_, err = replication.FetchMessages(t.Context(), connect(t, a), c.store, a.queueID, 1, 5, lsn.Position{})
	require.ErrorIs(t, err, replication.ErrOtherPair)
}

// Resync replaces the store of a healthy standby with a snapshot. The standby then continues to follow.
func TestResync(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.lead(1, 1, nil)
		f := b.follow(a)
		a.createQueue()
		a.publish(a.queueID, 20, 1000, 4)
		require.Eventually(t, func() bool { return b.store.Applied() == a.store.Applied() }, waitLimit,
			time.Millisecond)
		before := b.store.Identity().Incarnation
		reason := errors.New("its index is corrupt")
		f.Resync(reason)
		f.Resync(reason)
		await(b, func(replication.SnapshotInstalled) bool { return true })
		require.Equal(t, before+1, b.store.Identity().Incarnation)
		a.publish(a.queueID, 20, 1000, 4)
		require.Eventually(t, func() bool { return b.store.Applied() == a.store.Applied() }, waitLimit,
			time.Millisecond)
		requireEqual(a, b)
	})
}
