// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
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

// While queues are created, filled, emptied and deleted, and the disk is full from time to time, reads and snapshots
// return only correct messages. Each message contains its queue and sequence. At the end the store is consistent,
// before and after a restart.
func TestConcurrentOperations(t *testing.T) {
	mem := memfs.New()
	fault := faultfs.New(mem)
	o := options(fault)
	o.MemoryBudget = store.MinMemoryBudget
	n := openNode(t, o)
	var full atomic.Bool
	fault.SetHook(func(op faultfs.Op) error {
		if isPageFile(faultfs.OpRead)(op) {
			<-time.After(time.Millisecond) // a slow disk, so that pages are freed and reused during the read
		}
		if full.Load() && (isPageFile(faultfs.OpWrite)(op) || isPageFile(faultfs.OpAllocate)(op)) {
			return fmt.Errorf("write: %w", syscall.ENOSPC)
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	for i := range 2 {
		readers.Go(func() {
			for rng := rand.New(rand.NewPCG(uint64(i), 3)); ctx.Err() == nil; {
				if err := readSome(n.s, rng); err != nil {
					t.Errorf("read: %v", err)
					return
				}
			}
		})
	}
	readers.Go(func() {
		for ctx.Err() == nil {
			if err := copySnapshot(n.s); err != nil {
				t.Errorf("snapshot: %v", err)
				return
			}
		}
	})
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 1200 {
		full.Store(i%200 > 180)
		n.commit(func(b *txn.Builder) { randomOperation(n.s, b, rng) })
		n.raw = nil
		if rng.IntN(25) == 0 {
			_, err := n.s.Checkpoint(ctx)
			require.True(t, err == nil || full.Load(), "%v", err)
		}
	}
	full.Store(false)
	cancel()
	readers.Wait()
	n.check()
	want := dumpStore(t, n.s)
	require.NoError(t, n.s.Close())
	o.FS = mem
	again := openNode(t, o)
	require.Equal(t, n.s.End(), again.s.Applied(), "all records are applied after an orderly stop")
	require.Equal(t, want, dumpStore(t, again.s))
}

// randomOperation adds a random operation to b.
func randomOperation(s *store.Store, b *txn.Builder, rng *rand.Rand) {
	queues, _, _ := query.Queues(s, query.QueueRange{MaxQueues: 100, MaxSubscriptions: 1000})
	if len(queues) < 2 || len(queues) < 6 && rng.IntN(10) == 0 {
		b.CreateQueue(fmt.Sprintf("q%d", rng.Uint64()), txn.Config{}, "a", "b")
		return
	}
	q := queues[rng.IntN(len(queues))]
	switch k := rng.IntN(100); {
	case k < 2:
		b.DeleteQueue(q.ID, false)
	case k < 4:
		b.Purge(q.ID, 0)
	case k < 60 || q.NextSequence == 1:
		b.BeginPublish(q.ID)
		for i := range uint64(1 + rng.IntN(20)) {
			body := make([]byte, 16+rng.IntN(20_000))
			binary.LittleEndian.PutUint64(body, q.ID)
			binary.LittleEndian.PutUint64(body[8:], q.NextSequence+i)
			b.Message(1, nil, body)
		}
		b.EndPublish()
	default:
		first := 1 + rng.Uint64N(q.NextSequence-1)
		if floor := q.Subscriptions[k%2].Floor; k%4 < 3 && floor < q.NextSequence {
			first = floor
		}
		b.Ack(q.ID, q.Subscriptions[k%2].ID, txn.Range{
			First: first,
			Last:  min(first+rng.Uint64N(60), q.NextSequence-1),
		})
	}
}

// readSome reads a part of a random queue and checks each message.
func readSome(s *store.Store, rng *rand.Rand) error {
	queues, _, err := query.Queues(s, query.QueueRange{MaxQueues: 100, MaxSubscriptions: 1000})
	if len(queues) == 0 {
		return err
	}
	q := queues[rng.IntN(len(queues))]
	got, _, err := s.Read(context.Background(), store.ReadRequest{
		Queue: q.ID, Sub: uint32(rng.IntN(3)), From: rng.Uint64N(q.NextSequence), MaxMessages: 100, MaxBytes: 1 << 20,
	}, nil)
	if err != nil && !errors.Is(err, store.ErrNoQueue) {
		return err
	}
	last := uint64(0)
	for _, d := range got {
		m, err := txn.DecodeMessage(d.Record)
		if err != nil {
			return err
		}
		queue, seq := binary.LittleEndian.Uint64(m.Body), binary.LittleEndian.Uint64(m.Body[8:])
		if queue != q.ID || seq != d.Sequence || seq <= last {
			return fmt.Errorf("queue %d, sequence %d after %d: got the message %d of queue %d", q.ID, d.Sequence, last,
				seq, queue)
		}
		last = seq
	}
	return nil
}

// copySnapshot installs a snapshot in another store and checks that store.
func copySnapshot(s *store.Store) error {
	snap, err := s.OpenSnapshot()
	if err != nil {
		return err
	}
	defer snap.Close()
	target, err := store.Open(options(memfs.New()))
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }()
	in, err := target.BeginInstall(snap.Header)
	if err != nil {
		return err
	}
	for in.Offset() == 0 || err == nil {
		var at uint64
		var data []byte
		if at, data, err = snap.ReadNext(in.Offset(), 64<<10, nil); err == nil {
			err = in.WriteAt(at, data)
		}
	}
	if err := in.Commit(); err != nil {
		return err
	}
	report, err := checkStore(context.Background(), target, nil)
	if err == nil && len(report.Problems) > 0 {
		err = fmt.Errorf("corrupt copy: %s", report.Problems[0])
	}
	return err
}
