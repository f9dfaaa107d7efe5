// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// filled returns a store with a few messages in pages.
func filled(t *testing.T, o store.Options) (*node, *model) {
	t.Helper()
	n, m := openNode(t, o), &model{}
	ops := rand.New(rand.NewPCG(5, 5))
	for range 60 {
		require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
	}
	n.applyAll()
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(t, err)
	return n, m
}

// After a crash before any step of a snapshot installation, a restart finds either the old or the new content.
func TestInstallIsAtomic(t *testing.T) {
	source, m := filled(t, options(memfs.New()))
	snap, err := source.s.OpenSnapshot()
	require.NoError(t, err)
	defer snap.Close()

	mem := memfs.New()
	fault := faultfs.New(mem)
	target := openNode(t, options(fault))
	foreign := &model{}
	target.commit(foreign.foreign(t))
	_, err = target.s.Checkpoint(context.Background())
	require.NoError(t, err)
	before, incarnation := dumpStore(t, target.s), target.s.Identity().Incarnation
	in, err := target.s.BeginInstall(snap.Header)
	require.NoError(t, err)
	for {
		at, data, err := snap.ReadNext(in.Offset(), 1<<20, nil)
		if err != nil {
			break
		}
		require.NoError(t, in.WriteAt(at, data))
	}
	var mu sync.Mutex
	var clones []*memfs.FS
	var ops []string
	rng := rand.New(rand.NewPCG(9, 9))
	fault.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		clones, ops = append(clones, mem.CrashClone(crashRand(rng))),
			append(ops, fmt.Sprintf("%s %s", op.Kind, op.Name))
		return nil
	})
	require.NoError(t, in.Commit())
	fault.SetHook(nil)
	mu.Lock() // a goroutine of the log may still be in the hook
	all, names := append(slices.Clone(clones), mem.CrashClone(nil)), append(slices.Clone(ops), "the end")
	mu.Unlock()
	var olds, news int
	for i, clone := range all {
		n := openNode(t, options(clone))
		n.applyAll()
		switch got := dumpStore(t, n.s); got {
		case before:
			olds++
			require.NotEqual(t, len(all)-1, i, "the new content is durable when Commit returns")
		default:
			require.Equal(t, m.dump(), got, "crash before %s", names[i])
			require.Equal(t, snap.Header.Position, n.s.End(), "crash before %s", names[i])
			// A cluster record that lists the old content as in sync must not match the new content (INV-4).
			require.Greater(t, n.s.Identity().Incarnation, incarnation, "crash before %s", names[i])
			news++
		}
		n.check()
		require.NoError(t, n.s.Close())
	}
	require.Positive(t, olds)
	require.Positive(t, news)
}

// A check fails or reports a problem for a flipped bit in any used page.
func TestCheckReportsCorruptPages(t *testing.T) {
	mem := memfs.New()
	n, m := filled(t, options(mem))
	want := m.dump()
	stats, err := n.s.Stats()
	require.NoError(t, err)
	pages := stats.Pages
	require.NoError(t, n.s.Close())
	f, err := mem.OpenFile(datadir.PageFile("/data"), os.O_RDWR, 0)
	require.NoError(t, err)
	var found int
	for no := page.No(1); uint64(no) <= pages; no++ {
		at := page.OffsetOf(no, 2048) + 37
		var b [1]byte
		_, err := f.ReadAt(b[:], at)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte{b[0] ^ 0x10}, at)
		require.NoError(t, err)
		report, err := checkDir(mem)
		if err != nil || len(report.Problems) > 0 {
			found++
		}
		_, err = f.WriteAt(b[:], at)
		require.NoError(t, err)
	}
	require.Greater(t, found, 10, "most pages of the store are in use")
	report, err := checkDir(mem)
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	again := openNode(t, options(mem))
	again.applyAll()
	require.Equal(t, want, dumpStore(t, again.s))
}

// A read across a corrupt page returns all messages before the page. The next read returns ErrDataLoss.
func TestReadStopsAtCorruptPage(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, options(mem))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	for i := range 40 {
		n.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			b.Message(1, nil, []byte(fmt.Sprintf("%0900d", i)))
			b.EndPublish()
		})
	}
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(t, err)
	f, err := mem.OpenFile(datadir.PageFile("/data"), os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff, 0xff}, page.OffsetOf(10, 2048)+500)
	require.NoError(t, err)
	var got []store.Delivery
	from := uint64(1)
	for {
		got, from, err = n.s.Read(context.Background(), store.ReadRequest{Queue: 1, Sub: 1, From: from, MaxMessages: 3},
			got)
		if err != nil || from > 40 {
			break
		}
	}
	require.ErrorIs(t, err, index.ErrDataLoss)
	require.ErrorIs(t, err, page.ErrCorrupt)
	for i, d := range got {
		require.Equal(t, uint64(i+1), d.Sequence, "no message skipped")
	}
	require.Less(t, len(got), 40)
	_ = n.s.Close()
}

// fullDisk returns a switch. While it is on, writes to page.db fail as on a full disk.
func fullDisk(fault *faultfs.FS) *atomic.Bool {
	var full atomic.Bool
	fault.SetHook(func(op faultfs.Op) error {
		if full.Load() && op.Name == datadir.PageFile("/data") &&
			(op.Kind == faultfs.OpWrite || op.Kind == faultfs.OpAllocate) {
			return fmt.Errorf("write: %w", syscall.ENOSPC)
		}
		return nil
	})
	return &full
}

// Checkpoints on a full disk fail without loss of data. Once space is available, the store is consistent.
func TestCheckpointsOnFullDisk(t *testing.T) {
	fault := faultfs.New(memfs.New())
	n, m := filled(t, options(fault))
	full := fullDisk(fault)
	ops := rand.New(rand.NewPCG(6, 6))
	for round := range 6 {
		full.Store(true)
		for range 20 {
			require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
		}
		n.applyAll()
		_, err := n.s.Checkpoint(context.Background())
		require.Error(t, err, "round %d", round)
		require.Equal(t, m.dump(), dumpStore(t, n.s))
		full.Store(false)
		n.check()
	}
	require.Equal(t, m.dump(), dumpStore(t, n.s))
}

// A checkpoint after a failed checkpoint contains all records that were applied before the call.
func TestCheckpointAfterFullDisk(t *testing.T) {
	fault := faultfs.New(memfs.New())
	n, m := filled(t, options(fault))
	full := fullDisk(fault)
	ops := rand.New(rand.NewPCG(7, 7))
	for round := range 6 {
		full.Store(true)
		require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
		n.applyAll()
		_, err := n.s.Checkpoint(t.Context())
		require.ErrorIs(t, err, syscall.ENOSPC, "round %d", round)
		require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
		n.applyAll()
		full.Store(false)
		info, err := n.s.Checkpoint(t.Context())
		require.NoError(t, err)
		require.Equal(t, n.s.Applied(), info.Position, "round %d", round)
	}
}

// After a failed fsync of the log the store sends events.Failed and rejects all operations. A restart recovers all
// acknowledged records.
func TestFailedSyncIsFinal(t *testing.T) {
	mem := memfs.New()
	fault := faultfs.New(mem)
	o := options(fault)
	reported := make(chan error, 1)
	o.Events = func(e events.Event) {
		if f, ok := e.(events.Failed); ok {
			reported <- f.Err
		}
	}
	n, m := filled(t, o)
	want := m.dump()
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpSync {
			return syscall.EIO
		}
		return nil
	})
	require.ErrorIs(t, n.appendTxn(encode(t, nil, m.foreign(t))), syscall.EIO)
	fault.SetHook(nil)
	require.ErrorIs(t, n.appendTxn(encode(t, nil, m.foreign(t))), store.ErrFailed,
		"a later successful fsync is not sufficient (INV-7)")
	select {
	case err := <-reported:
		require.ErrorIs(t, err, syscall.EIO)
	case <-time.After(time.Minute):
		t.Fatal("no Failed event")
	}
	_ = n.s.Close()
	again := openNode(t, options(mem.CrashClone(nil)))
	again.applyAll()
	require.Equal(t, want, dumpStore(t, again.s))
}

// The identity is persistent, and invalid changes are rejected.
func TestIdentity(t *testing.T) {
	mem := memfs.New()
	o := options(mem)
	n := openNode(t, o)
	first := n.s.Identity()
	require.NotEqual(t, uuid.Nil, first.NodeID)
	pair := uuid.New()
	require.NoError(t, n.s.JoinPair(pair))
	require.ErrorIs(t, n.s.JoinPair(uuid.New()), store.ErrOtherPair)
	require.NoError(t, n.s.SetFence(identity.Fence{Config: 5, Term: 2}))
	require.ErrorIs(t, n.s.SetFence(identity.Fence{Config: 4, Term: 2}), store.ErrFenceLower)
	require.ErrorIs(t, n.s.SetFence(identity.Fence{Config: 5, Term: 1}), store.ErrFenceLower)

	_, err := store.Open(o)
	require.ErrorIs(t, err, datadir.ErrInUse)

	crashed := openNode(t, options(mem.CrashClone(nil)))
	got := crashed.s.Identity()
	require.Equal(t, identity.Fence{Config: 5, Term: 2}, got.Fence, "SetFence is durable (INV-1)")
	require.Equal(t, pair, got.PairID)
	require.Equal(t, first.NodeID, got.NodeID)
	require.False(t, got.MayHaveLost)
}

// A corrupt identity is rejected, since a node without its fence could accept an old active.
func TestCorruptIdentity(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, options(mem))
	require.NoError(t, n.s.Close())
	f, err := mem.OpenFile("/data/identity", os.O_RDWR, 0)
	require.NoError(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], 30)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{b[0] ^ 1}, 30)
	require.NoError(t, err)
	_, err = store.Open(options(mem))
	require.ErrorIs(t, err, datadir.ErrIdentity)
}

// MayHaveLost is set only after an unclean stop and a reboot in a sync mode other than always (INV-6).
func TestMayHaveLost(t *testing.T) {
	for _, c := range []struct {
		sync, boot string
		clean      bool
		lost       bool
	}{
		{"always", "boot-2", false, false},
		{"off", "boot-1", false, false},
		{"off", "boot-2", true, false},
		{"off", "boot-2", false, true},
		{"interval", "boot-2", false, true},
	} {
		t.Run(fmt.Sprintf("%s/%s/clean=%v", c.sync, c.boot, c.clean), func(t *testing.T) {
			mem := memfs.New()
			o := options(mem)
			o.Sync = parseSync(t, c.sync)
			n := openNode(t, o)
			if c.clean {
				require.NoError(t, n.s.Close())
			}
			o.FS, o.BootID = mem.CrashClone(nil), c.boot
			again := openNode(t, o)
			require.Equal(t, c.lost, again.s.Identity().MayHaveLost, "records may be lost")
			if !c.lost {
				return
			}
			before := again.s.Identity().Incarnation
			require.NoError(t, again.s.ClearLoss())
			require.False(t, again.s.Identity().MayHaveLost)
			require.Greater(t, again.s.Identity().Incarnation, before)
		})
	}
}

// Reads are correct while messages move from memory to pages, and while pages are freed and reused.
func TestReadersDuringCheckpoints(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "a", "b") })
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	errs := make(chan error, 4)
	for range 3 {
		readers.Go(func() {
			for ctx.Err() == nil {
				if err := readAll(ctx, n.s); err != nil && !errors.Is(err, context.Canceled) {
					errs <- err
					return
				}
			}
		})
	}
	for i := range uint64(400) {
		n.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for j := range uint64(3) {
				b.Message(1, nil, []byte(fmt.Sprintf("%d %0*d", i*3+j+1, 100+int(i%7)*700, 0)))
			}
			b.EndPublish()
		})
		if i > 20 {
			n.commit(func(b *txn.Builder) {
				b.Ack(1, 1, txn.Range{First: 1, Last: (i - 20) * 3})
				b.Ack(1, 2, txn.Range{First: 1, Last: (i - 20) * 3})
			})
		}
		if i%10 == 0 {
			_, err := n.s.Checkpoint(context.Background())
			require.NoError(t, err)
		}
	}
	cancel()
	readers.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	n.check()
}

// readAll reads the queue once and checks that each body contains the sequence of its message.
func readAll(ctx context.Context, s *store.Store) error {
	from, last := uint64(1), uint64(0)
	for {
		got, next, err := s.Read(ctx, store.ReadRequest{Queue: 1, Sub: 2, From: from, MaxMessages: 20}, nil)
		if err != nil || len(got) == 0 {
			return err
		}
		for _, d := range got {
			m, err := txn.DecodeMessage(d.Record)
			if err != nil {
				return err
			}
			var seq uint64
			if _, err := fmt.Sscanf(string(m.Body), "%d ", &seq); err != nil || seq != d.Sequence || seq <= last {
				return fmt.Errorf("sequence %d after %d contains message %d: %w", d.Sequence, last, seq, err)
			}
			last = seq
		}
		from = next
	}
}
