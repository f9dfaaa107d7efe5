// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// The stores in testdata/packed were written by the first program that packs small messages into 4 KiB extents
// regardless of the page size (docs/decisions/0023). They represent that format until a release uses it, and never
// change. If they are missing, this command writes them:
//
//	go test ./test/format -run TestPacked$ -packed
var packedFlag = flag.Bool("packed", false, "write the stores of TestPacked, if missing")

// packedDir is the directory of the packed stores, below testdata.
const packedDir = "packed"

// packedSizes returns the page sizes of the packed stores. An extent of 4 KiB has two pages of the smallest size, or
// one page of 4 KiB.
func packedSizes() []int { return []int{2 << 10, 4 << 10} }

// packedExtentBytes is the maximum length of an extent with several messages, as in FORMAT.md.
const packedExtentBytes = 4 << 10

// Queues of the packed stores.
const (
	smallQueue = 1 // messages of 512 bytes
	mixedQueue = 2 // messages of 0 to 2.5 KB
)

// packedQueue is the expected content of a queue: all messages up to the last one, some of them acknowledged.
type packedQueue struct {
	id, last uint64
	size     func(sequence uint64) int
	acked    func(sequence uint64) bool
}

func packedQueues() []packedQueue {
	return []packedQueue{
		{
			smallQueue, 103, func(uint64) int { return 512 },
			func(n uint64) bool { return n <= 3 || n == 9 || n >= 20 && n <= 31 || n == 60 },
		},
		{mixedQueue, 40, func(n uint64) int { return int(n * n * 37 % 2500) }, func(uint64) bool { return false }},
	}
}

// packedBody returns a unique message body.
func packedBody(queue, sequence uint64, size int) []byte {
	text := fmt.Sprintf("message %d of queue %d, ", sequence, queue)
	return bytes.Repeat([]byte(text), size/len(text)+1)[:size]
}

func packedPath(pageSize int) string { return fmt.Sprintf("/pages-of-%d", pageSize) }

// The current program, and a reader that follows FORMAT.md, find all messages in the packed stores.
func TestPacked(t *testing.T) {
	files := filepath.Join(testdata, packedDir, filesArchive)
	if *packedFlag {
		require.NoFileExists(t, files, "these stores never change")
		mem := memfs.New()
		for _, size := range packedSizes() {
			writePacked(t, mem, size)
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(files), 0o755))
		require.NoError(t, os.WriteFile(files, pack(t, mem), 0o644))
		writeDumps(t, packedDir, map[string]string{dumpContent: packedContent(t, mem)})
	}
	fsys := unpack(t, files)
	requireDumps(t, packedDir, map[string]string{dumpContent: packedContent(t, fsys)})
	for _, size := range packedSizes() {
		extents, err := checkPacked(t, fsys, size)
		require.NoError(t, err)
		shared := 0
		for _, r := range extents {
			if r.Pages > 1 {
				shared++
			}
		}
		require.Equal(t, size < packedExtentBytes, shared >= 10, "%d extents of several pages of %d bytes", shared, size)
		s := openStore(t, copyFiles(t, fsys), packedPath(size))
		for _, q := range packedQueues() {
			require.NoError(t, readPacked(t, s, q))
		}
		require.NoError(t, s.Close())
	}
}

// A store written by the current program passes the same checks as the packed stores.
func TestPackedByCurrentProgram(t *testing.T) {
	for _, size := range packedSizes() {
		mem := memfs.New()
		writePacked(t, mem, size)
		extents, err := checkPacked(t, mem, size)
		require.NoError(t, err)
		require.NotEmpty(t, extents)
	}
}

// An incorrect byte in any page of an extent with several pages is detected, by a reader and by the check.
func TestPackedCorruption(t *testing.T) {
	fsys := unpack(t, filepath.Join(testdata, packedDir, filesArchive))
	for _, size := range packedSizes() {
		extents, err := checkPacked(t, fsys, size)
		require.NoError(t, err)
		ext := extents[len(extents)/2]
		for at := range ext.Pages {
			mem := copyFiles(t, fsys)
			raw := read(t, mem, packedPath(size)+"/page.db")
			raw[page.OffsetOf(ext.First+page.No(at), size)+40] ^= 0x20 // changes the case of a letter
			write(t, mem, packedPath(size)+"/page.db", raw)
			_, err := checkPacked(t, mem, size)
			require.Error(t, err, "page %d of %s, of %d bytes", at, ext, size)
			s := openStore(t, mem, packedPath(size))
			var problems []error
			for _, q := range packedQueues() {
				problems = append(problems, readPacked(t, s, q))
			}
			require.Error(t, errors.Join(problems...), "page %d of %s, of %d bytes", at, ext, size)
			require.NoError(t, s.ReadCheckpoint(t.Context(), store.ReadOptions{}, func(c *checkpoint.Checkpoint) error {
				report, err := c.Check(t.Context(), nil)
				require.NoError(t, err)
				require.NotEmpty(t, report.Problems)
				return nil
			}))
			require.NoError(t, s.Close())
		}
	}
}

// writePacked writes a store: three checkpoints, the last one on close, and acknowledgements in between.
func writePacked(t *testing.T, mem *memfs.FS, pageSize int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		uuid.SetRand(rand.NewChaCha8([32]byte{2}))
		defer uuid.SetRand(nil)
		w := openWriter(t, mem, packedPath(pageSize), pageSize)
		w.beginTerm(1)
		for _, name := range []string{"small", "mixed"} {
			w.commit(nil, func(b *txn.Builder) { b.CreateQueue(name, txn.Config{}, "default") })
		}
		upTo := func(q packedQueue, first, last uint64) {
			var bodies []string
			for n := first; n <= last; n++ {
				bodies = append(bodies, string(packedBody(q.id, n, q.size(n))))
			}
			w.commit(nil, publish(q.id, bodies...))
		}
		small, mixed := packedQueues()[0], packedQueues()[1]
		upTo(small, 1, 60)
		upTo(mixed, 1, mixed.last)
		_, err := w.s.Checkpoint(t.Context())
		require.NoError(t, err)
		for n := range small.last {
			if n > 0 && small.acked(n) {
				w.commit(nil, func(b *txn.Builder) { b.Ack(small.id, 1, txn.Range{First: n, Last: n}) })
			}
		}
		upTo(small, 61, 100)
		_, err = w.s.Checkpoint(t.Context())
		require.NoError(t, err)
		upTo(small, 101, small.last)
		require.NoError(t, w.s.Close())
	})
}

// checkPacked reads the message extents as FORMAT.md describes, and compares each message in them with the published
// message. It returns the extents of KindPacked.
func checkPacked(t *testing.T, fsys vfs.FS, pageSize int) (packed []page.Extent, err error) {
	t.Helper()
	d := &dumper{t: t, fsys: fsys, seen: map[string]bool{}}
	f := openPages(d, read(t, fsys, packedPath(pageSize)+"/page.db"))
	found := map[[2]uint64]bool{}
	for _, r := range f.extents() {
		raw := f.raw[page.OffsetOf(r.First, pageSize):page.OffsetOf(r.End(), pageSize)]
		kind, payload, err := page.DecodeExtent(raw, pageSize, r)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", r, err)
		case kind == page.KindPacked:
			packed = append(packed, r)
			if len(raw) > packedExtentBytes {
				return nil, fmt.Errorf("%s of pages of %d bytes is longer than %d", r, pageSize, packedExtentBytes)
			}
		case kind != page.KindLarge:
			continue
		}
		for _, m := range storedMessages(payload) {
			found[[2]uint64{le64(payload), m.sequence}] = true
			if err := comparePacked(le64(payload), m.sequence, m.record); err != nil {
				return nil, fmt.Errorf("%s: %w", r, err)
			}
		}
	}
	for _, q := range packedQueues() {
		for n := uint64(1); n <= q.last; n++ {
			if !q.acked(n) && !found[[2]uint64{q.id, n}] {
				return nil, fmt.Errorf("queue %d, sequence %d is in no extent", q.id, n)
			}
		}
	}
	return packed, nil
}

// comparePacked compares a record with the published message.
func comparePacked(queue, sequence uint64, record []byte) error {
	m, err := txn.DecodeMessage(record)
	if err != nil {
		return fmt.Errorf("queue %d, sequence %d: %w", queue, sequence, err)
	}
	for _, q := range packedQueues() {
		if q.id == queue && bytes.Equal(m.Body, packedBody(queue, sequence, q.size(sequence))) {
			return nil
		}
	}
	return fmt.Errorf("queue %d, sequence %d: unexpected body %s", queue, sequence, text(m.Body))
}

// readPacked reads a queue as a consumer does: all unacknowledged messages in order.
func readPacked(t *testing.T, s *store.Store, q packedQueue) error {
	t.Helper()
	got, _, err := s.Read(t.Context(), store.ReadRequest{
		Queue: q.id, Sub: 1, From: 1, MaxMessages: 1000, MaxBytes: 1 << 20,
	}, nil)
	if err != nil {
		return err
	}
	for n := uint64(1); n <= q.last; n++ {
		if q.acked(n) {
			continue
		}
		if len(got) == 0 || got[0].Sequence != n {
			return fmt.Errorf("queue %d: sequence %d is missing", q.id, n)
		}
		if err := comparePacked(q.id, n, got[0].Record); err != nil {
			return err
		}
		got = got[1:]
	}
	if len(got) > 0 {
		return fmt.Errorf("queue %d: %d unexpected messages", q.id, len(got))
	}
	return nil
}

// packedContent returns the extents of the packed stores, and the contents that the program reads from them.
func packedContent(t *testing.T, fsys vfs.FS) string {
	t.Helper()
	d := &dumper{t: t, fsys: fsys, seen: map[string]bool{}}
	for _, size := range packedSizes() {
		d.line(0, "pages of %d bytes", size)
		f := openPages(d, read(t, fsys, packedPath(size)+"/page.db"))
		for _, r := range f.extents() {
			kind, payload := f.read(r)
			if kind == page.KindPacked || kind == page.KindLarge {
				d.line(1, "%s (%s): queue %d, first sequence %d, %d messages", r, kind, le64(payload), le64(payload[8:]),
					le32(payload[16:]))
			}
		}
		s := openStore(t, copyFiles(t, fsys), packedPath(size))
		d.store(s)
		require.NoError(t, s.Close())
	}
	return d.out.String()
}
