// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// If the last, unsynced block is truncated at any byte and followed by zeros or other bytes, Open truncates the log
// before this block. The log remains usable.
func TestTornTail(t *testing.T) {
	mem := newMem(t)
	o := testOptions(mem)
	l := mustOpen(t, o)
	mustAppend(t, l, 1, 3, 100)
	require.NoError(t, l.Sync())
	safe, from := l.End(), l.segs[0].end
	mustAppend(t, l, 1, 3, 100)
	full, to := l.End(), l.segs[0].end
	image := copyFS(t, mem, testDir)
	whole, err := vfs.ReadFile(image, segmentPath(1), 1<<20)
	require.NoError(t, err)

	for _, fill := range []byte{0, 0x5a} {
		for cut := from; cut <= to; cut++ {
			o.FS = copyFS(t, image, testDir)
			overwrite(t, o.FS, segmentPath(1), cut, bytes.Repeat([]byte{fill}, int(to-cut)))
			l, err := Open(o)
			require.NoError(t, err, "cut at %d", cut)
			if cut == to {
				require.Equal(t, full, l.End())
				require.False(t, l.recovery.torn)
				require.NoError(t, l.Close())
				break
			}
			if l.End() != safe {
				require.Equal(t, full, l.End())
				require.Zero(t, fill)
				require.Equal(t, make([]byte, to-cut), whole[cut:to], "the block is complete: only zeros are missing")
			} else {
				// The truncation is reported if the block header is complete.
				var header [blockHeaderBytes]byte
				copy(header[:], whole[from:cut])
				for i := max(cut-from, 0); i < blockHeaderBytes; i++ {
					header[i] = fill
				}
				_, err := decodeBlockHeader(header[:], l.segs[0].seed, from)
				require.Equal(t, err == nil, l.recovery.torn, "cut at %d", cut)
			}
			end := mustAppend(t, l, 2, 2, 10)
			require.NoError(t, l.Close())
			l, err = Open(o)
			require.NoError(t, err)
			require.Equal(t, end, l.End())
			require.False(t, l.recovery.torn)
			require.NoError(t, l.Close())
		}
	}
}

// buildCorruption returns a sealed log of several segments.
func buildCorruption(t *testing.T) (image *memfs.FS, o Options, end lsn.Position) {
	t.Helper()
	mem := newMem(t)
	o = testOptions(mem)
	o.SegmentBytes = minSegmentBytes
	l := mustOpen(t, o)
	for range 14 {
		mustAppend(t, l, 1, 2, 300)
		require.NoError(t, l.Sync())
	}
	end = l.End()
	require.NoError(t, l.Close())
	require.Greater(t, len(listSegments(t, mem)), 2)
	return copyFS(t, mem, testDir), o, end
}

// Open rejects a durable, sealed log with a flipped bit at any position, except in the last seal, and changes nothing.
func TestFlippedBitsAreDetected(t *testing.T) {
	image, o, end := buildCorruption(t)
	segs := listSegments(t, image)
	for i, first := range segs {
		info, err := InspectFile(image, segmentPath(first), nil)
		require.NoError(t, err)
		lastSegment := i == len(segs)-1
		for offset := int64(0); offset < info.UsedBytes; offset += 1 + offset%29 {
			if offset >= segmentHeaderBytes && offset < segmentDataStart {
				offset = segmentDataStart
			}
			corrupt := copyFS(t, image, testDir)
			flip(t, corrupt, segmentPath(first), offset, uint(offset)%8)
			o.FS = corrupt
			before := copyFS(t, corrupt, testDir)
			l, err := Open(o)
			if lastSegment && offset >= info.UsedBytes-blockHeaderBytes {
				require.NoError(t, err, "a seal has no records")
				require.Equal(t, end, l.End())
				require.NoError(t, l.Close())
				continue
			}
			var d *CorruptError
			require.ErrorAs(t, err, &d, "segment %d, offset %d", first, offset)
			require.ErrorIs(t, err, ErrCorrupt)
			require.Contains(t, err.Error(), "was truncated")
			require.Equal(t, segmentPath(first), d.Segment)
			require.LessOrEqual(t, d.Offset, offset)
			require.Greater(t, d.Offset+300+2*FrameHeaderBytes+blockHeaderBytes, offset)
			require.Positive(t, d.LSN)
			for _, name := range listSegments(t, before) {
				want, err := vfs.ReadFile(before, segmentPath(name), 1<<20)
				require.NoError(t, err)
				got, err := vfs.ReadFile(corrupt, segmentPath(name), 1<<20)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got), "segment %d", name)
			}
		}
	}
}

// Open reports zeroed sectors and missing segments as corruption.
func TestZeroedSectorsAndMissingSegments(t *testing.T) {
	image, o, _ := buildCorruption(t)
	segs := listSegments(t, image)
	for _, first := range segs {
		damaged := copyFS(t, image, testDir)
		overwrite(t, damaged, segmentPath(first), segmentDataStart, make([]byte, 512))
		o.FS = damaged
		_, err := Open(o)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	damaged := copyFS(t, image, testDir)
	require.NoError(t, damaged.Remove(segmentPath(segs[1])))
	o.FS = damaged
	_, err := Open(o)
	var d *CorruptError
	require.ErrorAs(t, err, &d)
	require.Equal(t, segs[1], d.LSN)
	require.Equal(t, segmentPath(segs[0]), d.Segment)
}

// Without a seal, a corrupt last block is a torn tail. With a seal, it is corruption.
func TestUnsealedLastBlock(t *testing.T) {
	mem := newMem(t)
	o := testOptions(mem)
	l := mustOpen(t, o)
	mustAppend(t, l, 1, 1, 100)
	require.NoError(t, l.Sync())
	before := l.segs[0].end
	mustAppend(t, l, 1, 1, 100)
	require.NoError(t, l.Sync())

	unsealed := copyFS(t, mem, testDir)
	flip(t, unsealed, segmentPath(1), before+60, 0)
	o.FS = unsealed
	again := mustOpen(t, o)
	require.EqualValues(t, 1, again.End().LSN)
	require.True(t, again.recovery.torn)

	l.seal()
	sealed := copyFS(t, mem, testDir)
	flip(t, sealed, segmentPath(1), before+60, 0)
	o.FS = sealed
	_, err := Open(o)
	require.ErrorIs(t, err, ErrCorrupt)
}

// Open ignores the old content of a recycled segment file.
func TestStaleContentOfRecycledSegments(t *testing.T) {
	mem := newMem(t)
	o := testOptions(mem)
	l := mustOpen(t, o)
	recycled := func() bool {
		active := l.segs[len(l.segs)-1]
		image, err := vfs.ReadFile(mem, active.path, 1<<20)
		require.NoError(t, err)
		return len(bytes.Trim(image[active.end:], "\x00")) > 0
	}
	// The segment preparer may already have created one or two new files.
	for i := 0; i < 200 || !recycled(); i++ {
		require.Less(t, i, 20_000, "test requires a recycled segment")
		mustAppend(t, l, 1, 1, 500)
		require.NoError(t, l.Sync())
		l.Release(l.End().LSN)
	}
	end := l.End()
	// Simulate a power failure after everything was synced.
	o.FS = mem.CrashClone(nil)
	l = mustOpen(t, o)
	require.Equal(t, end, l.End())
	require.False(t, l.recovery.torn)
	for range 100 {
		mustAppend(t, l, 2, 1, 500)
	}
	require.NoError(t, l.Close())
	l = mustOpen(t, o)
	require.Equal(t, end.LSN+100, l.End().LSN)
	requireRecords(t, l, 500)
}

// A torn record that contains a copy of the log's blocks is a torn tail, although later blocks seem to follow it.
func TestTornRecordWithBlocks(t *testing.T) {
	mem := newMem(t)
	o := testOptions(mem)
	l := mustOpen(t, o)
	for range 8 {
		mustAppend(t, l, 1, 1, 300)
		require.NoError(t, l.Sync())
	}
	require.NoError(t, l.Sync())
	l.seal()
	image, err := vfs.ReadFile(mem, segmentPath(1), 1<<20)
	require.NoError(t, err)

	end, at := l.End(), l.segs[0].end
	blocks := image[segmentDataStart:at]
	frames, pos := AppendFrame(nil, end, 1, KindTxn, blocks)
	require.NoError(t, l.Append(frames, pos))
	torn := copyFS(t, mem, testDir)
	overwrite(t, torn, segmentPath(1), at+blockHeaderBytes+8, []byte{1, 2, 3})
	o.FS = torn
	again := mustOpen(t, o)
	require.Equal(t, end, again.End())
	require.True(t, again.recovery.torn)
}

// Open rejects segments of another log, of a newer version and with a wrong name.
func TestOpenRejectsOtherSegments(t *testing.T) {
	image, o, _ := buildCorruption(t)
	other := o
	other.FS, other.LogID = image, [16]byte{9}
	_, err := Open(other)
	require.ErrorIs(t, err, ErrOtherLog)

	newer := copyFS(t, image, testDir)
	header, err := vfs.ReadFile(newer, segmentPath(1), 1<<20)
	require.NoError(t, err)
	header[8] = 2
	putChecksum(header)
	overwrite(t, newer, segmentPath(1), 0, header[:segmentHeaderBytes])
	o.FS = newer
	_, err = Open(o)
	require.ErrorIs(t, err, ErrNewerVersion)
	require.NotErrorIs(t, err, ErrCorrupt)

	renamed := copyFS(t, image, testDir)
	require.NoError(t, renamed.Rename(segmentPath(1), segmentPath(2)))
	o.FS = renamed
	_, err = Open(o)
	require.ErrorIs(t, err, ErrCorrupt)
}

func putChecksum(header []byte) {
	crc := checksum(0, header[:60])
	header[60], header[61], header[62], header[63] = byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24)
}

// A last segment without a header or a first block, which a crash may leave, is a torn tail.
func TestTornRoll(t *testing.T) {
	mem := newMem(t)
	o := testOptions(mem)
	l := mustOpen(t, o)
	for l.counters.rolls.Load() == 0 {
		require.NoError(t, l.Sync())
		mustAppend(t, l, 1, 1, 1000)
	}
	last := listSegments(t, mem)[1]
	for _, lost := range []struct{ from, n int }{
		{0, segmentHeaderBytes},
		{0, 5000},
		{segmentDataStart, 512},
		{0, 8 << 10},
	} {
		clone := copyFS(t, mem, testDir)
		overwrite(t, clone, segmentPath(last), int64(lost.from), make([]byte, lost.n))
		o.FS = clone
		l := mustOpen(t, o)
		require.Equal(t, last-1, l.End().LSN, "%v", lost)
		mustAppend(t, l, 2, 20, 1000)
		end := l.End()
		require.NoError(t, l.Close())
		l = mustOpen(t, o)
		require.Equal(t, end, l.End())
		requireRecords(t, l, 1000)
	}
}

// Open does not read segments before Options.VerifyFrom. Their corruption is reported when they are read.
func TestVerifyFrom(t *testing.T) {
	mem := newMem(t)
	o := testOptions(mem)
	l := mustOpen(t, o)
	for i := range 200 {
		mustAppend(t, l, uint64(1+i/70), 1, 500)
	}
	end, ends := l.End(), l.TermEnds()
	require.NoError(t, l.Close())

	o.VerifyFrom = 180
	l = mustOpen(t, o)
	require.Equal(t, end, l.End())
	require.Equal(t, ends, l.TermEnds())
	require.Less(t, l.recovery.records, uint64(120))
	requireRecords(t, l, 500)
	pos, ok := l.PositionOf(3)
	require.True(t, ok)
	require.EqualValues(t, 3, pos.LSN)
	require.NoError(t, l.Close())

	// Open reads the first segment: its records have another term than the position before them.
	flip(t, mem, segmentPath(listSegments(t, mem)[1]), segmentDataStart+700, 0)
	l = mustOpen(t, o)
	r, err := l.ReadFrom(1)
	if err == nil {
		for err == nil {
			_, err = r.Next()
		}
	}
	require.ErrorIs(t, err, ErrCorrupt)
	require.NoError(t, l.Close())
	o.VerifyFrom = 0
	_, err = Open(o)
	require.ErrorIs(t, err, ErrCorrupt)
}

// Open returns a disk read error unchanged, not as corruption, and truncates nothing.
func TestReadErrorsAreNotCorruption(t *testing.T) {
	image, o, end := buildCorruption(t)
	errDisk := errors.New("disk")
	fault := faultfs.New(image)
	o.FS = fault
	for n := uint64(1); ; n++ {
		start := fault.Count(faultfs.OpRead)
		hit := false
		fault.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.OpRead && op.Count == start+n {
				hit = true
				return errDisk
			}
			return nil
		})
		l, err := Open(o)
		if !hit {
			require.NoError(t, err)
			require.Equal(t, end, l.End())
			require.NoError(t, l.Close())
			break
		}
		require.ErrorIs(t, err, errDisk, "read %d", n)
		require.NotErrorIs(t, err, ErrCorrupt)
	}
	fault.SetHook(nil)
	l := mustOpen(t, o)
	require.Equal(t, end, l.End())
}

// Open removes leftover prepared segments, and keeps unknown files.
func TestOpenRemovesLeftovers(t *testing.T) {
	mem := newMem(t)
	require.NoError(t, mem.MkdirAll(testDir, 0o700))
	for _, name := range []string{"00000000000000000007.new", "00000000000000000008.spare", "unknown.txt"} {
		f, err := mem.OpenFile(testDir+"/"+name, os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(100)) // not the size of a segment
		require.NoError(t, f.Close())
	}
	l := mustOpen(t, testOptions(mem))
	mustAppend(t, l, 1, 1, 1)
	require.NoError(t, l.Close())
	names, err := mem.ReadDir(testDir)
	require.NoError(t, err)
	require.Contains(t, names, "unknown.txt")
	require.NotContains(t, names, "00000000000000000007.new")
	require.NotContains(t, names, "00000000000000000008.spare")
}

func FuzzOpen(f *testing.F) {
	mem := newMem(f)
	o := testOptions(mem)
	o.SegmentBytes = minSegmentBytes
	l := mustOpen(f, o)
	for range 3 {
		mustAppend(f, l, 1, 2, 50)
		require.NoError(f, l.Sync())
	}
	require.NoError(f, l.Close())
	image, err := vfs.ReadFile(mem, segmentPath(1), 1<<20)
	require.NoError(f, err)
	f.Add(image[:4096+700], uint16(0), byte(0), false)
	f.Add(image[:4096+700], uint16(4096+100), byte(1), true)
	f.Add(image[:100], uint16(0), byte(0), true)
	f.Fuzz(func(t *testing.T, segment []byte, at uint16, change byte, fixHeader bool) {
		segment = append(bytes.Clone(segment), make([]byte, 1024)...)
		if int(at) < len(segment) {
			segment[at] ^= change
		}
		if fixHeader {
			putChecksum(segment)
		}
		fsys := newMem(t)
		require.NoError(t, fsys.MkdirAll(testDir, 0o700))
		require.NoError(t, vfs.WriteFileAtomic(fsys, segmentPath(1), segment))
		_, err := Inspect(fsys, testDir, nil)
		require.NoError(t, err)
		o := o
		o.FS = fsys
		l, err := Open(o)
		if err != nil {
			return
		}
		// A log that opens must be usable.
		frames, end := batch(l.End(), l.End().Term, 3, 10)
		require.NoError(t, l.Append(frames, end))
		require.NoError(t, l.Close())
		l, err = Open(o)
		require.NoError(t, err)
		require.Equal(t, end, l.End())
		require.NoError(t, l.Close())
	})
}
