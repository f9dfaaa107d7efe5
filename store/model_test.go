// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/tier"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// After random transactions, checkpoints, restarts and crashes, the content of a store equals that of a model. The same
// history results in the same content and digest for all page sizes.
func TestRandomOperations(t *testing.T) {
	for seed := range uint64(tier.Count(3, 4)) {
		var digests []checkpoint.Digest
		for _, pageSize := range []int{2048, 4096, 32768} {
			t.Run(fmt.Sprintf("seed=%d/page=%d", seed, pageSize), func(t *testing.T) {
				digests = append(digests, randomRun(t, seed, pageSize))
			})
		}
		require.Len(t, digests, 3)
		for _, d := range digests[1:] {
			require.Equal(t, digests[0], d, "the digest depends on the page size")
		}
	}
}

func randomRun(t *testing.T, seed uint64, pageSize int) checkpoint.Digest {
	ops, other := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, uint64(pageSize)))
	mem := memfs.New()
	o := options(mem)
	o.PageSize = pageSize
	n := openNode(t, o)
	m := &model{}
	for i := range 400 {
		require.NoError(t, n.appendTxn(m.step(t, ops, 40_000)))
		if other.IntN(3) == 0 {
			n.applyAll()
		}
		switch other.IntN(60) {
		case 0:
			n.applyAll()
			_, err := n.s.Checkpoint(context.Background())
			require.NoError(t, err)
		case 1: // a clean restart
			require.NoError(t, n.s.Close())
			n = openNode(t, o)
		case 2: // a machine crash: synced data survives, and unsynced data survives only in part
			mem = mem.CrashClone(crashRand(other))
			o.FS = mem
			n = openNode(t, o)
		}
		if i%50 == 49 {
			n.applyAll()
			require.Equal(t, m.dump(), dumpStore(t, n.s), "after %d transactions", i+1)
			n.check()
		}
	}
	n.applyAll()
	require.Equal(t, m.dump(), dumpStore(t, n.s))
	n.check()
	d, err := digestOf(context.Background(), n.s)
	require.NoError(t, err)
	return d
}

// After a crash before any write, sync or rename, a restart finds every synced transaction, no partial transaction, and
// a consistent page file.
func TestCrashEverywhere(t *testing.T) {
	type crash struct {
		what    string
		mem     *memfs.FS
		durable uint64
	}
	var mu sync.Mutex // the hook runs in any goroutine that does I/O
	var crashes []crash
	rng := rand.New(rand.NewPCG(7, 7))
	mem := memfs.New()
	fault := faultfs.New(mem)
	o := options(fault)
	o.SegmentBytes = 64 << 10
	n := openNode(t, o)
	var durable atomic.Uint64
	record := func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		switch op.Kind {
		case faultfs.OpWrite, faultfs.OpSync, faultfs.OpRename, faultfs.OpSyncDir, faultfs.OpTruncate, faultfs.OpCreate,
			faultfs.OpRemove,
			faultfs.OpAllocate:
			crashes = append(crashes, crash{
				fmt.Sprintf("%s %s", op.Kind, op.Name), mem.CrashClone(crashRand(rng)),
				durable.Load(),
			})
		default:
		}
		return nil
	}
	m, ops := &model{}, rand.New(rand.NewPCG(8, 8))
	dumps := []string{""}
	for i := range 120 {
		payload := m.step(t, ops, 5_000)
		dumps = append(dumps, m.dump())
		if i == 20 {
			fault.SetHook(record)
		}
		require.NoError(t, n.appendTxn(payload))
		durable.Store(n.s.Durable().LSN)
		n.applyAll()
		if i%15 == 14 {
			_, err := n.s.Checkpoint(context.Background())
			require.NoError(t, err)
		}
	}
	fault.SetHook(nil)
	mu.Lock() // a goroutine of the log may still be in the hook
	all := crashes
	mu.Unlock()
	require.Greater(t, len(all), 100)
	for i, c := range all {
		o := options(c.mem)
		o.SegmentBytes = 64 << 10
		s, err := store.Open(o)
		require.NoError(t, err, "crash %d before %s", i, c.what)
		end := s.End().LSN
		require.GreaterOrEqual(t, end, c.durable, "crash %d before %s lost a synced transaction", i, c.what)
		require.NoError(t, s.Apply(end, nil))
		require.Equal(t, dumps[end], dumpStore(t, s), "crash %d before %s", i, c.what)
		report, err := checkStore(context.Background(), s, nil)
		require.NoError(t, err)
		require.Empty(t, report.Problems, "crash %d before %s", i, c.what)
		require.NoError(t, s.Close())
	}
	t.Logf("%d crashes", len(all))
}

// A store that installs a snapshot and then appends the later records equals the source, which applies transactions
// during the transfer.
func TestSnapshotEqualsSource(t *testing.T) {
	ops := rand.New(rand.NewPCG(3, 3))
	n := openNode(t, options(memfs.New()))
	m := &model{}
	run := func(k int) {
		for range k {
			require.NoError(t, n.appendTxn(m.step(t, ops, 40_000)))
		}
		n.applyAll()
	}
	run(200)
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(t, err)
	snap, err := n.s.OpenSnapshot()
	require.NoError(t, err)

	targetFS := memfs.New()
	to := options(targetFS)
	to.PageSize = 8192 // the installation replaces it with the sender's page size
	target := openNode(t, to)
	target.commit(m.foreign(t)) // a different history
	in, err := target.s.BeginInstall(snap.Header)
	require.NoError(t, err)
	var sent uint64
	for {
		at, data, err := snap.ReadNext(in.Offset(), 10_000, nil)
		if err != nil {
			break
		}
		require.NoError(t, in.WriteAt(at, data))
		sent += uint64(len(data))
		run(3) // the sender keeps running
	}
	require.Equal(t, snap.Header.DataBytes, sent)
	require.NoError(t, in.Commit())
	require.Equal(t, snap.Header.Position, target.s.End())
	snap.Close()

	for _, frames := range n.raw[snap.Header.Position.LSN:] {
		f, _, err := wal.DecodeFrame(frames, target.s.End())
		require.NoError(t, err)
		require.NoError(t, target.s.Append(frames, f.Pos))
	}
	require.NoError(t, target.s.Sync())
	target.applyAll()
	require.Equal(t, m.dump(), dumpStore(t, target.s))
	target.check()
	mine, err := digestOf(context.Background(), n.s)
	require.NoError(t, err)
	yours, err := digestOf(context.Background(), target.s)
	require.NoError(t, err)
	require.Equal(t, mine, yours)
	require.NoError(t, target.s.Close())
	_, err = targetFS.Stat("/data/page.db_old")
	require.NoError(t, err, "the old page file is kept")
	_, err = targetFS.Stat("/data/page.db_recv")
	require.ErrorIs(t, err, os.ErrNotExist)
	again := openNode(t, to)
	again.applyAll()
	require.Equal(t, m.dump(), dumpStore(t, again.s))
}
