// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// Inspect reports all records, seals and segments of a log, and does not change it.
func TestInspect(t *testing.T) {
	image, o, end := buildCorruption(t)
	before := copyFS(t, image, testDir)
	fault := faultfs.New(image)
	fault.SetHook(func(op faultfs.Op) error {
		require.NotContains(t, []faultfs.OpKind{
			faultfs.OpWrite, faultfs.OpCreate, faultfs.OpRename, faultfs.OpRemove,
			faultfs.OpTruncate,
		},
			op.Kind, "no changes")
		return nil
	})
	next, seals := uint64(1), 0
	report, err := Inspect(fault, testDir, func(i Item) error {
		if i.Seal {
			seals++
			require.Equal(t, end.LSN, i.DurableLSN)
			return nil
		}
		require.Equal(t, next, i.Frame.Pos.LSN)
		require.Equal(t, payload(1, next, 300), i.Frame.Payload)
		require.Less(t, i.DurableLSN, next)
		next++
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, report.Problem)
	require.Equal(t, end, report.End)
	require.Equal(t, o.LogID, report.LogID)
	require.Equal(t, end.LSN+1, next)
	require.Equal(t, 1, seals)
	require.Len(t, report.Segments, len(listSegments(t, image)))
	_, err = Inspect(fault, testDir, func(Item) error { return errDisk })
	require.ErrorIs(t, err, errDisk)
	_, err = Inspect(fault, "nowhere", nil)
	require.Error(t, err)
	require.Equal(t, listSegments(t, before), listSegments(t, image))
}

// Inspect and Open agree on whether and where a log is corrupt, and Inspect returns the readable records after the
// corruption.
func TestInspectAgreesWithOpen(t *testing.T) {
	image, o, end := buildCorruption(t)
	segs := listSegments(t, image)
	for _, first := range segs {
		info, err := InspectFile(image, segmentPath(first), nil)
		require.NoError(t, err)
		for offset := int64(3); offset < info.UsedBytes; offset += 61 {
			if offset >= segmentHeaderBytes && offset < segmentDataStart {
				offset = segmentDataStart
			}
			corrupt := copyFS(t, image, testDir)
			flip(t, corrupt, segmentPath(first), offset, 3)
			seen := 0
			report, err := Inspect(corrupt, testDir, func(Item) error { seen++; return nil })
			require.NoError(t, err)
			require.GreaterOrEqual(t, seen, int(end.LSN)/len(segs)/2)
			o.FS = corrupt
			l, err := Open(o)
			if err == nil {
				require.NoError(t, report.Problem)
				require.Equal(t, l.End(), report.End)
				require.NoError(t, l.Close())
				continue
			}
			var want, got *CorruptError
			require.ErrorAs(t, err, &want)
			require.ErrorAs(t, report.Problem, &got, "segment %d, offset %d", first, offset)
			require.Equal(t, want.LSN, got.LSN)
			require.Equal(t, want.Segment, got.Segment)
			require.Equal(t, want.Offset, got.Offset)
			require.Equal(t, want.DurableLSN, got.DurableLSN)
		}
	}
}

// Inspect reports the end of the log before a torn tail, which is not corruption.
func TestInspectTornTail(t *testing.T) {
	mem := newMem(t)
	l := mustOpen(t, testOptions(mem))
	mustAppend(t, l, 1, 2, 100)
	require.NoError(t, l.Sync())
	safe, at := l.End(), l.segs[0].end
	mustAppend(t, l, 1, 2, 100)
	torn := copyFS(t, mem, testDir)
	flip(t, torn, segmentPath(1), at+50, 1)
	report, err := Inspect(torn, testDir, nil)
	require.NoError(t, err)
	require.NoError(t, report.Problem)
	require.Equal(t, safe, report.End)
	require.ErrorIs(t, report.Segments[0].Stop, ErrBadFrame)
	require.EqualValues(t, 3, report.Segments[0].StopLSN)
}
