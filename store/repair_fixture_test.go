// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/repair"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

var errUnavailable = errors.New("other node unavailable")

// other is the other node of the pair. It implements repair.Source.
type other struct {
	s           *store.Store
	unavailable atomic.Bool
	requests    atomic.Int64
}

func (o *other) FetchMessages(
	ctx context.Context, queue, first, last uint64, applied lsn.Position,
) (repair.FoundMessages, error) {
	o.requests.Add(1)
	if o.unavailable.Load() {
		return repair.FoundMessages{}, errUnavailable
	}
	if have, ok := o.s.PositionOf(applied.LSN); !ok || have != applied {
		return repair.FoundMessages{}, fmt.Errorf("other history: %v", applied)
	}
	return o.s.CopyMessages(ctx, queue, first, last)
}

// flip inverts one bit of a file. A second call restores the bit.
func flip(t *testing.T, fs vfs.FS, name string, at int64) {
	t.Helper()
	f, err := fs.OpenFile(name, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{b[0] ^ 0x10}, at)
	require.NoError(t, err)
}

// kindAt returns the kind of the extent that begins at a page, or "".
func kindAt(t *testing.T, fs vfs.FS, no page.No) string {
	t.Helper()
	f, err := fs.OpenFile(datadir.PageFile("/data"), os.O_RDONLY, 0)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var b [page.ExtentHeaderBytes]byte
	_, err = f.ReadAt(b[:], page.OffsetOf(no, 2048))
	require.NoError(t, err)
	h, err := page.PeekExtent(b[:])
	if err != nil || h.Extent.First != no {
		return ""
	}
	return h.Kind.String()
}

// pairOf returns two nodes with the same content and different page sizes. The second node is the message source of the
// first.
func pairOf(t *testing.T) (n *node, mem vfs.FS, peer *other, m *model) {
	t.Helper()
	mem = memfs.New()
	n, m = filled(t, options(mem))
	o := options(memfs.New())
	o.PageSize = 8192
	remote, _ := filled(t, o)
	peer = &other{s: remote.s}
	n.s.Repair().SetSource(peer)
	return n, mem, peer, m
}

// damageMessages flips a bit of each extent of messages and returns the number of extents.
func damageMessages(t *testing.T, s *store.Store, fs vfs.FS) int {
	t.Helper()
	stats, err := s.Stats()
	require.NoError(t, err)
	found := 0
	for no := page.No(1); uint64(no) <= stats.Pages; no++ {
		if kind := kindAt(t, fs, no); kind == "packed" || kind == "large" {
			flip(t, fs, datadir.PageFile("/data"), page.OffsetOf(no, 2048)+60)
			found++
		}
	}
	return found
}

// small returns a node with one queue of messages that share pages.
func small(t *testing.T, o store.Options) *node {
	t.Helper()
	n := openNode(t, o)
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	for i := range 40 {
		n.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			b.Message(1, nil, []byte(fmt.Sprintf("%0500d", i)))
			b.EndPublish()
		})
	}
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(t, err)
	return n
}

// pageWith returns the page that contains a text.
func pageWith(t *testing.T, fs vfs.FS, pageSize int, text string) page.No {
	t.Helper()
	f, err := fs.OpenFile(datadir.PageFile("/data"), os.O_RDONLY, 0)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	size, err := f.SizeBytes()
	require.NoError(t, err)
	raw := make([]byte, size)
	_, err = f.ReadAt(raw, 0)
	require.NoError(t, err)
	at := strings.Index(string(raw), text)
	require.Positive(t, at)
	return page.NoAt(int64(at), pageSize)
}

// readMarked reads a queue in small pieces and returns the readable and the corrupt sequences.
func readMarked(t *testing.T, s *store.Store) (got, damaged []uint64) {
	t.Helper()
	for from := uint64(1); ; {
		batch, next, err := s.Read(context.Background(),
			store.ReadRequest{Queue: 1, Sub: 1, From: from, MaxMessages: 7, IncludeCorrupt: true}, nil)
		require.NoError(t, err)
		for _, d := range batch {
			if d.Record == nil {
				damaged = append(damaged, d.Sequence)
			} else {
				got = append(got, d.Sequence)
			}
		}
		if next == from {
			return got, damaged
		}
		from = next
	}
}

// firstMessages returns the first page of an extent of messages that the checkpoint uses.
func firstMessages(t *testing.T, s *store.Store, fs vfs.FS) page.No {
	t.Helper()
	_, err := s.Checkpoint(context.Background())
	require.NoError(t, err)
	before := s.Repair().Status().FoundPages
	stats, err := s.Stats()
	require.NoError(t, err)
	for no := page.No(1); uint64(no) <= stats.Pages; no++ {
		if kind := kindAt(t, fs, no); kind != "packed" && kind != "large" {
			continue
		}
		flip(t, fs, datadir.PageFile("/data"), page.OffsetOf(no, 2048)+60)
		report, err := checkStore(context.Background(), s, nil)
		require.NoError(t, err)
		flip(t, fs, datadir.PageFile("/data"), page.OffsetOf(no, 2048)+60)
		if len(report.Problems) > 0 {
			require.Equal(t, before, s.Repair().Status().FoundPages)
			return no
		}
	}
	t.Fatal("no page of messages")
	return 0
}

// repairAll repairs all known corruption.
func repairAll(s *store.Store) error {
	left, err := s.Repair().RepairAll(context.Background())
	if err == nil && left > 0 {
		err = fmt.Errorf("%d messages are left", left)
	}
	return err
}

func mustDigest(t *testing.T, s *store.Store) checkpoint.Digest {
	t.Helper()
	d, err := digestOf(context.Background(), s)
	require.NoError(t, err)
	return d
}
