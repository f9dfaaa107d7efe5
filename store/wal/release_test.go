// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// Release removes only whole segments. It retains the records after the given one, the records of a hold, and the
// last KeepBytes.
func TestReleaseKeepsRequiredRecords(t *testing.T) { synctest.Test(t, testReleaseKeepsRequiredRecords) }

func testReleaseKeepsRequiredRecords(t *testing.T) {
	o := testOptions(newMem(t))
	o.KeepBytes = 40 << 10
	l := mustOpen(t, o)
	for range 400 {
		mustAppend(t, l, 1, 1, 500)
	}
	l.Release(50)
	first := l.First()
	require.Greater(t, first, uint64(1))
	require.LessOrEqual(t, first, uint64(51), "only released records")

	h := l.Hold(120)
	l.Release(400)
	require.LessOrEqual(t, l.First(), uint64(120))
	require.Greater(t, l.First(), uint64(80), "only the segment of the hold")
	h.Advance(100)
	h.Advance(200)
	l.Release(0)
	require.LessOrEqual(t, l.First(), uint64(200))
	require.Greater(t, l.First(), uint64(160))
	h.Release()
	h.Release()
	// Records of a released hold are removed in the background, one segment at a time.
	elapse(time.Minute)
	require.Less(t, l.Bytes(), o.KeepBytes+2*o.SegmentBytes)
	require.Greater(t, l.First(), uint64(200))
	require.GreaterOrEqual(t, l.Bytes(), o.KeepBytes)
	requireRecords(t, l, 500)

	_, err := l.ReadFrom(100)
	require.ErrorIs(t, err, ErrTrimmed)
	_, err = l.ReadFrom(402)
	require.ErrorIs(t, err, ErrNotInLog)
	_, err = l.ReadFrom(401)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// Discard removes records despite a hold on them, since the owner of the hold cannot read past a corrupt record. A
// hold on later records still retains them.
func TestDiscardIgnoresHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(newMem(t))
		o.KeepBytes = 1 << 30
		l := mustOpen(t, o)
		for range 400 {
			mustAppend(t, l, 1, 1, 500)
		}
		l.Release(400)
		before, after := l.Hold(10), l.Hold(200)
		require.Equal(t, uint64(1), l.First())
		l.Discard(100)
		synctest.Wait()
		require.Greater(t, l.First(), uint64(100))
		require.LessOrEqual(t, l.First(), uint64(200))
		before.Release()
		after.Release()
		require.NoError(t, l.Close())
	})
}

// After a warm-up, segments are recycled instead of created.
func TestSegmentsAreRecycled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := faultfs.New(newMem(t))
		l := mustOpen(t, testOptions(fault))
		created := uint64(0)
		for i := range 600 {
			mustAppend(t, l, 1, 1, 500)
			require.NoError(t, l.Sync())
			l.Release(l.End().LSN)
			synctest.Wait()
			if i == 200 {
				created = fault.Count(faultfs.OpCreate)
			}
		}
		// One more file is created if the preparer was faster than the Release after the same roll.
		require.LessOrEqual(t, fault.Count(faultfs.OpCreate), created+1)
		require.Greater(t, l.counters.rolls.Load(), uint64(15))
		require.Zero(t, l.counters.stalledRolls.Load())
		require.NoError(t, l.Close())
	})
}

// A reader without a hold returns ErrTrimmed if its segment was released and recycled.
func TestReaderOfReleasedSegment(t *testing.T) {
	l := mustOpen(t, testOptions(newMem(t)))
	for range 100 {
		mustAppend(t, l, 1, 1, 500)
	}
	r, err := l.ReadFrom(1)
	require.NoError(t, err)
	_, err = r.Next()
	require.NoError(t, err)
	l.Release(100)
	for range 300 { // the files are reused
		mustAppend(t, l, 1, 1, 500)
	}
	for err == nil {
		_, err = r.Next()
	}
	require.ErrorIs(t, err, ErrTrimmed)
}

var errDisk = errors.New("the disk is broken")

// After a failed disk operation of Append or Sync, all operations fail until the log is reopened. Open finds all
// durable records (INV-7).
func TestFailuresAreFinal(t *testing.T) {
	for what, breaks := range map[string]func(faultfs.Op) bool{
		"write":    func(op faultfs.Op) bool { return op.Kind == faultfs.OpWrite },
		"sync":     func(op faultfs.Op) bool { return op.Kind == faultfs.OpSync },
		"roll":     func(op faultfs.Op) bool { return op.Kind == faultfs.OpRename },
		"sync dir": func(op faultfs.Op) bool { return op.Kind == faultfs.OpSyncDir },
	} {
		t.Run(what, func(t *testing.T) {
			fault := faultfs.New(newMem(t))
			o := testOptions(fault)
			fatal := make(chan events.Event, 10)
			o.Events = func(e events.Event) { fatal <- e }
			l := mustOpen(t, o)
			for range 10 {
				mustAppend(t, l, 1, 1, 500)
				require.NoError(t, l.Sync())
			}
			durable := l.End()
			fault.SetHook(func(op faultfs.Op) error {
				if breaks(op) {
					return errDisk
				}
				return nil
			})
			var err error
			for err == nil {
				frames, end := batch(l.End(), 1, 1, 500)
				if err = l.Append(frames, end); err == nil {
					if err = l.Sync(); err == nil {
						durable = end
					}
				}
			}
			require.ErrorIs(t, err, ErrFailed)
			require.ErrorIs(t, err, errDisk)
			fault.SetHook(nil) // the disk works again
			failed, ok := (<-fatal).(events.LogFailed)
			require.True(t, ok)
			require.ErrorIs(t, failed.Err, errDisk)
			require.Empty(t, fatal, "reported once")
			frames, end := batch(l.End(), 1, 1, 500)
			require.ErrorIs(t, l.Append(frames, end), ErrFailed)
			require.ErrorIs(t, l.Sync(), ErrFailed)
			_, err = l.TruncateAfter(durable, "")
			require.ErrorIs(t, err, ErrFailed)
			require.ErrorIs(t, l.Reset(durable), ErrFailed)
			require.Equal(t, durable, l.Durable())
			l.Release(durable.LSN)
			writes := fault.Count(faultfs.OpWrite)
			require.NoError(t, l.Close())
			require.Equal(t, writes, fault.Count(faultfs.OpWrite), "Close does not write")

			l = mustOpen(t, o)
			require.GreaterOrEqual(t, l.End().LSN, durable.LSN)
			requireRecords(t, l, 500)
		})
	}
}

// Open rewrites the last records: after a failed fsync, the operating system may treat them as synced (INV-7).
func TestRecordsAreRewrittenAfterFailedSync(t *testing.T) {
	mem := newMem(t)
	fault := faultfs.New(mem)
	l := mustOpen(t, testOptions(fault))
	mustAppend(t, l, 1, 3, 500)
	require.NoError(t, l.Sync())
	end := mustAppend(t, l, 1, 3, 500)
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpSync {
			return errDisk
		}
		return nil
	})
	require.ErrorIs(t, l.Sync(), errDisk)
	fault.SetHook(nil)
	require.NoError(t, l.Close())
	path, at := l.segs[0].path, l.segs[0].end

	rewritten := int64(0)
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite && op.Name == path {
			rewritten = max(rewritten, op.Offset+op.Length)
		}
		return nil
	})
	l = mustOpen(t, testOptions(fault))
	require.Equal(t, end, l.End())
	require.Equal(t, at, rewritten)
	require.Equal(t, end, mustOpen(t, testOptions(mem.CrashClone(nil))).End())
}

// Without space for a new segment, Append fails and does not change the log. It succeeds once space is available.
func TestAppendOnFullDisk(t *testing.T) {
	mem := newMem(t)
	fault := faultfs.New(mem)
	l := mustOpen(t, testOptions(fault))
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpAllocate {
			return syscall.ENOSPC
		}
		return nil
	})
	var err error
	for err == nil {
		frames, end := batch(l.End(), 1, 1, 500)
		if err = l.Append(frames, end); err == nil {
			require.NoError(t, l.Sync())
		}
	}
	require.ErrorIs(t, err, ErrNoSpace)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NotErrorIs(t, err, ErrFailed)
	full := l.End()
	require.NoError(t, l.Sync())
	l.Release(full.LSN)
	requireRecords(t, l, 500)

	fault.SetHook(nil)
	mustAppend(t, l, 1, 20, 500)
	require.NoError(t, l.Sync())
	requireRecords(t, l, 500)
	require.NoError(t, l.Close())
	require.Equal(t, full.LSN+20, mustOpen(t, testOptions(mem)).End().LSN)
}

// Appends and reads continue while a sync hangs.
func TestAppendAndReadDuringSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := faultfs.New(newMem(t))
		l := mustOpen(t, testOptions(fault))
		mustAppend(t, l, 1, 1, 10)
		release := make(chan struct{})
		fault.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.OpSync {
				<-release
			}
			return nil
		})
		done := make(chan error)
		go func() { done <- l.Sync() }()
		elapse(5 * time.Second)
		mustAppend(t, l, 1, 1, 10)
		r, err := l.ReadFrom(1)
		require.NoError(t, err)
		_, _, n, err := r.ReadBatch(1000)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		_, err = r.Next()
		require.ErrorIs(t, err, io.EOF)
		close(release)
		require.NoError(t, <-done)
		require.EqualValues(t, 1, l.syncedLSN(), "the second record was appended after the sync began")
		require.NoError(t, l.Close())
	})
}

func TestUseAfterClose(t *testing.T) {
	l := mustOpen(t, testOptions(newMem(t)))
	mustAppend(t, l, 1, 2, 10)
	r, err := l.ReadFrom(1)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	frames, end := batch(l.End(), 1, 1, 10)
	require.ErrorIs(t, l.Append(frames, end), ErrClosed)
	require.ErrorIs(t, l.Sync(), ErrClosed)
	_, err = l.ReadFrom(1)
	require.ErrorIs(t, err, ErrClosed)
	_, err = r.Next()
	require.ErrorIs(t, err, ErrClosed)
	_, err = l.TruncateAfter(end, "")
	require.ErrorIs(t, err, ErrClosed)
	l.Release(5)
}

// With low space, Release ignores KeepBytes.
func TestLowSpaceIgnoresKeepBytes(t *testing.T) {
	o := testOptions(newMem(t))
	o.KeepBytes = 40 << 10
	l := mustOpen(t, o)
	for range 400 {
		mustAppend(t, l, 1, 1, 500)
	}
	l.SetLowSpace(true)
	l.Release(400)
	require.Less(t, l.Bytes(), 2*o.SegmentBytes)
	requireRecords(t, l, 500)
}
