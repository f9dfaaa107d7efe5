// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Memory stays bounded when much more than the memory budget is appended without being applied, as on a standby of an
// active that commits nothing.
func TestUnappliedFramesAreBounded(t *testing.T) {
	const mib, batches = 1 << 20, 96
	n := openNode(t, store.Options{Dir: t.TempDir(), MemoryBudget: store.MinMemoryBudget})
	n.commit(createQueue)
	heap := func() uint64 {
		n.raw = nil // release the copy of the test
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range batches {
		require.NoError(t, n.appendTxn(encode(t, nil,
			func(b *txn.Builder) { addMessages(b, bytes.Repeat([]byte{byte(i)}, mib)) })))
		n.raw = nil
	}
	require.Less(t, heap(), before+store.MinMemoryBudget)
	n.applyAll()
	require.Less(t, heap(), before+2*store.MinMemoryBudget)
	var seen int
	for from := uint64(1); seen < batches; {
		got, next, err := n.s.Read(context.Background(), store.ReadRequest{Queue: 1, From: from, MaxMessages: 3}, nil)
		require.NoError(t, err)
		require.NotEmpty(t, got)
		for _, d := range got {
			m, err := txn.DecodeMessage(d.Record)
			require.NoError(t, err)
			require.Len(t, m.Body, mib)
			require.Equal(t, byte(seen), m.Body[mib-1])
			seen++
		}
		from = next
	}
	n.check()
}

// Records that are applied after a checkpoint count toward the next checkpoint, even if they were logged before.
func TestCheckpointTriggerCountsAppliedRecords(t *testing.T) {
	o := options(memfs.New())
	o.CheckpointBytes, o.CheckpointInterval = 256<<10, time.Hour
	n := openNode(t, o)
	require.NoError(t, n.appendTxn(encode(t, nil, createQueue)))
	for range 12 {
		require.NoError(t, n.appendTxn(encode(t, nil, func(b *txn.Builder) { addMessages(b, make([]byte, 30<<10)) })))
	}
	require.NoError(t, n.s.Apply(1, nil))
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(t, err)
	n.applyAll()
	require.Eventually(t, func() bool {
		st, err := n.s.Stats()
		return err == nil && st.CheckpointLSN > 1
	}, maxWait, time.Millisecond)
}

// Checkpoints are written under a steady load of publishes that always fills the memory for messages.
func TestCheckpointsUnderSteadyLoad(t *testing.T) {
	fault := faultfs.New(memfs.New())
	o := options(fault)
	o.MemoryBudget, o.CheckpointBytes = 32<<20, 32<<20
	n := openNode(t, o)
	n.commit(createQueue)
	// The disk is slower than the publisher: each page write blocks until the memory is full again.
	var stop atomic.Bool
	var state atomic.Pointer[store.Store]
	state.Store(n.s)
	fault.SetHook(func(op faultfs.Op) error {
		if isPageFile(faultfs.OpWrite)(op) && op.Length > 100<<10 {
			for !stop.Load() {
				st, err := state.Load().Stats()
				if err != nil {
					return fmt.Errorf("wait for a full memory: %w", err)
				}
				if st.TailBytes > o.MemoryBudget/2 {
					break
				}
			}
		}
		return nil
	})
	published := make(chan struct{})
	publish := encode(t, nil, func(b *txn.Builder) { addMessages(b, make([]byte, 200<<10)) })
	go func() {
		defer close(published)
		for !stop.Load() {
			if n.appendTxn(publish) != nil || n.s.Apply(n.s.End().LSN, nil) != nil {
				return
			}
			n.raw = nil
		}
	}()
	require.Eventually(t, func() bool {
		st, err := n.s.Stats()
		return err == nil && st.CheckpointLSN > 1
	}, maxWait, 5*time.Millisecond)
	stop.Store(true)
	<-published
	n.check()
}

// Acknowledgements, which free space, are applied even if the disk and the memory for messages are full.
func TestApplyOnFullDisk(t *testing.T) {
	fault := faultfs.New(memfs.New())
	o := options(fault)
	o.MemoryBudget = store.MinMemoryBudget
	n := openNode(t, o)
	n.commit(createQueue)
	var full atomic.Bool
	fault.SetHook(func(op faultfs.Op) error {
		if full.Load() && (isPageFile(faultfs.OpWrite)(op) || isPageFile(faultfs.OpAllocate)(op)) {
			return fmt.Errorf("write: %w", syscall.ENOSPC)
		}
		return nil
	})
	full.Store(true)
	const messages = 12
	within(t, "Apply", func() {
		for range messages {
			n.publish(make([]byte, 900<<10))
		}
		n.commit(func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: 1, Last: messages}) })
	})
	q, err := query.QueueByName(n.s, "q")
	require.NoError(t, err)
	require.Zero(t, q.Messages)
	full.Store(false)
	require.Eventually(t, func() bool {
		st, err := n.s.Stats()
		return err == nil && st.TailBytes == 0
	}, maxWait, time.Millisecond, "the pager writes without a further signal")
	n.check()
}

// A read for a subscription with few unacknowledged messages reads only the pages of these messages.
func TestSparseReadSkipsPages(t *testing.T) {
	fault := faultfs.New(memfs.New())
	n := openNode(t, options(fault))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "all", "some") })
	const messages, every = 2000, 100
	for range messages / 100 {
		n.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for range 100 {
				b.Message(1, nil, make([]byte, 1000))
			}
			b.EndPublish()
		})
	}
	n.commit(func(b *txn.Builder) {
		var done []txn.Range
		for i := uint64(0); i < messages; i += every {
			done = append(done, txn.Range{First: i + 1, Last: i + every - 1})
		}
		b.Ack(1, 2, done...)
	})
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(t, err)
	var read atomic.Int64
	fault.SetHook(func(op faultfs.Op) error {
		if isPageFile(faultfs.OpRead)(op) {
			read.Add(op.Length)
		}
		return nil
	})
	got, _, err := n.s.Read(context.Background(), store.ReadRequest{Queue: 1, Sub: 2, From: 1, MaxMessages: 1000}, nil)
	require.NoError(t, err)
	require.Len(t, got, messages/every)
	require.LessOrEqual(t, read.Load(), int64(messages/every*4096),
		"one page of 2048 bytes per message, and some tree pages")

	read.Store(0)
	got, _, err = n.s.Read(context.Background(), store.ReadRequest{Queue: 1, Sub: 1, From: 1, MaxMessages: messages},
		nil)
	require.NoError(t, err)
	require.Len(t, got, messages)
	require.Less(t, read.Load(), int64(2*messages*1100), "a full read reads each page once")
}

// Messages that are larger than every buffer, up to the maximum size, are stored and read correctly between small
// messages.
func TestLargeMessages(t *testing.T) {
	n := openNode(t, store.Options{
		Dir: t.TempDir(), MemoryBudget: store.MinMemoryBudget, SegmentBytes: 1 << 20,
		PageSize: 2048,
	})
	n.commit(createQueue)
	sizes := []int{1, 2000, 2 << 20, txn.MaxBodyBytes, 5, 3<<20 + 1}
	for i, size := range sizes {
		n.publish(bytes.Repeat([]byte{byte(i + 1)}, size))
		n.raw = nil
	}
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(t, err)
	got, _, err := n.s.Read(context.Background(), store.ReadRequest{Queue: 1, Sub: 1, MaxMessages: 100}, nil)
	require.NoError(t, err)
	require.Len(t, got, len(sizes))
	for i, d := range got {
		m, err := txn.DecodeMessage(d.Record)
		require.NoError(t, err)
		require.Len(t, m.Body, sizes[i])
		require.Equal(t, byte(i+1), m.Body[sizes[i]-1])
	}
	n.check()
	n.commit(func(b *txn.Builder) { b.Purge(1, 0) })
	n.check()
}
