// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

const testDir = "data/log"

// testOptions returns options for a small log that writes seals only on Close.
func testOptions(fsys vfs.FS) Options {
	return Options{FS: fsys, Dir: testDir, LogID: [16]byte{1, 2, 3}, SegmentBytes: 16 << 10, SealAfter: -1}
}

func newMem(t testing.TB) *memfs.FS {
	t.Helper()
	mem := memfs.New()
	require.NoError(t, mem.MkdirAll("data", 0o700))
	require.NoError(t, mem.SyncDir("."))
	return mem
}

func mustOpen(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func (l *Log) syncedLSN() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.synced.LSN
}

// payload returns a payload that differs for each record.
func payload(term, record uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewSource(int64(term*1_000_003 + record)))
	_, _ = r.Read(b)
	return b
}

// batch returns n frames after pos, each with a payload of size bytes.
func batch(pos lsn.Position, term uint64, n, size int) ([]byte, lsn.Position) {
	var frames []byte
	for range n {
		frames, pos = AppendFrame(frames, pos, term, KindTxn, payload(term, pos.LSN+1, size))
	}
	return frames, pos
}

// mustAppend appends n records in one block.
func mustAppend(t testing.TB, l *Log, term uint64, n, size int) lsn.Position {
	t.Helper()
	frames, end := batch(l.End(), term, n, size)
	require.NoError(t, l.Append(frames, end))
	require.Equal(t, end, l.End())
	return end
}

// requireRecords reads all records of the log and compares their payloads with the output of payload.
func requireRecords(t testing.TB, l *Log, size int) {
	t.Helper()
	first := l.First()
	if first == 0 {
		return
	}
	r, err := l.ReadFrom(first)
	require.NoError(t, err)
	for record := first; record <= l.End().LSN; record++ {
		f, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, record, f.Pos.LSN)
		require.Equal(t, payload(f.Pos.Term, record, size), f.Payload)
	}
}

// copyFS copies the files of a directory to a new filesystem, and syncs them.
func copyFS(t testing.TB, from vfs.FS, dir string) *memfs.FS {
	t.Helper()
	to := newMem(t)
	require.NoError(t, to.MkdirAll(dir, 0o700))
	require.NoError(t, to.SyncDir("data"))
	names, err := from.ReadDir(dir)
	require.NoError(t, err)
	for _, name := range names {
		data, err := vfs.ReadFile(from, filepath.Join(dir, name), 1<<30)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a segment that is prepared in the background was renamed
		}
		require.NoError(t, err)
		require.NoError(t, vfs.WriteFileAtomic(to, filepath.Join(dir, name), data))
	}
	return to
}

// overwrite changes bytes of a file and syncs it.
func overwrite(t testing.TB, fsys vfs.FS, path string, offset int64, data []byte) {
	t.Helper()
	f, err := fsys.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(data, offset)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

func flip(t testing.TB, fsys vfs.FS, path string, offset int64, bit uint) {
	t.Helper()
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	require.NoError(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], offset)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	overwrite(t, fsys, path, offset, []byte{b[0] ^ 1<<bit})
}

func segmentPath(first uint64) string { return filepath.Join(testDir, segmentName(first)) }

func listSegments(t testing.TB, fsys vfs.FS) []uint64 {
	t.Helper()
	names, err := fsys.ReadDir(testDir)
	require.NoError(t, err)
	var firsts []uint64
	for _, name := range names {
		if first, ok := parseName(name, segmentSuffix); ok {
			firsts = append(firsts, first)
		}
	}
	return firsts
}

func describe(p lsn.Position) string { return fmt.Sprintf("%d/%d", p.Term, p.LSN) }
