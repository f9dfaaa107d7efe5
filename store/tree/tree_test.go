// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/test/tier"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// After random changes, with commits, discards, flushes, checkpoints and reopened files, a tree has the entries of a
// map. Older views do not change.
func TestRandomEdits(t *testing.T) {
	for _, tt := range []struct{ pageSize, nodeBytes, cache int }{
		{2048, 0, 0}, {2048, 200, 4000}, {4096, 0, 1}, {4096, 700, 30_000}, {32768, 0, 0}, {32768, 300, 10_000},
	} {
		for seed := range int64(tier.Count(2, 3)) {
			t.Run(fmt.Sprintf("page=%d/node=%d/cache=%d/seed=%d", tt.pageSize, tt.nodeBytes, tt.cache, seed),
				func(t *testing.T) {
					runModel(t, tt.pageSize, Options{NodeBytes: tt.nodeBytes, CacheBytes: int64(tt.cache)}, seed, 250)
				})
		}
	}
}

type modelRun struct {
	t    *testing.T
	rng  *rand.Rand
	m    model
	file *page.File
	fs   *memfs.FS
	tree *Tree
	o    Options
}

func runModel(t *testing.T, pageSize int, o Options, seed int64, rounds int) {
	r := &modelRun{t: t, rng: rand.New(rand.NewSource(seed)), m: model{}, o: o}
	r.file, r.fs = newFile(t, pageSize)
	r.tree = New(r.file, page.Extent{}, o)
	type old struct {
		m     model
		view  *View
		guard *page.Guard
	}
	var olds []old
	for range rounds {
		r.edit()
		requireReads(t, r.m, r.tree.View(), randomKey(r.rng))
		requireSeeks(t, r.m, r.tree.View(), r.rng)
		if r.rng.Intn(12) == 0 {
			guard := r.file.ReadGuard()
			olds = append(olds, old{maps.Clone(r.m), r.tree.View(), guard})
		}
		if r.rng.Intn(8) == 0 {
			checkpoint(t, r.file, r.tree)
		}
		if len(olds) > 0 && r.rng.Intn(12) == 0 {
			requireSame(t, olds[0].m, olds[0].view, nil, nil)
			olds[0].guard.Release()
			olds = olds[1:]
		}
		if r.rng.Intn(60) == 0 {
			for _, o := range olds {
				requireSame(t, o.m, o.view, nil, nil)
			}
			olds = nil
			r.reopen()
		}
	}
	requireSame(t, r.m, r.tree.View(), nil, nil)
	checkpoint(t, r.file, r.tree)
	r.m = model{}
	e := r.tree.Edit()
	require.NoError(t, e.DeleteRange(nil, nil))
	require.NoError(t, e.Commit())
	checkpoint(t, r.file, r.tree)
	require.True(t, r.file.Meta().Root.IsZero())
}

func (r *modelRun) reopen() {
	checkpoint(r.t, r.file, r.tree)
	require.NoError(r.t, r.file.Close())
	var err error
	r.file, err = page.Open(r.fs, "data/page.db", page.Options{})
	require.NoError(r.t, err)
	file := r.file
	r.t.Cleanup(func() { require.NoError(r.t, file.Close()) })
	r.tree = New(r.file, r.file.Meta().Root, r.o)
	requireSame(r.t, r.m, r.tree.View(), nil, nil)
}

// edit commits or discards one Edit with random changes.
func (r *modelRun) edit() {
	before := maps.Clone(r.m)
	e := r.tree.Edit()
	for range 1 + r.rng.Intn(60) {
		key := randomKey(r.rng)
		switch r.rng.Intn(24) {
		default:
			value := randomValue(r.rng)
			require.NoError(r.t, e.Put(key, value))
			r.m[string(key)] = string(value)
		case 0, 1, 2, 3, 4, 5, 6, 7:
			if keys := r.m.sorted(); len(keys) > 0 && r.rng.Intn(2) == 0 {
				key = []byte(keys[r.rng.Intn(len(keys))])
			}
			_, want := r.m[string(key)]
			got, err := e.Delete(key)
			require.NoError(r.t, err)
			require.Equal(r.t, want, got)
			delete(r.m, string(key))
		case 8:
			if r.rng.Intn(4) == 0 {
				r.deleteRange(e)
			}
		case 9:
			requireReads(r.t, r.m, e, key)
			requireSeeks(r.t, r.m, e, r.rng)
		case 10:
			to := randomKey(r.rng)
			requireSame(r.t, r.m, e, key, to)
		}
	}
	if r.rng.Intn(10) == 0 {
		e.Discard()
		r.m = before
		return
	}
	require.NoError(r.t, e.Commit())
}

func (r *modelRun) deleteRange(e *Edit) {
	from, to := randomKey(r.rng), randomKey(r.rng)
	switch r.rng.Intn(6) {
	case 0:
		from = nil
	case 1:
		to = nil
	case 2: // one queue's range
		to = append(bytes.Clone(from), 0xff)
		from = from[:min(9, len(from))]
	}
	require.NoError(r.t, e.DeleteRange(from, to))
	for _, k := range r.m.sorted() {
		if (from == nil || k >= string(from)) && (to == nil || k < string(to)) {
			delete(r.m, k)
		}
	}
}

// Keys that are put in ascending order, for one or several queues, result in nearly full leaves.
func TestAscendingKeysFillLeaves(t *testing.T) {
	for _, queues := range []int{1, 3, 20} {
		f, _ := newFile(t, 4096)
		tr := New(f, page.Extent{}, Options{})
		const perQueue = 3000
		bytesOf := 0
		for seq := 0; seq < perQueue; seq += 10 {
			e := tr.Edit()
			for q := range queues {
				for i := range 10 {
					key := binary.BigEndian.AppendUint64([]byte{'i'}, uint64(q))
					key = binary.BigEndian.AppendUint64(key, uint64(seq+i))
					value := []byte("span page pages")
					bytesOf += len(value) + 5
					require.NoError(t, e.Put(key, value))
				}
			}
			require.NoError(t, e.Commit())
		}
		checkpoint(t, f, tr)
		leaves := 0
		require.NoError(t, tr.View().WalkExtents(func(ext page.Extent, level int) error {
			require.EqualValues(t, 1, ext.Pages)
			if level == 0 {
				leaves++
			}
			return nil
		}))
		require.Less(t, leaves, bytesOf/4096*5/4+2*queues, "leaves of %d queues", queues)
	}
}

// A tree with entries added at one end and removed at the other does not grow.
func TestConsumedKeysAreFreed(t *testing.T) {
	f, _ := newFile(t, 2048)
	tr := New(f, page.Extent{}, Options{})
	key := func(seq int) []byte { return binary.BigEndian.AppendUint64([]byte("i queue "), uint64(seq)) }
	const window = 300
	for seq := range 20_000 {
		e := tr.Edit()
		require.NoError(t, e.Put(key(seq), []byte("0123456789")))
		if seq%2 == 0 {
			require.NoError(t, e.DeleteRange(nil, key(seq-window)))
		} else if seq > window {
			_, err := e.Delete(key(seq - window))
			require.NoError(t, err)
		}
		require.NoError(t, e.Commit())
		if seq%500 == 0 {
			checkpoint(t, f, tr)
		}
	}
	checkpoint(t, f, tr)
	require.Less(t, f.Stats().Used, uint64(20))
	require.Less(t, f.Stats().Pages, uint64(600))
}

// Small nodes are merged, at all levels.
func TestSmallNodesAreMerged(t *testing.T) {
	f, _ := newFile(t, 2048)
	tr := New(f, page.Extent{}, Options{NodeBytes: 500})
	m := model{}
	e := tr.Edit()
	for i := range 10_000 {
		k := fmt.Sprintf("%08d", i)
		require.NoError(t, e.Put([]byte(k), []byte("0123456789")))
		m[k] = "0123456789"
	}
	require.NoError(t, e.Commit())
	checkpoint(t, f, tr)
	used := f.Stats().Used
	e = tr.Edit()
	rng := rand.New(rand.NewSource(1))
	for _, i := range rng.Perm(10_000)[:9900] {
		k := fmt.Sprintf("%08d", i)
		found, err := e.Delete([]byte(k))
		require.NoError(t, err)
		require.True(t, found)
		delete(m, k)
	}
	require.NoError(t, e.Commit())
	checkpoint(t, f, tr)
	require.Less(t, f.Stats().Used, used/20)
	requireSame(t, m, tr.View(), nil, nil)
}

// DeleteRange does not read the leaves inside the range.
func TestDeleteRangeReadsLittle(t *testing.T) {
	f, _ := newFile(t, 2048)
	counting := &countingPager{File: f}
	tr := New(counting, page.Extent{}, Options{CacheBytes: 1})
	key := func(i int) []byte { return fmt.Appendf(nil, "%08d", i) }
	e := tr.Edit()
	for i := range 20_000 {
		require.NoError(t, e.Put(key(i), []byte("0123456789")))
	}
	require.NoError(t, e.Commit())
	checkpoint(t, f, tr)
	used := f.Stats().Used
	counting.reads = 0
	e = tr.Edit()
	require.NoError(t, e.DeleteRange(key(5), key(19_995)))
	require.NoError(t, e.Commit())
	checkpoint(t, f, tr)
	require.Less(t, counting.reads, 20)
	require.Less(t, f.Stats().Used, used/20)
}

type countingPager struct {
	*page.File
	reads int
}

func (p *countingPager) ReadExtent(ext page.Extent, buf []byte) (page.Kind, []byte, error) {
	p.reads++
	return p.File.ReadExtent(ext, buf)
}

// Each view of a concurrent reader is consistent while the writer edits, flushes and checkpoints.
func TestConcurrentReaders(t *testing.T) {
	f, _ := newFile(t, 2048)
	tr := New(f, page.Extent{}, Options{NodeBytes: 300, CacheBytes: 3000})
	put := func(round int) {
		e := tr.Edit()
		for i := range 100 {
			require.NoError(t, e.Put(fmt.Appendf(nil, "key %03d", i), fmt.Appendf(nil, "%08d", round)))
		}
		require.NoError(t, e.Commit())
	}
	put(0)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := readOnce(f, tr); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for round := range 150 {
		put(round)
		root, err := tr.Flush()
		require.NoError(t, err)
		_, err = f.Checkpoint(page.Meta{Root: root})
		require.NoError(t, err)
	}
	close(stop)
	readers.Wait()
	checkpoint(t, f, tr)
	require.Less(t, f.Stats().Pages, uint64(3000), "pages are reused")
}

func readOnce(f *page.File, tr *Tree) error {
	guard := f.ReadGuard()
	defer guard.Release()
	v := tr.View()
	n, seen := 0, ""
	it := v.Scan(nil, nil)
	for ; it.Next(); n++ {
		if value := string(it.Value()); seen == "" {
			seen = value
		} else if seen != value {
			return fmt.Errorf("version %s and %s in one view", seen, value)
		}
	}
	if it.Err() != nil || n != 100 {
		return fmt.Errorf("%d entries, %w", n, it.Err())
	}
	return nil
}

// Keys and values above the maximum size, a scan after a change and the use of a finished edit are rejected.
func TestLimitsAndMisuse(t *testing.T) {
	f, _ := newFile(t, 2048)
	tr := New(f, page.Extent{}, Options{})
	e := tr.Edit()
	require.ErrorIs(t, e.Put(make([]byte, MaxKeyBytes+1), nil), ErrTooLarge)
	require.ErrorIs(t, e.Put(nil, make([]byte, MaxValueBytes+1)), ErrTooLarge)
	require.NoError(t, e.Put(make([]byte, MaxKeyBytes), make([]byte, MaxValueBytes)))
	require.NoError(t, e.Put(nil, nil))
	it := e.Scan(nil, nil)
	require.True(t, it.Next())
	require.NoError(t, e.Put([]byte("x"), nil))
	require.False(t, it.Next())
	require.ErrorIs(t, it.Err(), ErrChanged)
	require.NoError(t, e.Commit())
	e.Discard()
	require.ErrorIs(t, e.Commit(), ErrEditFinished)
	require.ErrorIs(t, e.Put(nil, nil), ErrEditFinished)
	checkpoint(t, f, tr)
	v, ok, err := New(f, f.Meta().Root, Options{}).View().Get(make([]byte, MaxKeyBytes))
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, v, MaxValueBytes)
}

// failingPager fails reads and writes on demand.
type failingPager struct {
	*page.File
	read, write, alloc error
}

func (p *failingPager) ReadExtent(ext page.Extent, buf []byte) (page.Kind, []byte, error) {
	if p.read != nil {
		return 0, nil, p.read
	}
	return p.File.ReadExtent(ext, buf)
}

func (p *failingPager) WriteExtents(first page.No, buf []byte) error {
	if p.write != nil {
		return p.write
	}
	return p.File.WriteExtents(first, buf)
}

func (p *failingPager) AllocExtents(pages []uint32) ([]page.Extent, error) {
	if p.alloc != nil {
		return nil, p.alloc
	}
	return p.File.AllocExtents(pages)
}

// A failed flush has no effect and can be retried. After a failed read, an edit cannot be committed.
func TestFailedPager(t *testing.T) {
	f, _ := newFile(t, 2048)
	p := &failingPager{File: f}
	tr := New(p, page.Extent{}, Options{NodeBytes: 200, CacheBytes: 1})
	m := model{}
	fill := func(from, to int) {
		e := tr.Edit()
		for i := from; i < to; i++ {
			k, v := fmt.Sprintf("%06d", i), fmt.Sprint(i)
			require.NoError(t, e.Put([]byte(k), []byte(v)))
			m[k] = v
		}
		require.NoError(t, e.Commit())
	}
	fill(0, 500)
	checkpoint(t, f, tr)
	fill(400, 800)
	used := f.Stats().Used
	for range 3 {
		p.write = fmt.Errorf("broken disk")
		_, err := tr.Flush()
		require.ErrorIs(t, err, p.write)
		p.write, p.alloc = nil, page.ErrFull
		_, err = tr.Flush()
		require.ErrorIs(t, err, page.ErrFull)
		p.alloc = nil
		require.Equal(t, used, f.Stats().Used)
		requireSame(t, m, tr.View(), nil, nil)
	}
	checkpoint(t, f, tr)
	requireSame(t, m, tr.View(), nil, nil)

	e := tr.Edit()
	p.read = page.ErrCorrupt
	require.ErrorIs(t, e.DeleteRange([]byte("000100"), []byte("000600")), page.ErrCorrupt)
	require.ErrorIs(t, e.Commit(), page.ErrCorrupt)
	it := tr.View().Scan(nil, nil)
	require.False(t, it.Next())
	require.ErrorIs(t, it.Err(), page.ErrCorrupt)
	_, _, err := tr.View().Get([]byte("000100"))
	require.ErrorIs(t, err, page.ErrCorrupt)
	p.read = nil
	requireSame(t, m, tr.View(), nil, nil)
	checkpoint(t, f, tr)
}

// An edit writes its dirty nodes when they exceed Options.CacheBytes. If it fails or is discarded, their pages are
// free.
func TestLargeEdit(t *testing.T) {
	f, _ := newFile(t, 2048)
	const limit = 50_000
	p := &failingPager{File: f}
	tr := New(p, page.Extent{}, Options{CacheBytes: limit})
	m := model{}
	put := func(e *Edit, i int) error {
		key, value := fmt.Sprintf("%08d", i*7919%20_000), fmt.Sprint(i)
		err := e.Put([]byte(key), []byte(value))
		m[key] = value
		return err
	}
	e := tr.Edit()
	for i := range 20_000 {
		require.NoError(t, put(e, i))
		require.Less(t, e.bytes, int64(2*limit))
	}
	require.NoError(t, e.Commit())
	checkpoint(t, f, tr)
	committed, used := maps.Clone(m), f.Stats().Used

	e = tr.Edit()
	for i := range 10_000 {
		require.NoError(t, put(e, i+20_000))
	}
	e.Discard()
	require.Equal(t, used, f.Stats().Used)

	e = tr.Edit()
	var err error
	for i := 0; err == nil; i++ {
		if i == 5000 {
			p.write = fmt.Errorf("broken disk")
		}
		err = put(e, i+20_000)
	}
	require.ErrorIs(t, err, p.write)
	require.ErrorIs(t, e.Commit(), p.write)
	p.write = nil
	require.Equal(t, used, f.Stats().Used)
	requireSame(t, committed, tr.View(), nil, nil)
	checkpoint(t, f, tr)
}

// The cache does not exceed its limit during a full scan.
func TestCacheIsBounded(t *testing.T) {
	f, _ := newFile(t, 2048)
	const limit = 50_000
	tr := New(f, page.Extent{}, Options{CacheBytes: limit})
	e := tr.Edit()
	for i := range 20_000 {
		require.NoError(t, e.Put(fmt.Appendf(nil, "%08d", i*7919%20_000), []byte("0123456789")))
	}
	require.NoError(t, e.Commit())
	checkpoint(t, f, tr)
	it := tr.View().Scan(nil, nil)
	for it.Next() {
	}
	require.NoError(t, it.Err())
	require.LessOrEqual(t, tr.cache.bytes, int64(limit))
	require.Greater(t, tr.cache.bytes, int64(limit/2))
}
