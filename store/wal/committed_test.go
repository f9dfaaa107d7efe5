// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// After a clean stop, Open restores the committed LSN. After a power failure, it restores the committed LSN of the last
// durable block (INV-13).
func TestCommittedAfterReopen(t *testing.T) {
	mem := newMem(t)
	o := testOptions(mem)
	l := mustOpen(t, o)
	require.Zero(t, l.Committed())
	mustAppend(t, l, 1, 5, 100)
	require.NoError(t, l.Sync())
	l.NoteCommitted(4)
	l.NoteCommitted(2)
	require.EqualValues(t, 4, l.Committed())
	committedAfterCrash(t, o, mem, 0) // no block was written since

	mustAppend(t, l, 1, 2, 100)
	require.NoError(t, l.Sync())
	l.NoteCommitted(6)
	committedAfterCrash(t, o, mem, 4) // the block contains the value at the time of its write
	l.NoteCommitted(100)
	require.EqualValues(t, 7, l.Committed(), "at most the end of the log")
	mustAppend(t, l, 1, 1, 100)
	require.EqualValues(t, 7, l.Committed(), "without the later record")

	require.NoError(t, l.Close())
	committedAfterCrash(t, o, mem, 7)
	writes := faultfs.New(mem)
	o.FS = writes
	l = mustOpen(t, o)
	require.EqualValues(t, 7, l.Committed())
	require.NoError(t, l.Close())
	require.Zero(t, l.counters.seals.Load(), "the committed LSN is already sealed")
}

func committedAfterCrash(t *testing.T, o Options, mem *memfs.FS, want uint64) {
	t.Helper()
	o.FS = mem.CrashClone(nil)
	l := mustOpen(t, o)
	require.Equal(t, want, l.Committed())
	require.NoError(t, l.Close())
}

// An idle log writes one seal with the newest committed LSN within two SealAfter periods, even if the last record is
// older.
func TestCommittedIsSealed(t *testing.T) {
	for _, mode := range []SyncMode{SyncAlways, SyncInterval, SyncOff} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := newMem(t)
				fault := faultfs.New(mem)
				o := testOptions(fault)
				o.SealAfter, o.Sync = 100*time.Millisecond, mode
				l := mustOpen(t, o)
				mustAppend(t, l, 1, 10, 100)
				require.NoError(t, l.Sync())
				elapse(time.Second)
				seals, syncs := l.counters.seals.Load(), fault.Count(faultfs.OpSync)
				require.LessOrEqual(t, seals, uint64(1))
				for _, committed := range []uint64{3, 9, 10} {
					l.NoteCommitted(committed)
					elapse(250 * time.Millisecond)
					seals++
					require.Equal(t, seals, l.counters.seals.Load())
					require.Equal(t, committed, recordedCommit(l))
					if mode != SyncOff {
						committedAfterCrash(t, o, mem, committed)
					}
				}
				if mode == SyncOff {
					require.Equal(t, syncs, fault.Count(faultfs.OpSync), "no sync in mode off")
				}
				writes := fault.Count(faultfs.OpWrite)
				l.NoteCommitted(10)
				elapse(time.Minute)
				require.Equal(t, writes, fault.Count(faultfs.OpWrite), "idle when the position is unchanged")
				require.NoError(t, l.Close())
				o.FS = mem
				l = mustOpen(t, o)
				require.EqualValues(t, 10, l.Committed())
				require.NoError(t, l.Close())
			})
		})
	}
}

// recordedCommit returns the highest committed LSN in a block.
func recordedCommit(l *Log) uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.markedCommit
}

// While records are appended, their blocks contain the committed LSN, and no seals are written.
func TestNoSealsUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(newMem(t))
		o.SealAfter = 100 * time.Millisecond
		l := mustOpen(t, o)
		for range 50 {
			end := mustAppend(t, l, 1, 1, 100)
			require.NoError(t, l.Sync())
			l.NoteCommitted(end.LSN)
			elapse(50 * time.Millisecond)
		}
		require.Zero(t, l.counters.seals.Load())
		require.Equal(t, l.End().LSN-1, recordedCommit(l))
		elapse(time.Second)
		require.EqualValues(t, 1, l.counters.seals.Load(), "one seal for the durable and the committed LSN")
		require.NoError(t, l.Close())
	})
}

// Seals may extend a full segment. The next block starts a new segment.
func TestSealsInFullSegment(t *testing.T) {
	mem := newMem(t)
	o := testOptions(mem)
	o.SegmentBytes = minSegmentBytes
	l := mustOpen(t, o)
	mustAppend(t, l, 1, 20, 100)
	room := l.segs[0].sizeBytes - l.segs[0].end
	mustAppend(t, l, 1, 1, int(room-2*blockHeaderBytes-FrameHeaderBytes)/frameAlign*frameAlign)
	require.NoError(t, l.Sync())
	for committed := uint64(1); committed <= 21; committed++ {
		l.NoteCommitted(committed)
		l.seal()
	}
	require.Len(t, l.segs, 1)
	committedAfterCrash(t, o, mem, 21)
	end := mustAppend(t, l, 1, 1, 100)
	require.Len(t, l.segs, 2)
	require.NoError(t, l.Close())
	l = mustOpen(t, o)
	require.Equal(t, end, l.End())
	require.EqualValues(t, 21, l.Committed())
	require.NoError(t, l.Close())
}

// After TruncateAfter, the committed LSN is the lower of its previous value and the new end, even after a crash at
// any point of the truncation.
func TestCommittedAfterTruncation(t *testing.T) {
	for committed := uint64(0); committed <= 12; committed += 3 {
		for record := uint64(0); record <= 12; record++ {
			mem := newMem(t)
			o := testOptions(mem)
			l := mustOpen(t, o)
			for range 4 {
				mustAppend(t, l, 1, 3, 100)
				l.NoteCommitted(min(committed, l.End().LSN))
			}
			require.NoError(t, l.Sync())
			l.seal()
			fault := faultfs.New(mem)
			var mu sync.Mutex // the next segment is prepared in the background
			var crashed []*memfs.FS
			fault.SetHook(func(op faultfs.Op) error {
				mu.Lock()
				defer mu.Unlock()
				switch op.Kind {
				case faultfs.OpWrite, faultfs.OpSync, faultfs.OpSyncDir, faultfs.OpRename, faultfs.OpRemove:
					crashed = append(crashed, mem.CrashClone(nil))
				default:
				}
				return nil
			})
			require.NoError(t, l.Close())
			o.FS = fault
			l = mustOpen(t, o)
			mu.Lock()
			crashed = nil
			mu.Unlock()
			pos, ok := l.PositionOf(record)
			require.True(t, ok)
			_, err := l.TruncateAfter(pos, "")
			require.NoError(t, err)
			fault.SetHook(nil)
			mu.Lock()
			disks := crashed
			mu.Unlock()
			want := min(committed, record)
			require.Equal(t, want, l.Committed())
			committedAfterCrash(t, o, mem, want)
			for _, disk := range disks {
				o.FS = disk
				again := mustOpen(t, o)
				require.Equal(t, min(committed, again.End().LSN), again.Committed(), "committed %d, truncated after %d",
					committed, record)
				require.NoError(t, again.Close())
			}
			mustAppend(t, l, 2, 3, 100)
			require.NoError(t, l.Close())
			o.FS = mem
			l = mustOpen(t, o)
			require.Equal(t, want, l.Committed())
			require.NoError(t, l.Close())
		}
	}
}

// The start position of a log, and of a log that was trimmed or reset, is committed: a checkpoint contains it.
func TestCommittedOfEmptyLog(t *testing.T) {
	o := testOptions(newMem(t))
	o.Start = lsn.Position{Term: 3, LSN: 40, Chain: 7}
	l := mustOpen(t, o)
	require.EqualValues(t, 40, l.Committed())
	for range 100 {
		mustAppend(t, l, 3, 1, 500)
	}
	require.NoError(t, l.Sync())
	l.Release(100)
	first := l.First()
	require.Greater(t, first, uint64(50))
	require.NoError(t, l.Close())
	l = mustOpen(t, o)
	require.Equal(t, first-1, l.Committed(), "trimmed records are in a checkpoint")
	require.NoError(t, l.Reset(lsn.Position{Term: 1, LSN: 20, Chain: 9}))
	require.EqualValues(t, 20, l.Committed())
	require.NoError(t, l.Close())
	l = mustOpen(t, o)
	require.EqualValues(t, 20, l.Committed())
	require.NoError(t, l.Close())
}

// The committed LSN of a block header survives a round trip. A value too far behind the first LSN is not recorded, and
// an invalid value is ignored.
func TestCommittedLSNInBlockHeader(t *testing.T) {
	for _, h := range []blockHeader{
		{firstLSN: 1},
		{firstLSN: 2, committedLSN: 1},
		{firstLSN: 100, committedLSN: 99, seal: true},
		{firstLSN: 100, committedLSN: 1},
		{firstLSN: 1 << 40, committedLSN: 1<<40 - maxCommitBehind},
		{firstLSN: 1 << 40, durableLSN: 7, length: 8},
	} {
		var b [blockHeaderBytes]byte
		h.encode(b[:], 4711, 4096)
		got, err := decodeBlockHeader(b[:], 4711, 4096)
		require.NoError(t, err)
		require.Equal(t, h, got)
	}
	far := blockHeader{firstLSN: 1 << 40, committedLSN: 1<<40 - maxCommitBehind - 1, seal: true}
	require.EqualValues(t, blockFlagSeal, far.flags(), "too far behind")
	var h blockHeader
	h.firstLSN = 5
	h.setFlags(5 << blockCommitShift)
	require.Zero(t, h.committedLSN)
	h.setFlags(1<<32 - 1)
	require.Zero(t, h.committedLSN, "an invalid value is ignored")
}

// oldSegment returns a segment that was written by release 0.1.0.
func oldSegment(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/v0.1.0.txt")
	require.NoError(t, err)
	var parts [2][]byte
	for i, part := range strings.Split(string(text), "\n\n") {
		for line := range strings.Lines(part) {
			if !strings.HasPrefix(line, "#") {
				raw, err := hex.DecodeString(strings.TrimSpace(line))
				require.NoError(t, err)
				parts[i] = append(parts[i], raw...)
			}
		}
	}
	return slices.Concat(parts[0], make([]byte, segmentDataStart-len(parts[0])), parts[1])
}

// A segment of release 0.1.0 is readable and contains no committed LSNs. Release 0.1.0 can read blocks appended to it.
func TestSegmentOfFirstRelease(t *testing.T) {
	mem := newMem(t)
	o := testOptions(mem)
	require.NoError(t, mem.MkdirAll(testDir, 0o700))
	old := oldSegment(t)
	used := len(old)
	old = append(old, make([]byte, int(o.SegmentBytes)-used)...)
	require.NoError(t, vfs.WriteFileAtomic(mem, segmentPath(1), old))
	l := mustOpen(t, o)
	require.Equal(t, "2/4", describe(l.End()))
	require.Zero(t, l.Committed())
	require.False(t, l.recovery.torn)
	l.NoteCommitted(3)
	mustAppend(t, l, 2, 2, 100)
	l.NoteCommitted(6)
	end := l.End()
	require.NoError(t, l.Close())

	raw, err := vfs.ReadFile(mem, segmentPath(1), 1<<20)
	require.NoError(t, err)
	require.Equal(t, old[:used], raw[:used], "existing records are kept")
	blocks, last := readAsFirstRelease(t, raw, o.LogID)
	require.Equal(t, 6, blocks)
	require.Equal(t, end, last)
	l = mustOpen(t, o)
	require.EqualValues(t, 6, l.Committed())
	require.NoError(t, l.Close())
}

// readAsFirstRelease reads the first segment like release 0.1.0.
func readAsFirstRelease(t *testing.T, raw []byte, logID [16]byte) (blocks int, last lsn.Position) {
	t.Helper()
	require.EqualValues(t, 1, binary.LittleEndian.Uint32(raw[8:]), "version of the segment")
	seed := segmentSeed(logID, 1)
	for at := segmentDataStart; at+32 <= len(raw) && binary.LittleEndian.Uint32(raw[at:]) == blockMagic; blocks++ {
		b := raw[at:]
		require.Equal(t, binary.LittleEndian.Uint32(b[4:]), checksum(seed^uint32(at), b[8:32]))
		length, durable, first := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint64(b[16:]),
			binary.LittleEndian.Uint64(b[24:])
		require.Zero(t, length%8)
		require.Less(t, durable, first)
		require.Equal(t, last.LSN+1, first)
		for rest := b[32 : 32+length]; len(rest) > 0; {
			f, next, err := DecodeFrame(rest, last)
			require.NoError(t, err)
			last, rest = f.Pos, next
		}
		at += 32 + int(length)
	}
	return blocks, last
}
