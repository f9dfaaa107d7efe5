// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// written counts the bytes written and read and the log syncs of a store. The filesystem is in memory, so that the
// counts do not depend on the speed of a disk.
type written struct {
	mu                   sync.Mutex
	log, pages, logSyncs int64
	pagesRead            int64
	prepared             map[string]bool // files that the last write prepared as segments
}

// prepareBytes is larger than any log write of a test. Larger writes are zeros that prepare future segments in the
// background; their number depends on the disk, and reused segments are not prepared.
const prepareBytes = 256 << 10

func (w *written) fs(dir string) vfs.FS {
	fs := faultfs.New(memfs.New())
	w.prepared = make(map[string]bool)
	logDir := filepath.Join(dir, "log") + string(filepath.Separator)
	fs.SetHook(func(op faultfs.Op) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		isLog := strings.HasPrefix(op.Name, logDir)
		switch {
		case op.Kind == faultfs.OpWrite && op.Name == datadir.PageFile(dir):
			w.pages += op.Length
		case op.Kind == faultfs.OpRead && op.Name == datadir.PageFile(dir):
			w.pagesRead += op.Length
		case op.Kind == faultfs.OpWrite && isLog:
			if w.prepared[op.Name] = op.Length >= prepareBytes; !w.prepared[op.Name] {
				w.log += op.Length
			}
		case op.Kind == faultfs.OpSync && isLog && !w.prepared[op.Name]:
			w.logSyncs++
		}
		return nil
	})
	return fs
}

// total returns the bytes written to the log and to page.db, and the syncs of the log.
func (w *written) total() (log, pages, syncs float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return float64(w.log), float64(w.pages), float64(w.logSyncs)
}

// The bytes and syncs of transactions that are committed one by one, and of the following checkpoint, are limited.
func TestStoreWrites(t *testing.T) {
	for _, c := range []struct {
		name                 string
		sync                 wal.SyncMode
		size, batch, batches int
		consumed             bool
	}{
		{"sync=off, 100 of 512 B", wal.SyncOff, 512, 100, 300, false},
		{"sync=always, 100 of 512 B", wal.SyncAlways, 512, 100, 300, false},
		{"sync=always, 1 of 512 B", wal.SyncAlways, 512, 1, 1000, false},
		{"sync=always, 5 of 15000 B", wal.SyncAlways, 15000, 5, 300, false},
		{"sync=off, 100 of 512 B, consumed", wal.SyncOff, 512, 100, 300, true},
	} {
		// Simulated time does not advance, so no timed sync is counted.
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w written
				s := openStore(t, &w, c.sync)
				log, pages, syncs := w.total()
				body := make([]byte, c.size)
				for i := range c.batches {
					publishBatch(t, s, body, c.batch)
					synctest.Wait() // the next log segment is prepared in the background
					if c.consumed {
						first := uint64(i*c.batch) + 1
						commit(t, s, func(b *txn.Builder) {
							b.Ack(1, 1,
								txn.Range{First: first, Last: first + uint64(c.batch) - 1})
						})
					}
				}
				messages := float64(c.batch * c.batches)
				logAfter, _, syncsAfter := w.total()
				check(t, "log: bytes per message, "+c.name, (logAfter-log)/messages)
				check(t, "log: syncs per transaction, "+c.name, (syncsAfter-syncs)/float64(c.batches))
				_, err := s.Checkpoint(t.Context())
				require.NoError(t, err)
				_, pagesAfter, _ := w.total()
				check(t, "page.db: bytes per message, "+c.name, (pagesAfter-pages)/messages)
			})
		})
	}
}

// The allocations of a read are limited, for messages in memory and in pages.
func TestStoreReads(t *testing.T) {
	var w written
	s := openStore(t, &w, wal.SyncOff)
	body := make([]byte, 512)
	const messages, runs = 10_000, 20
	for range messages / 100 {
		publishBatch(t, s, body, 100)
	}
	read := func() {
		var batch []store.Delivery
		var err error
		for next, got := uint64(1), 0; got < messages; got += len(batch) {
			batch, next, err = s.Read(t.Context(), store.ReadRequest{
				Queue: 1, Sub: 1, From: next, MaxMessages: 1000,
				MaxBytes: 1 << 20,
			}, batch[:0])
			require.NoError(t, err)
			require.NotEmpty(t, batch)
		}
	}
	check(t, "read: allocations per message, in memory", testing.AllocsPerRun(runs, read)/messages)
	_, err := s.Checkpoint(t.Context())
	require.NoError(t, err)
	check(t, "read: allocations per message, in pages", testing.AllocsPerRun(runs, read)/messages)
}

// The page size does not change the bytes of the log. The bytes of pages that are written and read per message are
// limited. test/ratios measures the rates.
func TestPageSizeCosts(t *testing.T) {
	const messages = 30_000
	logged := map[string]float64{}
	for name, size := range map[string]int{"2 KiB": 2 << 10, "32 KiB": 32 << 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w written
				s := openStoreOf(t, &w, wal.SyncOff, size)
				before, pagesBefore, _ := w.total()
				for range messages / 100 {
					publishBatch(t, s, make([]byte, bodyBytes), 100)
					synctest.Wait() // the next log segment is prepared in the background
				}
				after, _, _ := w.total()
				logged[name] = after - before
				_, err := s.Checkpoint(t.Context())
				require.NoError(t, err)
				_, pagesAfter, _ := w.total()
				check(t, "page.db: bytes per message, pages of "+name, (pagesAfter-pagesBefore)/messages)
				w.mu.Lock()
				readBefore := w.pagesRead
				w.mu.Unlock()
				readAll(t, s, messages)
				w.mu.Lock()
				read := w.pagesRead - readBefore
				w.mu.Unlock()
				check(t, "page.db: bytes read per message, pages of "+name, float64(read)/messages)
			})
		})
	}
	require.Equal(t, logged["2 KiB"], logged["32 KiB"]) //nolint:testifylint // whole numbers
}

// The number of subscriptions changes neither the logged bytes nor the syncs of a publish. The allocations of a
// publish are limited. test/ratios measures the rates.
func TestPublishCostWithManySubscriptions(t *testing.T) {
	type cost struct{ log, pages, syncs float64 }
	costs := map[int]cost{}
	for _, subscriptions := range []int{1, 100} {
		t.Run(fmt.Sprint(subscriptions), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w written
				s := openStore(t, &w, wal.SyncAlways)
				for i := range subscriptions - 1 {
					commit(t, s, func(b *txn.Builder) { b.CreateSubscription(1, fmt.Sprint("s", i), txn.StartLatest) })
				}
				_, err := s.Checkpoint(t.Context())
				require.NoError(t, err)
				log, pages, syncs := w.total()
				const batches, batch = 100, 100
				start := mallocs()
				for range batches {
					publishBatch(t, s, make([]byte, bodyBytes), batch)
					synctest.Wait() // the next log segment is prepared in the background
				}
				allocated := mallocs() - start
				logAfter, _, syncsAfter := w.total()
				_, err = s.Checkpoint(t.Context())
				require.NoError(t, err)
				_, pagesAfter, _ := w.total()
				costs[subscriptions] = cost{logAfter - log, pagesAfter - pages, syncsAfter - syncs}
				check(t, fmt.Sprintf("store: allocations per message, subscriptions: %d", subscriptions),
					float64(allocated)/(batches*batch))
			})
		})
	}
	one, many := costs[1], costs[100]
	require.InDelta(t, one.pages, many.pages, 2*store.DefaultPageSize, "the subscriptions are stored in pages")
	many.pages = one.pages
	require.Equal(t, one, many)
}

// readAll reads all messages of a subscription.
func readAll(t *testing.T, s *store.Store, messages int) {
	t.Helper()
	for next, got := uint64(1), 0; got < messages; {
		var batch []store.Delivery
		var err error
		batch, next, err = s.Read(t.Context(), store.ReadRequest{
			Queue: 1, Sub: 1, From: next, MaxMessages: 1000, MaxBytes: 1 << 20,
		}, nil)
		require.NoError(t, err)
		require.NotEmpty(t, batch)
		got += len(batch)
	}
}

// openStore opens a store with one queue and without timers.
func openStore(t *testing.T, w *written, mode wal.SyncMode) *store.Store {
	t.Helper()
	return openStoreOf(t, w, mode, 0)
}

// openStoreOf is like openStore, but with pages of pageSize bytes; 0 means the default.
func openStoreOf(t *testing.T, w *written, mode wal.SyncMode, pageSize int) *store.Store {
	t.Helper()
	const dir = "/data"
	s, err := store.Open(store.Options{
		FS: w.fs(dir), Dir: dir, Sync: mode, CheckpointInterval: time.Hour, PageSize: pageSize,
		BootID: "guard",
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	commit(t, s, func(b *txn.Builder) { b.CreateQueue(queue, txn.Config{}, "default") })
	return s
}

func publishBatch(t *testing.T, s *store.Store, body []byte, messages int) {
	t.Helper()
	commit(t, s, func(b *txn.Builder) {
		b.BeginPublish(1)
		for range messages {
			b.Message(1, nil, body)
		}
		b.EndPublish()
	})
}

func commit(t *testing.T, s *store.Store, fill func(*txn.Builder)) {
	t.Helper()
	var b txn.Builder
	b.Begin(wal.BeginFrame(nil), 1, nil)
	fill(&b)
	frames, err := b.Finish()
	require.NoError(t, err)
	frames, end := wal.EndFrame(frames, 0, s.End(), 1, wal.KindTxn)
	require.NoError(t, s.Append(frames, end))
	require.NoError(t, s.Sync())
	require.NoError(t, s.Apply(end.LSN, func(_ uint64, r *txn.Result) { require.NoError(t, r.Err()) }))
}
