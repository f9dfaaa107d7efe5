// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// coldFS is a filesystem that reports page.db as not cached.
type coldFS struct {
	vfs.FS

	ahead atomic.Int64 // bytes read with direct I/O
	spoil atomic.Pointer[func(p []byte) error]
}

func (c *coldFS) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := c.FS.OpenFile(name, flag, perm)
	if err != nil || !strings.HasSuffix(name, "page.db") {
		return f, err
	}
	return coldFile{File: f, fs: c}, nil
}

type coldFile struct {
	vfs.File

	fs *coldFS
}

func (coldFile) WriteBehind(_, _ int64)                            {}
func (coldFile) DropCache(_, _ int64)                              {}
func (c coldFile) ReadExactly(p []byte, offset int64) (int, error) { return c.ReadAt(p, offset) }

// WriteUncached implements vfs.Cached.
func (c coldFile) WriteUncached(p []byte, offset int64) (int, error) { return c.WriteAt(p, offset) }

// CachedBytes implements vfs.Cached.
func (coldFile) CachedBytes(_, _ int64) (int64, bool) {
	return 0, true
}

// ReadUncached implements vfs.Cached.
func (c coldFile) ReadUncached(p []byte, offset int64) (int, error) {
	c.fs.ahead.Add(int64(len(p)))
	n, err := c.ReadAt(p, offset)
	if spoil := c.fs.spoil.Load(); spoil != nil {
		if err := (*spoil)(p[:n]); err != nil {
			return 0, err
		}
	}
	return n, err
}

// behind is a store with one queue that a lagging consumer reads.
type behind struct {
	*node

	fs   *coldFS
	last uint64 // last published sequence
}

const behindBody = 5000

func openBehind(t *testing.T) *behind {
	t.Helper()
	cold := &coldFS{FS: memfs.New()}
	o := options(cold)
	o.MemoryBudget = 64 << 20 // memory for 4 read-ahead pieces
	b := &behind{node: openNode(t, o), fs: cold}
	b.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "s") })
	return b
}

func (b *behind) text(seq uint64) string { return fmt.Sprintf("%d-%0*d", seq, behindBody, seq) }

// publish adds messages and writes them to pages.
func (b *behind) publish(count int) {
	b.t.Helper()
	for done := 0; done < count; done += 100 {
		b.commit(func(tx *txn.Builder) {
			tx.BeginPublish(1)
			for range 100 {
				b.last++
				tx.Message(1, nil, []byte(b.text(b.last)))
			}
			tx.EndPublish()
		})
	}
	_, err := b.s.Checkpoint(b.t.Context())
	require.NoError(b.t, err)
}

// read reads the messages in the given range of sequences, at most the given number per call, and verifies each
// message.
func (b *behind) read(from, upTo uint64, most int) {
	b.t.Helper()
	var buffer store.ReadBuffer
	for from <= upTo {
		got, next, err := b.s.Read(b.t.Context(), store.ReadRequest{
			Queue: 1, Sub: 1, From: from, MaxMessages: most, MaxBytes: 300_000, Buffer: &buffer,
		}, nil)
		require.NoError(b.t, err)
		require.NotEmpty(b.t, got)
		for _, d := range got {
			m, err := txn.DecodeMessage(d.Record)
			require.NoError(b.t, err)
			require.Equal(b.t, b.text(d.Sequence), string(m.Body))
			require.Equal(b.t, from, d.Sequence)
			from++
		}
		require.Equal(b.t, from, next)
	}
}

// Reads of a lagging consumer use read-ahead, which reads most data only once.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	b := openBehind(t)
	const count = 2000
	b.publish(count)
	b.read(1, count, 1000)
	require.Greater(t, b.fs.ahead.Load(), int64(count*behindBody))
	require.Less(t, b.fs.ahead.Load(), int64(count*behindBody*13/10))
	b.check()
}

// Nothing is read ahead for a reader that requests one message at a time.
func TestReadAheadNeedsSeveralMessages(t *testing.T) {
	t.Parallel()
	b := openBehind(t)
	b.publish(100)
	b.read(1, 100, 1)
	require.Zero(t, b.fs.ahead.Load())
}

// Reads of pages that were freed and rewritten after the read-ahead return the new content.
func TestReadAheadOfReusedPages(t *testing.T) {
	t.Parallel()
	b := openBehind(t)
	b.publish(600)
	b.read(1, 100, 100) // reads the following pieces ahead
	for range 3 {
		before := b.last
		b.commit(func(tx *txn.Builder) { tx.Purge(1, 0) })
		for range 3 { // checkpoints, until the pages are free
			b.commit(func(tx *txn.Builder) { tx.PutMeta("x", nil) })
			_, err := b.s.Checkpoint(t.Context())
			require.NoError(t, err)
		}
		b.publish(600)
		b.read(before+1, b.last, 1000)
	}
	require.Empty(t, b.s.Repair().Damaged(10))
	b.check()
}

// After an error or a wrong checksum in read-ahead, the store reads the page file again and reports no corruption.
func TestReadAheadFails(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(p []byte) error{
		"an error":      func([]byte) error { return syscall.EIO },
		"other content": func(p []byte) error { clear(p); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBehind(t)
			b.publish(1000)
			b.fs.spoil.Store(&spoil)
			b.read(1, b.last, 1000)
			require.Positive(t, b.fs.ahead.Load())
			b.fs.spoil.Store(nil)
			b.check()
		})
	}
}

// Alternating reads of many queues, which share the memory for read-ahead, return the messages of each queue.
func TestReadAheadOfManyQueues(t *testing.T) {
	t.Parallel()
	b := openBehind(t)
	const queues, each = 20, 200
	for i := range queues {
		b.commit(func(tx *txn.Builder) { tx.CreateQueue(fmt.Sprint("many-", i), txn.Config{}, "s") })
	}
	for range each / 100 {
		for i := range uint64(queues) {
			b.commit(func(tx *txn.Builder) {
				tx.BeginPublish(i + 2)
				for range 100 {
					tx.Message(1, nil, []byte(b.text(i)))
				}
				tx.EndPublish()
			})
		}
	}
	_, err := b.s.Checkpoint(t.Context())
	require.NoError(t, err)
	next := make([]uint64, queues)
	for read := 0; read < queues*each; {
		for i := range next {
			got, n, err := b.s.Read(t.Context(), store.ReadRequest{
				Queue: uint64(i) + 2, Sub: 1, From: next[i],
				MaxMessages: 60,
			}, nil)
			require.NoError(t, err)
			for _, d := range got {
				m, err := txn.DecodeMessage(d.Record)
				require.NoError(t, err)
				require.Equal(t, b.text(uint64(i)), string(m.Body))
			}
			next[i], read = n, read+len(got)
		}
	}
}
