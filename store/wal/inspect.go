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

// Item is one thing that Inspect found in a segment: a record, or a seal.
type Item struct {
	// Segment is the file and Offset where in it the frame (of a seal, the block) begins, in bytes.
	Segment string
	Offset  int64
	// DurableLSN is what the header of the block promises.
	DurableLSN uint64
	// CommittedLSN is the record up to which the header of the block says that all are committed; 0 if it does not say.
	CommittedLSN uint64
	// Seal tells that this is an empty block; Frame is not set then.
	Seal bool
	// Frame is the record. Its payload is valid until the visitor returns.
	Frame Frame
}

// SegmentInfo is what Inspect tells about one file.
type SegmentInfo struct {
	// Name is the file.
	Name string
	// First is the first record that it is made for, Prev the position before it, Last that of the last readable
	// record.
	First      uint64
	Prev, Last lsn.Position
	// SizeBytes is the size of the file, UsedBytes how much of it could be read.
	SizeBytes, UsedBytes int64
	// Records and Seals count what could be read.
	Records, Seals uint64
	// Stop says what is wrong behind the part that could be read; nil if nothing is there.
	Stop error
	// StopOffset and StopLSN say where that is and which record it should be.
	StopOffset int64
	StopLSN    uint64
	// ProofLSN is the highest record that a block behind that place promises to have been durable: from StopLSN on, it
	// is damage.
	ProofLSN uint64
	// PromisedLSN is the highest that a readable block promises.
	PromisedLSN uint64
}

// Report is what Inspect tells about a log.
type Report struct {
	// LogID is the id in the first readable header.
	LogID [16]byte
	// Segments are the files, oldest first, also those that do not continue the one before.
	Segments []SegmentInfo
	// End is the last record that could be read, from the first one on without a gap.
	End lsn.Position
	// InterruptedCut tells that Open would complete a TruncateAfter or Reset first.
	InterruptedCut bool
	// Problem is the error that Open would fail with, nil if it would not. A torn tail is none.
	Problem error
}

// Inspect reads the log in a directory, of a store that is not open, without changing anything. It goes on behind what
// it cannot read, in the next segment. visit is called for every record and seal, in the order of the files; it may be
// nil. An error that visit returns ends it; any other error means that the directory cannot be read.
func Inspect(fsys vfs.FS, dir string, visit func(Item) error) (Report, error) {
	var report Report
	names, err := fsys.ReadDir(dir)
	if err != nil {
		return report, fmt.Errorf("listing the log directory: %w", err)
	}
	haveID := false
	for _, name := range names {
		if name == cutFile {
			report.InterruptedCut = true
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
	report.judge()
	return report, nil
}

// InspectFile does the same for one segment, such as the tail that TruncateAfter kept aside.
func InspectFile(fsys vfs.FS, path string, visit func(Item) error) (SegmentInfo, error) {
	info, _, err := inspectSegment(fsys, path, [16]byte{}, visit)
	return info, err
}

// inspectSegment reads one segment. logID is used to look for promises in one whose header cannot be read.
func inspectSegment(
	fsys vfs.FS, path string, logID [16]byte, visit func(Item) error,
) (SegmentInfo, segmentHeader, error) {
	info := SegmentInfo{Name: path}
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return info, segmentHeader{}, fmt.Errorf("opening a log segment: %w", err)
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing can be lost
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

// visitBlock shows the records of a block, or the seal, to the visitor.
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

// judge finds out what Open would say.
func (r *Report) judge() {
	if len(r.Segments) == 0 {
		return
	}
	first := r.Segments[0]
	if first.Last.IsZero() && first.Stop != nil && first.UsedBytes == 0 {
		r.Problem = first.Stop
		if errors.Is(first.Stop, errNoSegmentHeader) {
			r.Problem = &DamagedError{Segment: first.Name, LSN: first.First, Err: first.Stop}
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
	d := &DamagedError{
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
