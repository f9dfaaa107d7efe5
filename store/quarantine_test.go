// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

func overwrite(t *testing.T, fsys vfs.FS, name string, content []byte) {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_TRUNC|os.O_CREATE, 0o600)
	require.NoError(t, err)
	_, err = f.WriteAt(content, 0)
	require.NoError(t, err)
	require.NoError(t, errors.Join(f.Sync(), f.Close()))
}

func segmentNames(t *testing.T, fsys vfs.FS) (names []string) {
	t.Helper()
	all, err := fsys.ReadDir("/data/log")
	require.NoError(t, err)
	for _, name := range all {
		if strings.HasSuffix(name, ".seg") {
			names = append(names, "/data/log/"+name)
		}
	}
	slices.Sort(names)
	return names
}

// startDamage is a kind of corruption of the files that are needed for a start. identity is set if the store can no
// longer determine its identity.
type startDamage struct {
	name     string
	identity bool
	do       func(t *testing.T, fsys vfs.FS)
	message  []string // parts of the error if the store cannot be refilled from another node
}

func startDamages() []startDamage {
	pages := datadir.PageFile("/data")
	return []startDamage{
		{
			name: "page.db zeroed", message: []string{pages, "not a page file", "zeros"},
			do: func(t *testing.T, fsys vfs.FS) {
				t.Helper()
				info, err := fsys.Stat(pages)
				require.NoError(t, err)
				overwrite(t, fsys, pages, make([]byte, info.SizeBytes))
			},
		},
		{
			name: "page.db empty", message: []string{pages, "not a page file", "empty file"},
			do: func(t *testing.T, fsys vfs.FS) {
				t.Helper()
				overwrite(t, fsys, pages, nil)
			},
		},
		{
			name: "page.db with wrong magic bytes", message: []string{pages, "not a page file"},
			do: func(t *testing.T, fsys vfs.FS) {
				t.Helper()
				flip(t, fsys, pages, 3)
			},
		},
		{
			name: "page.db with a corrupt header", message: []string{pages, "file header checksum"},
			do: func(t *testing.T, fsys vfs.FS) {
				t.Helper()
				flip(t, fsys, pages, 13)
			},
		},
		{name: "page.db missing", message: []string{pages, "page.db is missing"}, do: func(t *testing.T, fsys vfs.FS) {
			t.Helper()
			require.NoError(t, fsys.Remove(pages))
		}},
		{
			name: "page.db and log missing", message: []string{pages, "page.db is missing"},
			do: func(t *testing.T, fsys vfs.FS) {
				t.Helper()
				require.NoError(t, fsys.Remove(pages))
				for _, name := range segmentNames(t, fsys) {
					require.NoError(t, fsys.Remove(name))
				}
			},
		},
		{name: "first segment missing", message: []string{"log does not continue"}, do: func(t *testing.T, fsys vfs.FS) {
			t.Helper()
			names := segmentNames(t, fsys)
			require.Greater(t, len(names), 1, names)
			for _, name := range names[:len(names)-1] {
				require.NoError(t, fsys.Remove(name))
			}
		}},
		{
			name: "identity flipped", identity: true, message: []string{"/data/identity", "checksum mismatch"},
			do: func(t *testing.T, fsys vfs.FS) {
				t.Helper()
				flip(t, fsys, "/data/identity", 30)
			},
		},
		{
			name: "identity empty", identity: true, message: []string{"/data/identity", "checksum mismatch"},
			do: func(t *testing.T, fsys vfs.FS) {
				t.Helper()
				overwrite(t, fsys, "/data/identity", nil)
			},
		},
		{
			name: "identity missing", identity: true, message: []string{"/data/identity does not exist"},
			do: func(t *testing.T, fsys vfs.FS) {
				t.Helper()
				require.NoError(t, fsys.Remove("/data/identity"))
			},
		},
	}
}

// longFilled returns a store that has removed the first segments of its log.
func longFilled(t *testing.T, fsys vfs.FS) (store.Options, *node) {
	t.Helper()
	o := options(fsys)
	o.LogKeepBytes, o.SegmentBytes = 1, 64<<10
	n, m := openNode(t, o), &model{}
	ops := rand.New(rand.NewPCG(11, 11))
	for i := range 160 {
		require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
		if i%20 == 0 {
			n.applyAll()
			_, err := n.s.Checkpoint(context.Background())
			require.NoError(t, err)
		}
	}
	n.applyAll()
	for range 60 {
		// These records fill another segment. No checkpoint contains them.
		require.NoError(t, n.appendTxn(m.step(t, ops, 9_000)))
	}
	require.Greater(t, n.s.FirstLSN(), uint64(1))
	return o, n
}

// If a file is missing or corrupt and the node belongs to a pair, Open quarantines the store, which is then refilled
// from the other node. Otherwise, Open changes nothing and returns an error with the file, the cause and a remedy.
func TestOpenWithCorruptFile(t *testing.T) {
	for _, h := range startDamages() {
		t.Run(h.name+", in a pair", func(t *testing.T) { quarantinedAndRefilled(t, h) })
		t.Run(h.name+", alone", func(t *testing.T) { refused(t, h) })
	}
}

func quarantinedAndRefilled(t *testing.T, h startDamage) {
	t.Helper()
	mem := memfs.New()
	o, n := longFilled(t, mem)
	o.ReplaceDamaged, o.ReplaceUnknown = true, true
	source, m := filled(t, options(memfs.New()))
	require.NoError(t, n.s.JoinPair(uuid.New()))
	require.NoError(t, n.s.SetFence(identity.Fence{Config: 4, Term: 2}))
	before := n.s.Identity()
	require.NoError(t, n.s.Close())
	h.do(t, mem)

	s, err := store.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	now := s.Identity()
	require.True(t, s.End().IsZero(), "new store is empty")
	require.True(t, now.MayHaveLost, "INV-6")
	require.NotEmpty(t, now.Quarantine)
	if h.identity {
		require.NotEqual(t, before.NodeID, now.NodeID, "INV-4: not in the record")
		require.NotEqual(t, before.StoreID, now.StoreID)
		require.Zero(t, now.PairID)
	} else {
		require.Equal(t, []any{before.NodeID, before.StoreID, before.PairID, before.Fence},
			[]any{now.NodeID, now.StoreID, now.PairID, now.Fence})
		require.Greater(t, now.Incarnation, before.Incarnation, "INV-4: no longer in the record")
	}
	_, err = mem.Stat("/data/" + now.Quarantine + "/log")
	require.NoError(t, err)

	require.NoError(t, receive(t, source.s, s).Commit())
	require.Equal(t, m.dump(), dumpStore(t, s))
	require.Empty(t, s.Identity().Quarantine, "refilled")
	kinds := map[string]string{}
	left, err := s.LeftBehind()
	require.NoError(t, err)
	for _, l := range left {
		kinds[l.Kind] = l.Path
	}
	require.Equal(t, map[string]string{
		datadir.LeftDamagedStore: "/data/" + now.Quarantine, datadir.LeftOldPageFile: "/data/page.db_old",
	}, kinds)
	require.NoError(t, s.Close())
	again, err := store.Open(o)
	require.NoError(t, err)
	require.Equal(t, m.dump(), dumpStore(t, again))
	require.NoError(t, again.Close())
}

func refused(t *testing.T, h startDamage) {
	t.Helper()
	mem := memfs.New()
	o, n := longFilled(t, mem)
	require.NoError(t, n.s.JoinPair(uuid.New())) // a node without a coordinator has a pair ID, too
	require.NoError(t, n.s.Close())
	h.do(t, mem)
	before := contents(t, mem, "/data")
	for range 2 {
		_, err := store.Open(o)
		require.Error(t, err)
		for _, word := range append(h.message, "lockstep store restore", "nothing was changed") {
			require.Contains(t, err.Error(), word)
		}
		require.NotContains(t, err.Error(), "mixed")
	}
	after := contents(t, mem, "/data")
	if !h.identity { // Open has written the start to the identity file
		delete(before, "identity")
		delete(after, "identity")
	}
	require.Equal(t, before, after)
}

// contents returns the files of a directory and their sizes.
func contents(t *testing.T, fsys vfs.FS, dir string) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	names, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	for _, name := range names {
		info, err := fsys.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		all[name] = info.SizeBytes
	}
	return all
}

// syncAll makes the current content of the directory durable.
func syncAll(t *testing.T, fsys vfs.FS) {
	t.Helper()
	for _, dir := range []string{"/data", "/data/log"} {
		for name := range contents(t, fsys, dir) {
			if name == "log" {
				continue
			}
			f, err := fsys.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
			require.NoError(t, err)
			require.NoError(t, errors.Join(f.Sync(), f.Close()))
		}
		require.NoError(t, fsys.SyncDir(dir))
	}
}

// After a crash before any step of a quarantine, Open completes the quarantine. The store is then empty, is marked
// as possibly having lost records, and has an identity that the cluster record does not contain.
func TestQuarantineIsAtomic(t *testing.T) {
	for _, h := range startDamages() {
		t.Run(h.name, func(t *testing.T) {
			mem := memfs.New()
			o, n := longFilled(t, mem)
			require.NoError(t, n.s.JoinPair(uuid.New()))
			before := n.s.Identity()
			require.NoError(t, n.s.Close())
			h.do(t, mem)
			syncAll(t, mem)
			var mu sync.Mutex
			var clones []*memfs.FS
			var ops []string
			rng := rand.New(rand.NewPCG(3, 9))
			fault := faultfs.New(mem)
			fault.SetHook(func(op faultfs.Op) error {
				mu.Lock()
				defer mu.Unlock()
				clones, ops = append(clones, mem.CrashClone(crashRand(rng))),
					append(ops, fmt.Sprintf("%s %s", op.Kind, op.Name))
				return nil
			})
			o.ReplaceDamaged, o.ReplaceUnknown, o.FS = true, true, fault
			s, err := store.Open(o)
			require.NoError(t, err)
			fault.SetHook(nil)
			require.NoError(t, s.Close())
			for i, clone := range clones {
				o.FS = clone
				s, err := store.Open(o)
				require.NoError(t, err, "crash before %s", ops[i])
				now := s.Identity()
				require.True(t, now.MayHaveLost, "crash before %s", ops[i])
				require.NotEmpty(t, now.Quarantine, "crash before %s", ops[i])
				require.True(t, now.NodeID != before.NodeID || now.Incarnation > before.Incarnation, "crash before %s",
					ops[i])
				require.True(t, s.End().IsZero(), "crash before %s", ops[i])
				require.NoError(t, s.Close())
			}
			require.Greater(t, len(clones), 20)
		})
	}
}
