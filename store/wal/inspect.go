// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Item is a record or seal that Inspect found in a segment.
type Item struct {
	// Segment is the path of the file, Offset the position of the frame, or of the seal's block, in the file.
	Segment string
	Offset  int64
	// DurableLSN and CommittedLSN are taken from the block header; 0 means none.
	DurableLSN   uint64
	CommittedLSN uint64
	// Seal reports whether the item is an empty block, which has no Frame. Frame is valid until the visitor returns.
	Seal  bool
	Frame Frame
}

// SegmentInfo describes one segment file.
type SegmentInfo struct {
	Name string // path of the file
	// First is the LSN of the first record, Prev the position before it, Last the position of the last readable record.
	First                uint64
	Prev, Last           lsn.Position
	SizeBytes, UsedBytes int64
	Records, Seals       uint64
	// Stop is the error at the end of the readable part, at StopOffset, where record StopLSN was expected; nil if no
	// block follows.
	Stop       error
	StopOffset int64
	StopLSN    uint64
	// ProofLSN is the highest durable LSN in a block after StopOffset, PromisedLSN the highest one in a readable block.
	// If Stop is set and ProofLSN is at least StopLSN, the log is corrupt.
	ProofLSN    uint64
	PromisedLSN uint64
}

// Report describes a log.
type Report struct {
	LogID [16]byte
	// Segments lists the segments, oldest first, including those that do not continue the previous one.
	Segments            []SegmentInfo
	End                 lsn.Position // position of the last readable record before a gap
	InterruptedTruncate bool         // set if Open would first complete a TruncateAfter or Reset
	// Problem is the error that Open would return for the segments, or nil. A torn tail is not a problem. An interrupted
	// TruncateAfter or Reset is not considered.
	Problem error
}

// Inspect reads the log of a closed store. After unreadable data it continues with the next segment. It calls visit,
// which may be nil, for every readable record and seal in file order. It returns the first error of visit, or an error
// if the directory or a file cannot be read.
func Inspect(fsys vfs.FS, dir string, visit func(Item) error) (Report, error) {
	var report Report
	names, err := fsys.ReadDir(dir)
	if err != nil {
		return report, fmt.Errorf("listing the log directory: %w", err)
	}
	haveID := false
	for _, name := range names {
		if name == truncateFile {
			report.InterruptedTruncate = true
		}
		if _, ok := parseName(name, segmentSuffix); !ok {
			continue
		}
		info, header, err := inspectSegment(fsys, filepath.Join(dir, name), report.LogID, visit)
		if err != nil {
			return report, err
		}
		if !haveID && header.first != 0 {
			report.LogID, haveID = header.logID, true
		}
		report.Segments = append(report.Segments, info)
	}
	report.evaluate()
	return report, nil
}

// InspectFile is like Inspect for one segment file, such as a tail saved by TruncateAfter.
func InspectFile(fsys vfs.FS, path string, visit func(Item) error) (SegmentInfo, error) {
	info, _, err := inspectSegment(fsys, path, [16]byte{}, visit)
	return info, err
}

// inspectSegment reads one segment file for Inspect and InspectFile. It uses logID to search for block headers if the
// segment's header is unreadable.
func inspectSegment(
	fsys vfs.FS, path string, logID [16]byte, visit func(Item) error,
) (SegmentInfo, segmentHeader, error) {
	info := SegmentInfo{Name: path}
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return info, segmentHeader{}, fmt.Errorf("opening a log segment: %w", err)
	}
	defer func() { _ = f.Close() }() // read-only: nothing can be lost
	if info.SizeBytes, err = f.SizeBytes(); err != nil {
		return info, segmentHeader{}, fmt.Errorf("reading the size of log segment %s: %w", path, err)
	}
	header, err := readSegmentHeader(f)
	var ioErr *fs.PathError
	switch {
	case errors.As(err, &ioErr):
		return info, header, err
	case err != nil:
		info.First, _ = parseName(filepath.Base(path), segmentSuffix)
		info.Stop, info.StopLSN = err, info.First
		found, err := searchBlocks(f, segmentSeed(logID, info.First), segmentDataStart, info.SizeBytes, info.First)
		info.ProofLSN = found.proofLSN
		return info, header, err
	}
	info.First, info.Prev = header.first, header.prev
	seed := segmentSeed(header.logID, header.first)
	end, err := scanSegment(f, seed, info.SizeBytes, header.prev,
		func(offset int64, h blockHeader, frames []byte) error {
			if h.length == 0 {
				info.Seals++
			}
			item := Item{
				Segment: path, Offset: offset, DurableLSN: h.durableLSN, CommittedLSN: h.committedLSN,
				Seal: h.length == 0,
			}
			return visitBlock(item, frames, visit)
		})
	if err != nil {
		return info, header, err
	}
	info.Last, info.UsedBytes, info.Records, info.PromisedLSN = end.last, end.offset, end.records, end.marked
	found, err := searchBlocks(f, seed, min(end.offset, info.SizeBytes), info.SizeBytes, end.last.LSN+1)
	if err != nil {
		return info, header, fmt.Errorf("reading log segment %s: %w", path, err)
	}
	if info.ProofLSN = found.proofLSN; found.end > 0 || !errors.Is(end.err, errNoBlock) {
		info.Stop, info.StopOffset, info.StopLSN = end.err, end.badOffset, end.badLSN
	}
	return info, header, nil
}

func visitBlock(item Item, frames []byte, visit func(Item) error) error {
	if visit == nil {
		return nil
	}
	if item.Seal {
		return visit(item)
	}
	item.Offset += blockHeaderBytes
	for rest := frames; len(rest) > 0; {
		h, size, err := frameHeader(rest)
		if err != nil {
			return err
		}
		item.Frame = Frame{Pos: h.pos, Kind: h.kind, Payload: rest[FrameHeaderBytes : FrameHeaderBytes+h.length]}
		if err := visit(item); err != nil {
			return err
		}
		item.Offset += int64(size)
		rest = rest[size:]
	}
	return nil
}

func (r *Report) evaluate() {
	if len(r.Segments) == 0 {
		return
	}
	first := r.Segments[0]
	if first.Last.IsZero() && first.Stop != nil && first.UsedBytes == 0 {
		r.Problem = first.Stop
		if errors.Is(first.Stop, errNoSegmentHeader) {
			r.Problem = &CorruptError{Segment: first.Name, LSN: first.First, Err: first.Stop}
		}
		return
	}
	at := 0
	for at+1 < len(r.Segments) && r.Segments[at+1].UsedBytes > 0 && r.Segments[at+1].Prev == r.Segments[at].Last {
		at++
	}
	stop := r.Segments[at]
	r.End = stop.Last
	var proof uint64
	for _, s := range r.Segments[at:] {
		proof = max(proof, s.ProofLSN, s.PromisedLSN)
	}
	if proof <= r.End.LSN {
		return
	}
	d := &CorruptError{
		Segment: stop.Name, Offset: stop.StopOffset, LSN: stop.StopLSN, DurableLSN: proof,
		Err: stop.Stop,
	}
	if stop.Stop == nil {
		d.Offset, d.LSN, d.Err = stop.UsedBytes, r.End.LSN+1, errNoBlock
	}
	if at+1 < len(r.Segments) && r.Segments[at+1].First == d.LSN {
		d.Segment, d.Offset, d.Err = r.Segments[at+1].Name, 0, errNoSegmentHeader
	}
	r.Problem = d
}
