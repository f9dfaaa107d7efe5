// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// After a restart, the committed LSN is the one stored in the log. If the log is missing, it is the LSN of the
// checkpoint (INV-13).
func TestCommittedAfterRestart(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, options(mem))
	require.Zero(t, n.s.Committed())
	n.commit(createQueue)
	n.publish([]byte("1"))
	require.EqualValues(t, 2, n.s.Committed(), "applied records are committed")
	require.NoError(t, n.appendTxn(encode(t, nil, func(b *txn.Builder) { addMessages(b, []byte("2")) })))
	require.EqualValues(t, 2, n.s.Committed())
	n.s.NoteCommitted(1000)
	require.EqualValues(t, 3, n.s.Committed(), "at most End")
	require.NoError(t, n.appendTxn(encode(t, nil, func(b *txn.Builder) { addMessages(b, []byte("3")) })))

	crashed := openNode(t, options(mem.CrashClone(nil)))
	require.Zero(t, crashed.s.Applied().LSN, "no checkpoint")
	require.EqualValues(t, 4, crashed.s.End().LSN)
	require.EqualValues(t, 3, crashed.s.Committed())

	require.NoError(t, n.s.Close())
	n = openNode(t, options(mem))
	require.EqualValues(t, 2, n.s.Applied().LSN)
	require.EqualValues(t, 3, n.s.Committed())
	n.check()

	noLog := mem.CrashClone(nil)
	names, err := noLog.ReadDir("/data/log")
	require.NoError(t, err)
	for _, name := range names {
		require.NoError(t, noLog.Remove("/data/log/"+name))
	}
	require.NoError(t, noLog.SyncDir("/data/log"))
	lost := openNode(t, options(noLog))
	require.True(t, lost.s.Identity().MayHaveLost)
	require.EqualValues(t, 2, lost.s.Committed())
}

// TruncateTail rejects a position below the committed LSN. If a forced failover has discarded the records,
// TruncateTail accepts the position and lowers the committed LSN (INV-13).
func TestTruncateTailRejectsCommitted(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, options(mem))
	var at []lsn.Position
	for i := range 5 {
		require.NoError(t, n.appendTxn(encode(t, nil, func(b *txn.Builder) { addMessages(b, []byte{byte(i)}) })))
		at = append(at, n.s.End())
	}
	n.s.NoteCommitted(3)
	_, err := n.s.TruncateTail(at[1], false)
	require.ErrorIs(t, err, store.ErrCommitted)
	require.Equal(t, at[4], n.s.End(), "nothing was truncated")
	report, err := n.s.TruncateTail(at[2], false)
	require.NoError(t, err)
	require.Equal(t, 2, report.Records)
	require.EqualValues(t, 3, n.s.Committed())

	require.NoError(t, n.s.Close())
	n = openNode(t, options(mem))
	_, err = n.s.TruncateTail(at[1], false)
	require.ErrorIs(t, err, store.ErrCommitted, "also after a restart")
	_, err = n.s.TruncateTail(at[1], true)
	require.NoError(t, err)
	require.EqualValues(t, 2, n.s.Committed())
	require.EqualValues(t, 2, openNode(t, options(mem.CrashClone(nil))).s.Committed(), "never above the end")
}

// After a snapshot is installed, the committed LSN is the LSN of the snapshot, regardless of the earlier history.
func TestCommittedAfterSnapshot(t *testing.T) {
	source := openNode(t, options(memfs.New()))
	source.commit(createQueue)
	for range 10 {
		source.publish([]byte("1"))
	}
	_, err := source.s.Checkpoint(t.Context())
	require.NoError(t, err)
	for _, records := range []int{0, 5, 30} {
		mem := memfs.New()
		n := openNode(t, options(mem))
		n.commit(createQueue)
		for range records {
			n.publish([]byte("another history"))
		}
		source.copyTo(n)
		at := n.s.Applied().LSN
		require.EqualValues(t, 11, at)
		require.Equal(t, at, n.s.Committed())
		require.Equal(t, at, openNode(t, options(mem.CrashClone(nil))).s.Committed())
	}
}

func (n *node) copyTo(to *node) {
	n.t.Helper()
	snap, err := n.s.OpenSnapshot()
	require.NoError(n.t, err)
	defer snap.Close()
	in, err := to.s.BeginInstall(snap.Header)
	require.NoError(n.t, err)
	for {
		at, data, err := snap.ReadNext(in.Offset(), 1<<20, nil)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(n.t, err)
		require.NoError(n.t, in.WriteAt(at, data))
	}
	require.NoError(n.t, in.Commit())
}

// A quarantined store has no records, so its committed LSN is zero.
func TestCommittedAfterQuarantine(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, options(mem))
	require.NoError(t, n.s.JoinPair(uuid.New()))
	n.commit(createQueue)
	require.NoError(t, n.s.Close())
	f, err := mem.OpenFile("/data/page.db", os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(make([]byte, 48<<10), 16<<10) // both meta slots
	require.NoError(t, err)
	require.NoError(t, f.Close())
	o := options(mem)
	o.ReplaceDamaged = true
	n = openNode(t, o)
	require.True(t, n.s.Identity().MayHaveLost)
	require.Zero(t, n.s.End().LSN)
	require.Zero(t, n.s.Committed())
	require.NoError(t, n.s.ClearLoss())
	require.Zero(t, n.s.Committed())
}

// ClearLoss does not change the committed LSN of a store that has lost the end of its log.
func TestClearLossKeepsCommitted(t *testing.T) {
	mem := memfs.New()
	o := options(mem)
	o.Sync = wal.SyncInterval
	n := openNode(t, o)
	n.commit(createQueue)
	n.publish([]byte("1"))
	require.NoError(t, n.s.Close())
	n = openNode(t, o)
	n.publish([]byte("2"))
	o.FS, o.BootID = mem.CrashClone(nil), "boot-2"
	crashed := openNode(t, o)
	require.True(t, crashed.s.Identity().MayHaveLost)
	before := crashed.s.Committed()
	require.GreaterOrEqual(t, before, uint64(2))
	require.NoError(t, crashed.s.ClearLoss())
	require.Equal(t, before, crashed.s.Committed())
}

// After a crash at any point, the committed LSN is not higher than before the crash. It is not lower than the last
// committed LSN in a durable block or checkpoint.
func TestCommittedAcrossCrashes(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 40
	}
	behind := 0
	for seed := range rounds {
		c := &commitCrash{t: t, rng: rand.New(rand.NewPCG(uint64(seed), 13)), mem: memfs.New()}
		c.run()
		after := openNode(t, options(c.shot))
		got := after.s.Committed()
		require.LessOrEqual(t, got, c.most, "seed %d", seed)
		require.GreaterOrEqual(t, got, c.least, "seed %d", seed)
		require.LessOrEqual(t, got, after.s.End().LSN)
		require.GreaterOrEqual(t, got, after.s.Applied().LSN)
		require.NoError(t, after.s.Apply(got, nil))
		if got < c.most {
			behind++
		}
		require.NoError(t, after.s.Close())
		require.Equal(t, got, openNode(t, options(c.shot)).s.Committed())
	}
	require.Positive(t, behind, "no crash between a commit and the block that records it")
	require.Less(t, behind, rounds)
}

// commitCrash is one round of TestCommittedAcrossCrashes.
type commitCrash struct {
	t   *testing.T
	rng *rand.Rand
	mem *memfs.FS

	mu sync.Mutex // guards the fields below; the log and the pager write in their own goroutines
	// committed is the last committed LSN passed to the store. durable is the committed LSN in a durable block or
	// checkpoint.
	committed, durable uint64
	crashAt            int
	// shot is the disk after the crash; most and least are the values of committed and durable at that moment.
	shot        *memfs.FS
	most, least uint64
}

func (c *commitCrash) hook(op faultfs.Op) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch op.Kind {
	case faultfs.OpWrite, faultfs.OpSync, faultfs.OpRename, faultfs.OpRemove, faultfs.OpSyncDir:
		if c.crashAt--; c.crashAt == 0 {
			c.shot, c.most, c.least = c.mem.CrashClone(crashRand(c.rng)), c.committed, c.durable
		}
	default:
	}
	return nil
}

// note records a committed LSN that is about to be passed to the store, or one that a durable block contains.
func (c *commitCrash) note(committed, durable uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committed, c.durable = max(c.committed, committed), max(c.durable, durable)
}

func (c *commitCrash) crashed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shot != nil
}

func (c *commitCrash) run() {
	fault := faultfs.New(c.mem)
	n := openNode(c.t, options(fault))
	n.commit(createQueue)
	c.committed, c.crashAt = 1, 1+c.rng.IntN(60)
	rng := rand.New(rand.NewPCG(c.rng.Uint64(), 1))
	fault.SetHook(c.hook)
	for !c.crashed() {
		end, applied := n.s.End().LSN, n.s.Applied().LSN
		switch k := rng.IntN(10); {
		case k < 6:
			recorded := n.s.Committed()
			require.NoError(c.t, n.appendTxn(encode(c.t, nil, func(b *txn.Builder) { addMessages(b, []byte("m")) })))
			c.note(0, recorded)
		case k < 7:
			committed := applied + rng.Uint64N(end-applied+1)
			c.note(committed, 0)
			n.s.NoteCommitted(committed)
		case k < 9:
			committed := applied + rng.Uint64N(end-applied+1)
			c.note(committed, 0)
			require.NoError(c.t, n.s.Apply(committed, nil))
		default:
			_, err := n.s.Checkpoint(c.t.Context())
			require.NoError(c.t, err)
			c.note(0, applied)
		}
	}
	fault.SetHook(nil)
}
