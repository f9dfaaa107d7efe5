// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// maxWait limits the wait for operations that should complete immediately.
const maxWait = time.Minute

// within runs fn, and fails the test if fn does not return in time.
func within(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(maxWait):
		t.Fatal(what + " hangs")
	}
}

// gate is a hook that blocks the first matching operation until the gate is opened.
type gate struct {
	reached, open chan struct{}
	passed        atomic.Bool
}

func closeGate(fault *faultfs.FS, match func(faultfs.Op) bool) *gate {
	g := &gate{reached: make(chan struct{}), open: make(chan struct{})}
	fault.SetHook(func(op faultfs.Op) error {
		if match(op) && g.passed.CompareAndSwap(false, true) {
			close(g.reached)
			<-g.open
		}
		return nil
	})
	return g
}

func isPageFile(kind faultfs.OpKind) func(faultfs.Op) bool {
	return func(op faultfs.Op) bool { return op.Kind == kind && op.Name == datadir.PageFile("/data") }
}

// publish commits one transaction with messages for queue 1.
func (n *node) publish(bodies ...[]byte) {
	n.t.Helper()
	n.commit(func(b *txn.Builder) { addMessages(b, bodies...) })
}

func addMessages(b *txn.Builder, bodies ...[]byte) {
	b.BeginPublish(1)
	for _, body := range bodies {
		b.Message(1, nil, body)
	}
	b.EndPublish()
}

func createQueue(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") }

// Close ends concurrent checkpoint requests with ErrClosed.
func TestCheckpointDuringClose(t *testing.T) {
	for range 20 {
		n := openNode(t, options(memfs.New()))
		n.commit(createQueue)
		var requests sync.WaitGroup
		for range 4 {
			requests.Go(func() {
				for {
					if _, err := n.s.Checkpoint(context.Background()); err != nil {
						assertClosed(t, err)
						return
					}
				}
			})
		}
		within(t, "Close", func() { require.NoError(t, n.s.Close()) })
		within(t, "Checkpoint", requests.Wait)
	}
}

func assertClosed(t *testing.T, err error) {
	if !errors.Is(err, store.ErrClosed) {
		t.Errorf("want ErrClosed, got %v", err)
	}
}

// A checkpoint request that waits for the disk returns when its context is canceled.
func TestCheckpointCanceled(t *testing.T) {
	fault := faultfs.New(memfs.New())
	n := openNode(t, options(fault))
	n.commit(createQueue)
	g := closeGate(fault, isPageFile(faultfs.OpSync))
	defer close(g.open)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-g.reached
		cancel()
	}()
	within(t, "Checkpoint", func() {
		_, err := n.s.Checkpoint(ctx)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// After a failed fsync of a requested checkpoint, the store is unusable (INV-7).
func TestFailedPageSyncIsFinal(t *testing.T) {
	fault := faultfs.New(memfs.New())
	o := options(fault)
	reported := make(chan error, 1)
	o.Events = func(e events.Event) {
		if f, ok := e.(events.Failed); ok {
			reported <- f.Err
		}
	}
	n := openNode(t, o)
	n.commit(createQueue)
	fault.SetHook(func(op faultfs.Op) error {
		if isPageFile(faultfs.OpSync)(op) {
			return syscall.EIO
		}
		return nil
	})
	_, err := n.s.Checkpoint(context.Background())
	require.ErrorIs(t, err, syscall.EIO)
	fault.SetHook(nil)
	select {
	case err := <-reported:
		require.ErrorIs(t, err, syscall.EIO)
	case <-time.After(maxWait):
		t.Fatal("no Failed event")
	}
	require.ErrorIs(t, n.appendTxn(encode(t, nil, createQueue)), store.ErrFailed)
}

// Append rejects frames that do not continue the log or are too large. The store remains usable.
func TestRejectedFramesAreNotFatal(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	payload := encode(t, nil, createQueue)
	frames, end := wal.AppendFrame(nil, lsn.Position{Term: 1, LSN: 7, Chain: 9}, 1, wal.KindTxn, payload)
	require.ErrorIs(t, n.s.Append(frames, end), wal.ErrNotContiguous)
	frames, end = wal.AppendFrame(nil, n.s.End(), 1, wal.KindTxn, make([]byte, 2<<20))
	require.ErrorIs(t, n.s.Append(frames, end), wal.ErrTooLarge)
	n.commit(createQueue)
	n.check()
}

// Methods of a closed store return ErrClosed and write nothing, since another process may have opened the directory.
func TestUseAfterClose(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, options(mem))
	n.commit(createQueue)
	require.NoError(t, n.s.Close())
	require.ErrorIs(t, n.appendTxn(encode(t, nil, createQueue)), store.ErrClosed)
	require.ErrorIs(t, n.s.SetFence(identity.Fence{Config: 9, Term: 9}), store.ErrClosed)
	_, _, err := n.s.Read(context.Background(), store.ReadRequest{Queue: 1}, nil)
	require.ErrorIs(t, err, store.ErrClosed)
	_, err = n.s.OpenSnapshot()
	require.ErrorIs(t, err, store.ErrClosed)
	_, err = n.s.Checkpoint(context.Background())
	require.ErrorIs(t, err, store.ErrClosed)
	id, err := datadir.ReadIdentity(mem, "/data")
	require.NoError(t, err)
	require.Zero(t, id.Fence)
}

// Close does not wait for a running check. The check fails with ErrClosed.
func TestCloseDuringCheck(t *testing.T) {
	fault := faultfs.New(memfs.New())
	n, _ := filled(t, options(fault))
	g := closeGate(fault, isPageFile(faultfs.OpRead))
	checked := make(chan error, 1)
	go func() {
		_, err := checkStore(context.Background(), n.s, nil)
		checked <- err
	}()
	<-g.reached
	within(t, "Close", func() { require.NoError(t, n.s.Close()) })
	close(g.open)
	require.ErrorIs(t, <-checked, store.ErrClosed)
}

// A rewrite does not disturb a running check, which continues to read the replaced page.db.
func TestCheckDuringRewrite(t *testing.T) {
	fault := faultfs.New(memfs.New())
	n, _ := filled(t, options(fault))
	g := closeGate(fault, isPageFile(faultfs.OpRead))
	checked := make(chan error, 1)
	go func() {
		report, err := checkStore(context.Background(), n.s, nil)
		if err == nil && len(report.Problems) > 0 {
			err = errors.New(report.Problems[0])
		}
		checked <- err
	}()
	<-g.reached
	_, err := n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: 4096})
	require.NoError(t, err)
	close(g.open)
	require.NoError(t, <-checked)
	n.check()
}

// When Close and the commit of a snapshot run concurrently, both return, and a restart finds the old or the new
// content.
func TestCloseDuringInstall(t *testing.T) {
	source, m := filled(t, options(memfs.New()))
	for range 20 {
		mem := memfs.New()
		target := openNode(t, options(mem))
		in := receive(t, source.s, target.s)
		var both sync.WaitGroup
		both.Go(func() {
			if err := in.Commit(); err != nil {
				assertClosed(t, err)
			}
		})
		both.Go(func() { _ = target.s.Close() })
		within(t, "Close or Commit", both.Wait)
		again := openNode(t, options(mem))
		again.applyAll()
		if again.s.End().LSN != 0 {
			require.Equal(t, m.dump(), dumpStore(t, again.s))
		}
		again.check()
	}
}

// receive copies a snapshot from one store to another, but does not call Commit.
func receive(t *testing.T, from, to *store.Store) *store.Install {
	t.Helper()
	snap, err := from.OpenSnapshot()
	require.NoError(t, err)
	defer snap.Close()
	in, err := to.BeginInstall(snap.Header)
	require.NoError(t, err)
	for {
		at, data, err := snap.ReadNext(in.Offset(), 1<<20, nil)
		if err != nil {
			return in
		}
		require.NoError(t, in.WriteAt(at, data))
	}
}

// Reads of an open snapshot fail after another snapshot has replaced the store, since they would read the new file.
func TestSnapshotOfReplacedStore(t *testing.T) {
	source, _ := filled(t, options(memfs.New()))
	target, _ := filled(t, options(memfs.New()))
	old, err := target.s.OpenSnapshot()
	require.NoError(t, err)
	defer old.Close()
	require.NoError(t, receive(t, source.s, target.s).Commit())
	_, _, err = old.ReadNext(64<<10, 1<<20, nil)
	require.ErrorIs(t, err, store.ErrSnapshotGone)
	_, err = target.s.ResumeSnapshot(old.ID)
	require.ErrorIs(t, err, store.ErrSnapshotGone)
}

// A closed snapshot cannot be read, since its pages may have been reused.
func TestClosedSnapshot(t *testing.T) {
	n, _ := filled(t, options(memfs.New()))
	snap, err := n.s.OpenSnapshot()
	require.NoError(t, err)
	snap.Close()
	_, _, err = snap.ReadNext(64<<10, 1<<20, nil)
	require.ErrorIs(t, err, store.ErrSnapshotGone)
}

// Commit fails if a part of the snapshot was not received. The store remains usable.
func TestIncompleteSnapshotIsRejected(t *testing.T) {
	source, _ := filled(t, options(memfs.New()))
	target := openNode(t, options(memfs.New()))
	snap, err := source.s.OpenSnapshot()
	require.NoError(t, err)
	defer snap.Close()
	in, err := target.s.BeginInstall(snap.Header)
	require.NoError(t, err)
	var offset uint64
	for pieces := 0; ; pieces++ {
		at, data, err := snap.ReadNext(offset, 4<<10, nil)
		if err != nil {
			break
		}
		if pieces != 1 {
			require.NoError(t, in.WriteAt(at, data))
		}
		offset = at + uint64(len(data))
	}
	require.Error(t, in.Commit())
	target.commit(createQueue)
	target.check()
}

// Open sets MayHaveLost (INV-6) if the log segments were removed. A crash during this Open does not clear it.
func TestRemovedLog(t *testing.T) {
	for _, paired := range []bool{false, true} {
		mem := memfs.New()
		n := openNode(t, options(mem))
		if paired {
			require.NoError(t, n.s.JoinPair(uuid.New()))
		} else {
			n.commit(createQueue)
		}
		require.NoError(t, n.s.Close())
		again := openNode(t, options(mem))
		require.False(t, again.s.Identity().MayHaveLost)
		require.NoError(t, again.s.Close())
		names, err := mem.ReadDir(datadir.LogDir("/data"))
		require.NoError(t, err)
		for _, name := range names {
			require.NoError(t, mem.Remove(filepath.Join(datadir.LogDir("/data"), name)))
		}
		require.NoError(t, mem.SyncDir(datadir.LogDir("/data")))
		fault := faultfs.New(mem)
		var mu sync.Mutex
		crashes := map[string]*memfs.FS{}
		fault.SetHook(func(op faultfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind != faultfs.OpRead {
				crashes[fmt.Sprintf("%s %d %s", op.Kind, op.Count, op.Name)] = mem.CrashClone(nil)
			}
			return nil
		})
		third := openNode(t, options(fault))
		fault.SetHook(nil)
		require.True(t, third.s.Identity().MayHaveLost)
		mu.Lock() // a goroutine of the log may still be in the hook
		all := maps.Clone(crashes)
		mu.Unlock()
		for at, crashed := range all {
			require.True(t, openNode(t, options(crashed)).s.Identity().MayHaveLost, "crash before %s", at)
		}
		third.commit(func(b *txn.Builder) { b.CreateQueue("another", txn.Config{}, "default") })
		third.check()
	}
}

// After TruncateTail, Apply continues with the remaining records of the log.
func TestApplyAfterTruncation(t *testing.T) {
	mem := memfs.New()
	first := openNode(t, options(mem))
	first.commit(createQueue)
	first.publish([]byte("1"))

	n := openNode(t, options(mem.CrashClone(nil)))
	n.applyAll() // from the log
	require.NoError(t, n.appendTxn(encode(t, nil, func(b *txn.Builder) { addMessages(b, []byte("2")) })))
	keep := n.s.End()
	require.NoError(t, n.appendTxn(encode(t, nil, func(b *txn.Builder) { addMessages(b, []byte("3")) })))
	report, err := n.s.TruncateTail(keep, false)
	require.NoError(t, err)
	require.Equal(t, 1, report.Records)
	n.applyAll()
	require.Equal(t, keep, n.s.Applied())
	got, _, err := n.s.Read(context.Background(), store.ReadRequest{Queue: 1, MaxMessages: 10}, nil)
	require.NoError(t, err)
	require.Len(t, got, 2)
	_, err = mem.Stat(report.File)
	require.ErrorIs(t, err, os.ErrNotExist, "only the clone has the file of truncated records")
}

// Apply fails at a record with a newer version, after it has reported the results of the records before it.
func TestApplyStopsAtNewerVersion(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	frames, end := wal.AppendFrame(nil, n.s.End(), 1, wal.KindTxn, encode(t, nil, createQueue))
	newer := encode(t, nil, createQueue)
	newer[0] = 99
	frames, end = wal.AppendFrame(frames, end, 1, wal.KindTxn, newer)
	require.NoError(t, n.s.Append(frames, end))
	require.NoError(t, n.s.Sync())
	var applied []uint64
	for range 2 {
		err := n.s.Apply(end.LSN, func(at uint64, _ *txn.Result) { applied = append(applied, at) })
		require.ErrorIs(t, err, txn.ErrNewerVersion)
		require.Equal(t, []uint64{1}, applied)
		require.Equal(t, uint64(1), n.s.Applied().LSN)
	}
}

// AwaitRoom blocks until enough messages have been written to pages, or until its context is canceled.
func TestAwaitRoom(t *testing.T) {
	fault := faultfs.New(memfs.New())
	o := options(fault)
	o.MemoryBudget = store.MinMemoryBudget
	n := openNode(t, o)
	n.commit(createQueue)
	g := closeGate(fault, isPageFile(faultfs.OpWrite))
	for n.tailBytes() <= o.MemoryBudget/2 {
		n.commit(func(b *txn.Builder) { addMessages(b, make([]byte, 900<<10)) })
	}
	<-g.reached
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan struct{}, 2)
	wait := func(ctx context.Context) {
		n.s.AwaitRoom(ctx, o.MemoryBudget)
		waited <- struct{}{}
	}
	go wait(ctx)
	select {
	case <-waited:
		t.Fatal("AwaitRoom did not block")
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	within(t, "AwaitRoom with an ended context", func() { <-waited })
	go wait(t.Context())
	close(g.open)
	within(t, "AwaitRoom", func() { <-waited })
	require.LessOrEqual(t, n.tailBytes(), o.MemoryBudget/4)
	n.s.AwaitRoom(t.Context(), o.MemoryBudget)
}

func (n *node) tailBytes() int64 {
	st, err := n.s.Stats()
	require.NoError(n.t, err)
	return st.TailBytes
}

// Close ends an Apply that waits for memory while the disk does not respond.
func TestCloseEndsBlockedApply(t *testing.T) {
	fault := faultfs.New(memfs.New())
	o := options(fault)
	o.MemoryBudget = store.MinMemoryBudget
	n := openNode(t, o)
	n.commit(createQueue)
	var released atomic.Bool
	g := closeGate(fault, isPageFile(faultfs.OpWrite))
	defer func() {
		if !released.Load() {
			close(g.open)
		}
	}()
	for range 24 {
		require.NoError(t, n.appendTxn(encode(t, nil, func(b *txn.Builder) { addMessages(b, make([]byte, 900<<10)) })))
	}
	applied := make(chan error, 1)
	go func() { applied <- n.s.Apply(n.s.End().LSN, nil) }()
	<-g.reached
	require.Eventually(t, func() bool {
		st, err := n.s.Stats()
		return err == nil && st.TailBytes > o.MemoryBudget/2
	}, maxWait, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- n.s.Close() }()
	require.Eventually(t, func() bool { return errors.Is(n.s.Sync(), store.ErrClosed) }, maxWait, time.Millisecond)
	released.Store(true)
	close(g.open)
	within(t, "Apply", func() { require.ErrorIs(t, <-applied, store.ErrClosed) })
	within(t, "Close", func() { require.NoError(t, <-closed) })
}
