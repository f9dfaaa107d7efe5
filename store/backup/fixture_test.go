// SPDX-License-Identifier: Apache-2.0

package backup_test

import (
	"context"
	"fmt"
	oldrand "math/rand"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// epoch returns the time of the first transaction. The time of each later transaction is one second after the
// previous one.
func epoch() time.Time { return time.Date(2026, 11, 21, 0, 45, 0, 0, time.UTC) }

// node is a store with a minimal committer, and a model of its expected content.
type node struct {
	t   *testing.T
	fs  vfs.FS
	dir string
	o   store.Options
	s   *store.Store
	rng *rand.Rand

	bodies  []string // bodies of queue 1, by sequence-1
	acked   map[uint64]bool
	history map[uint64]string // result of dump after each LSN
	raw     map[uint64][]byte // frames by LSN
	ends    map[uint64]lsn.Position
}

func openNode(t *testing.T, fsys vfs.FS, dir string, pageSize int) *node {
	t.Helper()
	n := &node{
		t: t, fs: fsys, dir: dir, rng: rand.New(rand.NewPCG(1, uint64(pageSize))), acked: map[uint64]bool{},
		history: map[uint64]string{}, raw: map[uint64][]byte{}, ends: map[uint64]lsn.Position{},
		o: store.Options{
			FS: fsys, Dir: dir, PageSize: pageSize, SegmentBytes: 64 << 10, LogKeepBytes: 1, BootID: "boot",
			MaxFrameBytes:      1 << 20,
			CheckpointInterval: time.Hour,
		},
	}
	n.open()
	t.Cleanup(func() { _ = n.s.Close() })
	return n
}

func (n *node) open() {
	n.t.Helper()
	s, err := store.Open(n.o)
	require.NoError(n.t, err)
	n.s = s
}

// commit commits one transaction.
func (n *node) commit(build func(b *txn.Builder)) {
	n.t.Helper()
	end := n.s.End()
	var b txn.Builder
	b.Begin(nil, epoch().Add(time.Duration(end.LSN)*time.Second).UnixMilli(), nil)
	build(&b)
	payload, err := b.Finish()
	require.NoError(n.t, err)
	frames, end := wal.AppendFrame(nil, end, 7, wal.KindTxn, payload)
	n.raw[end.LSN], n.ends[end.LSN] = slices.Clone(frames), end
	require.NoError(n.t, n.s.Append(frames, end))
	require.NoError(n.t, n.s.Sync())
	require.NoError(n.t, n.s.Apply(end.LSN, func(_ uint64, r *txn.Result) { require.NoError(n.t, r.Err()) }))
	n.history[end.LSN] = n.dump()
}

// step commits a random transaction.
func (n *node) step() {
	n.t.Helper()
	if n.s.End().LSN == 0 {
		n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
		return
	}
	if last := uint64(len(n.bodies)); last > 0 && n.rng.IntN(3) == 0 {
		first := 1 + n.rng.Uint64N(last)
		r := txn.Range{First: first, Last: min(last, first+n.rng.Uint64N(6))}
		for seq := r.First; seq <= r.Last; seq++ {
			n.acked[seq] = true
		}
		n.commit(func(b *txn.Builder) { b.Ack(1, 1, r) })
		return
	}
	n.commit(func(b *txn.Builder) {
		b.BeginPublish(1)
		for range 1 + n.rng.IntN(4) {
			size := 1 + n.rng.IntN(300)
			if n.rng.IntN(10) == 0 {
				size = n.rng.IntN(20_000)
			}
			body := make([]byte, size)
			for i := range body {
				body[i] = byte(n.rng.Uint32())
			}
			var a *txn.Attributes
			if n.rng.IntN(3) == 0 { // the backup must contain the schedule and the delayed messages
				a = &txn.Attributes{DeliverAtMS: 500 + n.rng.Int64N(1000), ExpiresAtMS: 1_000_000}
			}
			b.MessageWith(1_000, a, nil, body)
			n.bodies = append(n.bodies, short(body))
		}
		b.EndPublish()
	})
}

func (n *node) steps(count int) {
	n.t.Helper()
	for range count {
		n.step()
	}
}

func (n *node) checkpoint() {
	n.t.Helper()
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(n.t, err)
}

// dump returns the expected content according to the model.
func (n *node) dump() string {
	var b strings.Builder
	for i, body := range n.bodies {
		if seq := uint64(i + 1); !n.acked[seq] {
			fmt.Fprintf(&b, " %d=%s", seq, body)
		}
	}
	return b.String()
}

// dumpStore returns the content of a store in the format of dump.
func dumpStore(t *testing.T, s *store.Store) string {
	t.Helper()
	var b strings.Builder
	for from := uint64(1); ; {
		got, next, err := s.Read(context.Background(),
			store.ReadRequest{Queue: 1, Sub: 1, From: from, MaxMessages: 50, MaxBytes: 1 << 20, Delayed: true}, nil)
		require.NoError(t, err)
		if len(got) == 0 {
			return b.String()
		}
		for _, d := range got {
			msg, err := txn.DecodeMessage(d.Record)
			require.NoError(t, err)
			fmt.Fprintf(&b, " %d=%s", d.Sequence, short(msg.Body))
		}
		from = max(next, got[len(got)-1].Sequence+1)
	}
}

func short(b []byte) string {
	var sum uint64 = 14695981039346656037
	for _, c := range b {
		sum = (sum ^ uint64(c)) * 1099511628211
	}
	return fmt.Sprintf("%d:%08x", len(b), uint32(sum))
}

func (n *node) backup(path string) backup.Set {
	n.t.Helper()
	set, err := backup.Run(context.Background(), n.s, n.options(path))
	require.NoError(n.t, err)
	return set
}

// options returns options with a clock that advances with the transactions, so that backup names are deterministic.
func (n *node) options(path string) backup.Options {
	return backup.Options{FS: n.fs, Path: path, Software: "test 1", Now: func() time.Time {
		return epoch().Add(time.Duration(n.s.End().LSN) * time.Second)
	}}
}

// restored opens a restored directory, applies all records and returns the store.
func restored(t *testing.T, fsys vfs.FS, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Options{
		FS: fsys, Dir: dir, SegmentBytes: 64 << 10, BootID: "boot",
		MaxFrameBytes: 1 << 20,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	require.Equal(t, s.End().LSN, s.Committed(), "only committed records are restored")
	require.NoError(t, s.Apply(s.End().LSN, nil))
	var report checkpoint.Report
	require.NoError(t, s.ReadCheckpoint(t.Context(), store.ReadOptions{}, func(c *checkpoint.Checkpoint) (err error) {
		report, err = c.Check(t.Context(), nil)
		return err
	}))
	require.Empty(t, report.Problems)
	return s
}

// replayed returns the digest of a new store that applied the same records up to an LSN.
func (n *node) replayed(lsn uint64) checkpoint.Digest {
	n.t.Helper()
	o := n.o
	o.FS, o.Dir = memfs.New(), "/replay"
	s, err := store.Open(o)
	require.NoError(n.t, err)
	defer func() { require.NoError(n.t, s.Close()) }()
	for at := uint64(1); at <= lsn; at++ {
		f, _, err := wal.DecodeFrame(n.raw[at], s.End())
		require.NoError(n.t, err)
		require.NoError(n.t, s.Append(n.raw[at], f.Pos))
	}
	require.NoError(n.t, s.Sync())
	require.NoError(n.t, s.Apply(lsn, nil))
	return digest(n.t, s)
}

func digest(t *testing.T, s *store.Store) checkpoint.Digest {
	t.Helper()
	var d checkpoint.Digest
	require.NoError(t, s.ReadCheckpoint(t.Context(), store.ReadOptions{}, func(c *checkpoint.Checkpoint) (err error) {
		d, err = c.Digest(t.Context())
		return err
	}))
	return d
}

func mustList(t *testing.T, fsys vfs.FS, path string) (good, bad []backup.Set) {
	t.Helper()
	sets, err := backup.List(t.Context(), backup.Directory(fsys, path))
	require.NoError(t, err)
	for _, s := range sets {
		if s.Complete {
			good = append(good, s)
		} else {
			require.Error(t, s.Problem)
			bad = append(bad, s)
		}
	}
	return good, bad
}

func crashRand(seed int64) *oldrand.Rand { return oldrand.New(oldrand.NewSource(seed)) }

// changeFile replaces the content of a file with the result of change.
func changeFile(t *testing.T, fsys vfs.FS, name string, change func(b []byte) []byte) {
	t.Helper()
	b, err := vfs.ReadFile(fsys, name, 1<<30)
	require.NoError(t, err)
	require.NoError(t, vfs.WriteFileAtomic(fsys, name, change(b)))
}

func filesystems(t *testing.T) map[string]func() (vfs.FS, string) {
	return map[string]func() (vfs.FS, string){
		"mem": func() (vfs.FS, string) { return memfs.New(), "/" },
		"os":  func() (vfs.FS, string) { return vfs.OS(), t.TempDir() },
	}
}

func in(root string, parts ...string) string {
	return filepath.Join(append([]string{root}, parts...)...)
}

// appendOnly appends a record to the log without applying it.
func (n *node) appendOnly() {
	n.t.Helper()
	frames, end := wal.AppendFrame(nil, n.s.End(), 7, wal.KindTermStart, []byte("never committed"))
	require.NoError(n.t, n.s.Append(frames, end))
	require.NoError(n.t, n.s.Sync())
}
