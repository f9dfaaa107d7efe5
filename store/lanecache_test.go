// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// laneBacklog is a queue with messages of random priorities, and the expected order of delivery.
type laneBacklog struct {
	*node
	rng   *rand.Rand
	lanes [txn.MaxPriority + 1][]uint64
	next  uint64
	read  atomic.Int64 // bytes read from the page file
}

func newLaneBacklog(t *testing.T, seed uint64, budget int64) *laneBacklog {
	t.Helper()
	l := &laneBacklog{rng: rand.New(rand.NewPCG(seed, 1)), next: 1}
	fs := faultfs.New(memfs.New())
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpRead && strings.HasSuffix(op.Name, "page.db") {
			l.read.Add(op.Length)
		}
		return nil
	})
	o := options(fs)
	o.MemoryBudget = budget
	l.node = openNode(t, o)
	l.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{Priorities: 1}, "default") })
	return l
}

func laneBody(seq uint64) string { return fmt.Sprintf("%d-%0500d", seq, seq) }

// publish adds batches of 100 messages.
func (l *laneBacklog) publish(batches int) {
	for range batches {
		l.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for range 100 {
				priority := uint8(l.rng.IntN(len(l.lanes)))
				rec, err := txn.AppendMessage(nil, 1, &txn.Attributes{Priority: &priority}, nil, []byte(laneBody(l.next)))
				require.NoError(l.t, err)
				b.Record(rec)
				l.lanes[priority] = append(l.lanes[priority], l.next)
				l.next++
			}
			b.EndPublish()
		})
		l.raw = nil
	}
}

func (l *laneBacklog) checkpoint() {
	_, err := l.s.Checkpoint(l.t.Context())
	require.NoError(l.t, err)
}

// readSome reads messages, up to the given number. It verifies that they are the next messages in the expected order,
// acknowledges them, and returns their number.
func (l *laneBacklog) readSome(lanes *store.Lanes, most int) int {
	got, _, err := l.s.Read(l.t.Context(), store.ReadRequest{
		Queue: 1, Sub: 1, Lanes: lanes, MaxMessages: most, MaxBytes: 1 << 20,
	}, nil)
	require.NoError(l.t, err)
	var acks []txn.Range
	for _, d := range got {
		lane := len(l.lanes) - 1
		for lane > 0 && len(l.lanes[lane]) == 0 {
			lane--
		}
		require.NotEmpty(l.t, l.lanes[lane], "want no further message, got %d", d.Sequence)
		require.Equal(l.t, l.lanes[lane][0], d.Sequence, "of priority %d", lane)
		l.lanes[lane] = l.lanes[lane][1:]
		m, err := txn.DecodeMessage(d.Record)
		require.NoError(l.t, err)
		require.Equal(l.t, laneBody(d.Sequence), string(m.Body))
		acks = append(acks, txn.Range{First: d.Sequence, Last: d.Sequence})
	}
	if len(acks) > 0 {
		l.commit(func(b *txn.Builder) { b.Ack(1, 1, acks...) })
		l.raw = nil
	}
	return len(got)
}

// A page with messages of all priorities is read only once if its messages fit into the cache.
func TestPriorityPagesAreReadOnce(t *testing.T) {
	l := newLaneBacklog(t, 1, store.MinMemoryBudget) // 8 MiB for the cache
	l.publish(60)                                    // 3 MB
	l.checkpoint()
	l.read.Store(0)
	lanes := new(store.Lanes)
	for more := true; more; {
		more = l.readSome(lanes, 1+l.rng.IntN(900)) > 0
	}
	require.Less(t, l.read.Load(), int64(60*100*550*3/2), "bytes read, of %d stored", 60*100*550)
	require.Zero(t, l.s.LaneBytes(), "cache is empty")
}

// Among messages in memory, all messages of a higher priority are read before messages of a lower priority, regardless
// of the size of the read.
func TestPriorityOrderInMemory(t *testing.T) {
	l := newLaneBacklog(t, 2, 256<<20)
	l.publish(80)
	lanes := new(store.Lanes)
	for more := true; more; {
		more = l.readSome(lanes, 2000) > 0
	}
	require.Equal(t, [txn.MaxPriority + 1]int{}, [txn.MaxPriority + 1]int(countLanes(l)))
}

func countLanes(l *laneBacklog) []int {
	n := make([]int, len(l.lanes))
	for i := range n {
		n[i] = len(l.lanes[i])
	}
	return n
}

// The cache stays within its limit. Reads return every message in priority order although the backlog exceeds the
// cache, messages are published between reads, reads restart, and the pages are rewritten.
func TestPriorityCacheIsBounded(t *testing.T) {
	const limit = store.MinMemoryBudget / 2
	for seed := range uint64(4) {
		l := newLaneBacklog(t, seed, store.MinMemoryBudget)
		l.publish(250) // 13 MB
		l.checkpoint()
		lanes, most := new(store.Lanes), int64(0)
		for n, left := 0, 60; ; n++ {
			got := l.readSome(lanes, 1+l.rng.IntN(700))
			kept := l.s.LaneBytes()
			most = max(most, kept)
			require.LessOrEqual(t, kept, int64(limit))
			if got == 0 {
				break
			}
			switch {
			case left > 0 && l.rng.IntN(3) == 0:
				left--
				l.publish(1 + l.rng.IntN(3))
				*lanes = store.Lanes{} // read again from the highest priority
			case l.rng.IntN(20) == 0:
				*lanes = store.Lanes{}
			case n == 40:
				_, err := l.s.Maintenance().Rewrite(t.Context(), rewrite.Options{PageSize: 4096})
				require.NoError(t, err)
			}
		}
		require.Greater(t, most, int64(limit/2))
		require.Equal(t, make([]int, len(l.lanes)), countLanes(l), "seed %d: all messages delivered", seed)
	}
}

// New messages in memory evict cached messages.
func TestPriorityCacheIsEvicted(t *testing.T) {
	l := newLaneBacklog(t, 5, store.MinMemoryBudget)
	l.publish(100)
	l.checkpoint()
	lanes := new(store.Lanes)
	for len(l.lanes[9]) > 0 {
		require.NotZero(t, l.readSome(lanes, min(100, len(l.lanes[9]))))
	}
	before := l.s.LaneBytes()
	require.Greater(t, before, int64(3<<20))
	for range 30 {
		l.publish(10)
		require.LessOrEqual(t, l.s.LaneBytes()+l.s.TailBytes(), int64(store.MinMemoryBudget/2+1<<20))
	}
	*lanes = store.Lanes{}
	for more := true; more; {
		more = l.readSome(lanes, 500) > 0
	}
	require.Equal(t, make([]int, len(l.lanes)), countLanes(l))
}
