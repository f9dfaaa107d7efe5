// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"math/rand"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// TruncateAfter truncates the log after any record, including one within a block or in an earlier segment, and
// saves the truncated records. A crash after the truncation does not restore them.
func TestTruncateAfterEveryRecord(t *testing.T) {
	image, o, end := buildCorruption(t)
	for record := uint64(0); record <= end.LSN; record++ {
		mem := copyFS(t, image, testDir)
		o.FS = mem
		l := mustOpen(t, o)
		pos, ok := l.PositionOf(record)
		require.True(t, ok)
		n, err := l.TruncateAfter(pos, "truncated.seg")
		require.NoError(t, err)
		require.EqualValues(t, end.LSN-record, n)
		require.Equal(t, pos, l.End())
		require.Equal(t, pos, l.Durable())
		requireRecords(t, l, 300)

		if n > 0 {
			var kept []uint64
			info, err := InspectFile(mem, "truncated.seg", func(i Item) error {
				kept = append(kept, i.Frame.Pos.LSN)
				require.Equal(t, payload(1, i.Frame.Pos.LSN, 300), i.Frame.Payload)
				return nil
			})
			require.NoError(t, err)
			require.NoError(t, info.Stop)
			require.Equal(t, pos, info.Prev)
			require.Equal(t, end, info.Last)
			require.Len(t, kept, n)
		}
		// Simulate a crash directly after the truncation, and then append further records.
		o.FS = mem.CrashClone(nil)
		again := mustOpen(t, o)
		require.Equal(t, pos, again.End())
		require.False(t, again.recovery.torn)
		mustAppend(t, again, 2, 30, 300)
		newEnd := again.End()
		require.NoError(t, again.Close())
		again = mustOpen(t, o)
		require.Equal(t, newEnd, again.End())
		requireRecords(t, again, 300)
		require.NoError(t, again.Close())
	}
}

// TruncateAfter rejects positions of another history and trimmed positions. It can truncate all records.
func TestTruncateAfterRejectsInvalidPositions(t *testing.T) {
	l := mustOpen(t, testOptions(newMem(t)))
	for range 100 {
		mustAppend(t, l, 3, 1, 500)
	}
	end := l.End()
	l.Release(60)
	first := l.First()
	require.Greater(t, first, uint64(10))
	for what, c := range map[string]struct {
		pos  lsn.Position
		want error
	}{
		"another history": {lsn.Position{Term: 3, LSN: 80, Chain: 1}, ErrNotInLog},
		"another term":    {lsn.Position{Term: 2, LSN: end.LSN, Chain: end.Chain}, ErrNotInLog},
		"beyond the end":  {lsn.Position{Term: 3, LSN: end.LSN + 1}, ErrNotInLog},
		"trimmed":         {lsn.Position{Term: 3, LSN: first - 2}, ErrTrimmed},
	} {
		_, err := l.TruncateAfter(c.pos, "")
		require.ErrorIs(t, err, c.want, what)
	}
	n, err := l.TruncateAfter(end, "truncated.seg")
	require.NoError(t, err)
	require.Zero(t, n)
	before, ok := l.PositionOf(first - 1)
	require.True(t, ok)
	n, err = l.TruncateAfter(before, "")
	require.NoError(t, err)
	require.EqualValues(t, end.LSN-first+1, n)
	require.Zero(t, l.First())
	mustAppend(t, l, 4, 1, 500)
	require.Equal(t, first, l.First())
}

func TestTermEndsAfterTruncate(t *testing.T) {
	l := mustOpen(t, testOptions(newMem(t)))
	var ends []lsn.Position
	for term := uint64(1); term <= 5; term++ {
		ends = append(ends, mustAppend(t, l, term, 3, 100))
	}
	mid, ok := l.PositionOf(8)
	require.True(t, ok)
	_, err := l.TruncateAfter(mid, "")
	require.NoError(t, err)
	require.Equal(t, []lsn.Position{mid, ends[1], ends[0]}, l.TermEnds())
	_, err = l.TruncateAfter(ends[0], "")
	require.NoError(t, err)
	require.Equal(t, []lsn.Position{ends[0]}, l.TermEnds())
	end := mustAppend(t, l, 9, 1, 10)
	require.Equal(t, []lsn.Position{end, ends[0]}, l.TermEnds())
}

// Reset empties the log and continues it after another position. Readers fail, and holds are removed.
func TestReset(t *testing.T) {
	mem := newMem(t)
	o := testOptions(mem)
	l := mustOpen(t, o)
	for range 100 {
		mustAppend(t, l, 3, 1, 500)
	}
	r, err := l.ReadFrom(50)
	require.NoError(t, err)
	_ = l.Hold(10)
	start := lsn.Position{Term: 2, LSN: 42, Chain: 4711}
	require.NoError(t, l.Reset(start))
	_, err = r.Next()
	require.ErrorIs(t, err, ErrTruncated)
	require.Equal(t, start, l.End())
	require.Equal(t, start, l.Durable())
	require.Equal(t, []lsn.Position{start}, l.TermEnds())
	require.Zero(t, l.First())
	_, ok := l.PositionOf(41)
	require.False(t, ok)

	o.FS = mem.CrashClone(nil)
	again := mustOpen(t, o)
	require.Equal(t, start, again.End())
	require.Equal(t, []uint64{43}, listSegments(t, o.FS))

	for range 100 {
		mustAppend(t, l, 3, 1, 500)
	}
	requireRecords(t, l, 500)
	l.Release(142)
	require.Greater(t, l.First(), uint64(100), "the hold was removed")
}

// A crash at any operation of a truncation or reset leaves the log in the state before or after the truncation or
// reset, without corruption.
func TestCrashDuringTruncate(t *testing.T) {
	image, o, end := buildCorruption(t)
	start := lsn.Position{Term: 9, LSN: 5, Chain: 9}
	for _, reset := range []bool{false, true} {
		for _, record := range []uint64{0, 3, 4, 13, end.LSN - 1} {
			rng := rand.New(rand.NewSource(int64(record)))
			mem := copyFS(t, image, testDir)
			fault := faultfs.New(mem)
			o.FS = fault
			l := mustOpen(t, o)
			after, _ := l.PositionOf(record)
			if reset {
				after = start
			}
			finished := 0
			var mu sync.Mutex // goroutines of the log do I/O too
			fault.SetHook(func(op faultfs.Op) error {
				if op.Kind == faultfs.OpRead || op.Kind == faultfs.OpOpen || op.Kind == faultfs.OpStat {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				for range 4 {
					o := o
					o.FS = mem.CrashClone(rng)
					crashed, err := Open(o)
					require.NoError(t, err)
					require.Contains(t, []lsn.Position{end, after}, crashed.End(), describe(after))
					if crashed.recovery.finishedTruncate {
						finished++
						require.Equal(t, after, crashed.End())
					}
					require.NoError(t, crashed.Close())
				}
				return nil
			})
			if reset {
				require.NoError(t, l.Reset(start))
			} else {
				_, err := l.TruncateAfter(after, "truncated.seg")
				require.NoError(t, err)
			}
			fault.SetHook(nil)
			mu.Lock() // a goroutine of the log may still be in the hook
			require.Positive(t, finished)
			mu.Unlock()
			o.FS = mem.CrashClone(nil)
			require.Equal(t, after, mustOpen(t, o).End())
		}
	}
}

// Each flipped bit of a truncate intent is detected. Open rejects a corrupt intent.
func TestCorruptTruncateIntent(t *testing.T) {
	c := &truncateIntent{
		op: truncateTail, logID: [16]byte{1, 2, 3}, end: lsn.Position{Term: 1, LSN: 2, Chain: 3}, segment: 1, zeroFrom: 5000,
		zeroTo:   6000,
		headerAt: 4096, header: [blockHeaderBytes]byte{1},
	}
	b := c.encode()
	got, err := decodeTruncateIntent(b)
	require.NoError(t, err)
	require.Equal(t, c, got)
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		_, err := decodeTruncateIntent(b)
		require.Error(t, err)
		b[bit/8] ^= 1 << (bit % 8)
	}
	mem, o, _ := buildCorruption(t)
	b[20] ^= 1
	require.NoError(t, vfs.WriteFileAtomic(mem, testDir+"/"+truncateFile, b))
	o.FS = mem
	_, err = Open(o)
	require.ErrorIs(t, err, ErrCorrupt)
}

func FuzzDecodeTruncateIntent(f *testing.F) {
	f.Add((&truncateIntent{op: truncateReset}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == truncateBytes {
			crc := checksum(0, b[:120])
			b[120], b[121], b[122], b[123] = byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24)
		}
		if c, err := decodeTruncateIntent(b); err == nil {
			again, err := decodeTruncateIntent(c.encode())
			require.NoError(t, err)
			require.Equal(t, c, again)
		}
	})
}

// SaveTail copies the remaining records after a position, and does not change the log.
func TestSaveTail(t *testing.T) {
	mem := newMem(t)
	l := mustOpen(t, testOptions(mem))
	for range 100 {
		mustAppend(t, l, 3, 1, 500)
	}
	end := l.End()
	l.Release(60)
	first := l.First()
	require.Greater(t, first, uint64(10))
	for after := first - 5; after <= end.LSN+1; after++ {
		before, n, err := l.SaveTail(after, "kept.seg")
		require.NoError(t, err)
		require.Equal(t, end, l.End())
		from := max(after, first-1)
		if from >= end.LSN {
			require.Zero(t, n)
			continue
		}
		require.Equal(t, from, before.LSN)
		require.EqualValues(t, end.LSN-from, n)
		crashed := mem.CrashClone(nil)
		var kept []uint64
		info, err := InspectFile(crashed, "kept.seg", func(i Item) error {
			kept = append(kept, i.Frame.Pos.LSN)
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, info.Stop)
		require.Equal(t, before, info.Prev)
		require.Equal(t, end, info.Last)
		require.Len(t, kept, n)
	}
	require.NoError(t, l.Close())
}

// CopyTail copies the records after a position while other records are appended, and then releases its hold.
func TestCopyTail(t *testing.T) {
	for _, after := range []uint64{0, 10, 99, 100} {
		mem := newMem(t)
		l := mustOpen(t, testOptions(mem))
		for range 100 {
			mustAppend(t, l, 3, 1, 500)
		}
		end := l.End()
		want, known := l.PositionOf(after)
		require.True(t, known)
		appended := make(chan error)
		go func() {
			var err error
			for range 10 {
				frames, end := batch(l.End(), 3, 1, 500)
				err = errors.Join(err, l.Append(frames, end))
			}
			appended <- err
		}()
		before, last, err := l.CopyTail(after, "kept.seg")
		require.NoError(t, <-appended)
		require.NoError(t, err)
		require.GreaterOrEqual(t, last.LSN, end.LSN)
		require.Equal(t, want, before)
		if before != last {
			info, err := InspectFile(mem.CrashClone(nil), "kept.seg", nil)
			require.NoError(t, err)
			require.NoError(t, info.Stop)
			require.Equal(t, before, info.Prev)
			require.Equal(t, last, info.Last)
		}
		l.Release(l.End().LSN)
		require.Greater(t, l.First(), uint64(10), "the hold is released")
		require.NoError(t, l.Close())
	}
}
