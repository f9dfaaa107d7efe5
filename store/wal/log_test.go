// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"io"
	"math/rand"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// onBoth runs a test on an in-memory filesystem and on the operating system's filesystem.
func onBoth(t *testing.T, test func(t *testing.T, o Options)) {
	t.Helper()
	t.Run("mem", func(t *testing.T) { test(t, testOptions(newMem(t))) })
	t.Run("os", func(t *testing.T) {
		o := testOptions(vfs.OS())
		o.Dir = t.TempDir() + "/log"
		test(t, o)
	})
}

// elapse advances the clock of a synctest bubble.
func elapse(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock of the bubble
}

// Appended records become durable with Sync, and are complete after the log is reopened.
func TestAppendSyncReopen(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		l := mustOpen(t, o)
		require.Equal(t, lsn.Position{}, l.End())
		require.Zero(t, l.First())
		require.Zero(t, l.Bytes())
		require.Empty(t, l.TermEnds())
		var end lsn.Position
		for i := range 100 {
			end = mustAppend(t, l, uint64(1+i/40), 1+i%5, 300)
			require.NotEqual(t, end, l.Durable())
			require.NoError(t, l.Sync())
			require.Equal(t, end, l.Durable())
			require.Equal(t, end.LSN, l.syncedLSN())
		}
		ends := l.TermEnds()
		require.Len(t, ends, 3)
		require.Equal(t, end, ends[0])
		require.Greater(t, l.counters.rolls.Load(), uint64(3))
		require.Greater(t, l.Bytes(), int64(300*300))
		requireRecords(t, l, 300)
		require.NoError(t, l.Close())
		require.ErrorIs(t, l.Close(), ErrClosed)

		l = mustOpen(t, o)
		require.Equal(t, end, l.End())
		require.Equal(t, end, l.Durable())
		require.Equal(t, ends, l.TermEnds())
		require.EqualValues(t, 1, l.First())
		require.False(t, l.recovery.torn)
		require.Equal(t, end.LSN, l.recovery.records)
		mustAppend(t, l, 3, 4, 300)
		requireRecords(t, l, 300)
	})
}

// An empty log begins at Options.Start. Open ignores the option for other logs.
func TestStartOfEmptyLog(t *testing.T) {
	o := testOptions(newMem(t))
	o.Start = lsn.Position{Term: 7, LSN: 1000, Chain: 0xabc}
	l := mustOpen(t, o)
	require.Equal(t, o.Start, l.End())
	require.Equal(t, o.Start, l.Durable())
	require.Zero(t, l.First())
	require.Equal(t, []lsn.Position{o.Start}, l.TermEnds())
	pos, ok := l.PositionOf(1000)
	require.True(t, ok)
	require.Equal(t, o.Start, pos)
	end := mustAppend(t, l, 8, 3, 10)
	require.Equal(t, uint64(1003), end.LSN)
	require.Equal(t, []lsn.Position{end, o.Start}, l.TermEnds())
	require.NoError(t, l.Close())

	o.Start = lsn.Position{Term: 1, LSN: 1}
	l = mustOpen(t, o)
	require.Equal(t, end, l.End(), "Start is for an empty log")
	require.EqualValues(t, 1001, l.First())
	require.Len(t, l.TermEnds(), 2)
}

// Append rejects frames that do not continue the log or are too large, and does not change the log.
func TestAppendRejectsInvalidFrames(t *testing.T) {
	o := testOptions(newMem(t))
	o.MaxFrameBytes = 100
	l := mustOpen(t, o)
	mustAppend(t, l, 2, 1, 50)
	end := l.End()
	good, goodEnd := batch(end, 2, 2, 50)
	big, bigEnd := batch(end, 2, 1, 101)
	gap, gapEnd := batch(lsn.Position{Term: 2, LSN: end.LSN + 1, Chain: end.Chain}, 2, 1, 50)
	other, otherEnd := batch(lsn.Position{Term: 2, LSN: end.LSN, Chain: end.Chain + 1}, 2, 1, 50)
	old, oldEnd := batch(lsn.Position{Term: 1, LSN: end.LSN, Chain: end.Chain}, 1, 1, 50)
	for what, c := range map[string]struct {
		frames []byte
		end    lsn.Position
		want   error
	}{
		"no frame":        {nil, end, ErrNotContiguous},
		"another end":     {good, end, ErrNotContiguous},
		"a gap":           {gap, gapEnd, ErrNotContiguous},
		"another history": {other, otherEnd, ErrNotContiguous},
		"an older term":   {old, oldEnd, ErrNotContiguous},
		"half a frame":    {good[:len(good)-8], goodEnd, ErrNotContiguous},
		"a large record":  {big, bigEnd, ErrTooLarge},
	} {
		require.ErrorIs(t, l.Append(c.frames, c.end), c.want, what)
		require.Equal(t, end, l.End())
	}
	require.NoError(t, l.Append(good, goodEnd))
}

func TestBlockLargerThanSegment(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		l := mustOpen(t, o)
		for range 3 {
			mustAppend(t, l, 1, 1, 50_000)
			require.NoError(t, l.Sync())
			mustAppend(t, l, 1, 1, 50_000)
		}
		end := l.End()
		require.NoError(t, l.Close())
		l = mustOpen(t, o)
		require.Equal(t, end, l.End())
		requireRecords(t, l, 50_000)
		l.Release(end.LSN)
		require.Equal(t, end.LSN, l.First())
	})
}

// PositionOf returns the position of each record in the log, and of the record before the first one.
func TestPositionOf(t *testing.T) {
	l := mustOpen(t, testOptions(newMem(t)))
	want := []lsn.Position{{}}
	for i := range 200 {
		want = append(want, mustAppend(t, l, uint64(1+i/50), 1, 100+i))
	}
	for i, pos := range want {
		got, ok := l.PositionOf(uint64(i))
		require.True(t, ok, i)
		require.Equal(t, pos, got)
	}
	_, ok := l.PositionOf(201)
	require.False(t, ok)
	l.Release(150)
	first := l.First()
	require.Greater(t, first, uint64(100))
	got, ok := l.PositionOf(first - 1)
	require.True(t, ok)
	require.Equal(t, want[first-1], got)
	_, ok = l.PositionOf(first - 2)
	require.False(t, ok)
}

func TestInvalidOptions(t *testing.T) {
	good := testOptions(newMem(t))
	for what, change := range map[string]func(*Options){
		"no fs":          func(o *Options) { o.FS = nil },
		"no directory":   func(o *Options) { o.Dir = "" },
		"small segments": func(o *Options) { o.SegmentBytes = 100 },
		"large segments": func(o *Options) { o.SegmentBytes = 1 << 40 },
		"large records":  func(o *Options) { o.MaxFrameBytes = 1<<30 + 1 },
		"keep":           func(o *Options) { o.KeepBytes = -1 },
		"mode":           func(o *Options) { o.Sync = 9 },
		"interval":       func(o *Options) { o.SyncInterval = -1 },
	} {
		o := good
		change(&o)
		_, err := Open(o)
		require.ErrorIs(t, err, ErrOptions, what)
	}
}

// Sync syncs the disk in mode always. In mode interval the log syncs it once per interval, in mode off only on Close.
func TestSyncModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, mode := range []SyncMode{SyncAlways, SyncInterval, SyncOff} {
			fault := faultfs.New(newMem(t))
			o := testOptions(fault)
			o.Sync, o.SyncInterval = mode, time.Second
			l := mustOpen(t, o)
			synctest.Wait()
			syncs := fault.Count(faultfs.OpSync)
			end := mustAppend(t, l, 1, 2, 100)
			require.NoError(t, l.Sync())
			synctest.Wait()
			switch mode {
			case SyncAlways:
				require.Equal(t, syncs+1, fault.Count(faultfs.OpSync))
				require.Equal(t, end.LSN, l.syncedLSN())
			case SyncInterval, SyncOff:
				require.Equal(t, syncs, fault.Count(faultfs.OpSync))
				require.Zero(t, l.syncedLSN())
				require.Equal(t, end, l.Durable(), "Durable includes unsynced records")
			}
			elapse(1100 * time.Millisecond)
			synctest.Wait()
			if mode == SyncOff {
				require.Zero(t, l.syncedLSN())
			} else {
				require.Equal(t, end.LSN, l.syncedLSN())
			}
			require.NoError(t, l.Close())
			l = mustOpen(t, o)
			require.Equal(t, end, l.End())
			require.NoError(t, l.Close())
		}
	})
}

// After Close all records survive a power failure, in every sync mode.
func TestRecordsAreDurableAfterClose(t *testing.T) {
	for _, mode := range []SyncMode{SyncAlways, SyncInterval, SyncOff} {
		mem := newMem(t)
		o := testOptions(mem)
		o.Sync = mode
		l := mustOpen(t, o)
		for range 20 {
			mustAppend(t, l, 1, 3, 700)
		}
		end := l.End()
		require.NoError(t, l.Close())
		o.FS = mem.CrashClone(nil)
		l = mustOpen(t, o)
		require.Equal(t, end, l.End(), mode)
		require.Equal(t, end.LSN, l.marked, "durable LSN of the seal")
	}
}

// An idle log writes exactly one seal. Its durable LSN is the LSN of the last record.
func TestSealWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := faultfs.New(newMem(t))
		o := testOptions(fault)
		o.SealAfter = 100 * time.Millisecond
		l := mustOpen(t, o)
		for range 10 { // no seal while records are appended
			mustAppend(t, l, 1, 1, 100)
			require.NoError(t, l.Sync())
			elapse(50 * time.Millisecond)
		}
		require.Zero(t, l.counters.seals.Load())
		elapse(time.Second)
		require.EqualValues(t, 1, l.counters.seals.Load())
		require.Equal(t, l.End().LSN, l.marked)
		writes := fault.Count(faultfs.OpWrite)
		elapse(time.Minute)
		require.Equal(t, writes, fault.Count(faultfs.OpWrite), "no write when idle")
		mustAppend(t, l, 1, 1, 100)
		require.NoError(t, l.Sync())
		elapse(time.Second)
		require.EqualValues(t, 2, l.counters.seals.Load())
		requireRecords(t, l, 100)
		require.NoError(t, l.Close())
		l = mustOpen(t, o)
		require.EqualValues(t, 11, l.End().LSN)
		require.NoError(t, l.Close())
	})
}

// Concurrent readers receive all records while they are appended, across rolls, syncs and seals.
func TestReadDuringAppend(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		o.SealAfter = time.Millisecond
		l := mustOpen(t, o)
		const records = 3000
		var wg sync.WaitGroup
		grown := make([]chan struct{}, 3)
		for reader := range grown {
			grown[reader] = make(chan struct{}, 1)
			wg.Go(func() {
				r, err := l.ReadFrom(1)
				if err != nil {
					t.Errorf("read from: %v", err)
					return
				}
				for next := uint64(1); next <= records; {
					if reader == 0 {
						f, err := r.Next()
						if errors.Is(err, io.EOF) {
							<-grown[reader]
							continue
						}
						if err != nil || f.Pos.LSN != next || string(f.Payload) != string(payload(1, next, 200)) {
							t.Errorf("record %d: %v %v", next, f.Pos, err)
							return
						}
						next++
						continue
					}
					raw, last, n, err := r.ReadBatch(1000 * reader)
					if errors.Is(err, io.EOF) {
						<-grown[reader]
						continue
					}
					if err != nil || last.LSN != next+uint64(n)-1 || n > 1 && len(raw) > 1000*reader {
						t.Errorf("batch at %d: %d records, %d bytes, %v", next, n, len(raw), err)
						return
					}
					next += uint64(n)
				}
			})
		}
		rng := rand.New(rand.NewSource(1))
		for l.End().LSN < records {
			frames, end := batch(l.End(), 1, min(1+rng.Intn(10), records-int(l.End().LSN)), 200)
			require.NoError(t, l.Append(frames, end))
			if rng.Intn(10) == 0 {
				require.NoError(t, l.Sync())
			}
			for _, g := range grown {
				wake(g)
			}
		}
		wg.Wait()
	})
}

// When Sync returns, records appended before the call are durable, even with concurrent appends.
func TestSyncDuringAppend(t *testing.T) {
	l := mustOpen(t, testOptions(newMem(t)))
	appended := make(chan uint64, 100)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for record := range appended {
				if err := l.Sync(); err != nil || l.syncedLSN() < record {
					t.Errorf("record %d: %v, synced %d", record, err, l.syncedLSN())
				}
			}
		})
	}
	for range 2000 {
		appended <- mustAppend(t, l, 1, 2, 100).LSN
	}
	close(appended)
	wg.Wait()
}

func TestAppendDoesNotAllocate(t *testing.T) {
	o := testOptions(vfs.OS())
	o.Dir, o.SegmentBytes = t.TempDir()+"/log", 4<<20
	l := mustOpen(t, o)
	frames := make([]byte, 0, 1024)
	body := payload(1, 1, 100)
	require.Less(t, testing.AllocsPerRun(500, func() {
		b, end := AppendFrame(frames, l.End(), 1, KindTxn, body)
		require.NoError(t, l.Append(b, end))
		require.NoError(t, l.Sync())
	}), 1.0)
}

// A slow sync is reported with its duration; a fast one is not.
func TestSlowSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := faultfs.New(newMem(t))
		o := testOptions(fault)
		var reported []events.Event
		o.Events = func(e events.Event) { reported = append(reported, e) }
		l := mustOpen(t, o)
		mustAppend(t, l, 1, 1, 500)
		require.NoError(t, l.Sync())
		require.Empty(t, reported)
		fault.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.OpSync {
				<-time.After(DefaultSlowSync)
			}
			return nil
		})
		mustAppend(t, l, 1, 1, 500)
		require.NoError(t, l.Sync())
		fault.SetHook(nil)
		require.NoError(t, l.Close())
		require.NotEmpty(t, reported)
		require.Equal(t, events.SlowSync{Took: DefaultSlowSync}, reported[0])
	})
}
