// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// A segment is a file <first LSN, 20 digits>.seg. Its header, at 0, little endian:
//
//	 0          8         12      16       32          40         48         56      60     64
//	+----------+---------+-------+--------+-----------+----------+----------+-------+------+
//	| LSLOGSEG | version | 0     | log id | first LSN | previous: term, LSN, crc    | crc  |
//	| 8 bytes  | u32     | u32   | 16     | u64       | u64        u64        u32   | u32  |
//	+----------+---------+-------+--------+-----------+----------+----------+-------+------+
//
// crc is the CRC32C of bytes 0 to 59. previous is the position of the last record before the segment. Blocks begin at
// 4096.
const (
	segmentMagic       = "LSLOGSEG"
	segmentVersion     = 1
	segmentHeaderBytes = 64
	segmentDataStart   = 4096
	segmentSuffix      = ".seg"
	spareSuffix        = ".spare" // a file that is ready to become a segment
	unfinishedSuffix   = ".new"   // a file in preparation
)

// segment is an open segment of the log. Fields marked as guarded are guarded by Log.mu.
type segment struct {
	first     uint64
	prev      lsn.Position
	seed      uint32
	path      string
	file      vfs.File
	sizeBytes int64 // guarded

	// guarded: the offset after the last block; the file size while indexed is false
	end          int64
	last         lsn.Position // guarded: prev if empty
	index        []indexEntry // guarded: some of the blocks
	indexed      bool         // guarded: end and index are known
	trimmed      bool         // guarded: removed from the log; its file may be overwritten
	headerSynced bool         // guarded: its header and its name are durable
	// reused is set if the file was a segment before, or was filled with zeros: all its disk blocks are allocated.
	reused bool
}

type indexEntry struct {
	first  uint64
	offset int64
}

// indexEvery is the minimum distance between blocks in the index.
const indexEvery = 64 << 10

// empty reports whether the segment has no records; it may have a seal.
func (s *segment) empty() bool { return s.last.LSN < s.first }

func (s *segment) addBlock(first uint64, offset int64) {
	if n := len(s.index); n == 0 || offset-s.index[n-1].offset >= indexEvery {
		s.index = append(s.index, indexEntry{first: first, offset: offset})
	}
}

// seek returns the last indexed block that begins at or before the record. The segment must be indexed.
func (s *segment) seek(record uint64) indexEntry {
	i := sort.Search(len(s.index), func(i int) bool { return s.index[i].first > record })
	if i == 0 {
		return indexEntry{first: s.first, offset: segmentDataStart}
	}
	return s.index[i-1]
}

// FirstSegment is the file name of the segment with LSN 1. While it exists, no record has been trimmed from the log.
const FirstSegment = "00000000000000000001" + segmentSuffix

func segmentName(first uint64) string { return fmt.Sprintf("%020d%s", first, segmentSuffix) }

// IsLogFile reports whether a file with this name belongs to a log.
func IsLogFile(name string) bool {
	for _, suffix := range []string{segmentSuffix, spareSuffix, unfinishedSuffix} {
		if _, ok := parseName(name, suffix); ok {
			return true
		}
	}
	return name == truncateFile || name == truncateFile+".tmp"
}

func parseName(name, suffix string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

type segmentHeader struct {
	logID [16]byte
	first uint64
	prev  lsn.Position
}

var errNoSegmentHeader = errors.New("segment header is unreadable")

func (h segmentHeader) encode() []byte {
	b := make([]byte, segmentHeaderBytes)
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint32(b[8:], segmentVersion)
	copy(b[16:], h.logID[:])
	binary.LittleEndian.PutUint64(b[32:], h.first)
	binary.LittleEndian.PutUint64(b[40:], h.prev.Term)
	binary.LittleEndian.PutUint64(b[48:], h.prev.LSN)
	binary.LittleEndian.PutUint32(b[56:], h.prev.Chain)
	binary.LittleEndian.PutUint32(b[60:], checksum(0, b[:60]))
	return b
}

func decodeSegmentHeader(b []byte) (segmentHeader, error) {
	if len(b) < segmentHeaderBytes || string(b[:8]) != segmentMagic ||
		checksum(0, b[:60]) != binary.LittleEndian.Uint32(b[60:]) {
		return segmentHeader{}, errNoSegmentHeader
	}
	if version := binary.LittleEndian.Uint32(b[8:]); version != segmentVersion {
		return segmentHeader{}, fmt.Errorf("%w: format %d, this program supports format %d; use the newer program",
			ErrNewerVersion, version, segmentVersion)
	}
	h := segmentHeader{
		logID: [16]byte(b[16:32]),
		first: binary.LittleEndian.Uint64(b[32:]),
		prev: lsn.Position{
			Term:  binary.LittleEndian.Uint64(b[40:]),
			LSN:   binary.LittleEndian.Uint64(b[48:]),
			Chain: binary.LittleEndian.Uint32(b[56:]),
		},
	}
	if h.first != h.prev.LSN+1 {
		return segmentHeader{}, errNoSegmentHeader
	}
	return h, nil
}

// readSegmentHeader reads and verifies a segment's header. If the file has the name of a segment, the header must match
// it.
func readSegmentHeader(f vfs.File) (segmentHeader, error) {
	b := make([]byte, segmentHeaderBytes)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return segmentHeader{}, fmt.Errorf("reading the header of log segment %s: %w", f.Name(), err)
	}
	h, err := decodeSegmentHeader(b[:n])
	if err != nil {
		return segmentHeader{}, err
	}
	if first, ok := parseName(filepath.Base(f.Name()), segmentSuffix); ok && first != h.first {
		return segmentHeader{}, errNoSegmentHeader
	}
	return h, nil
}

type window struct {
	file  vfs.File
	chunk int
	buf   []byte
	start int64
	n     int
}

// at returns n bytes at the offset, valid until the next call. It reads ahead, but not beyond limit.
func (w *window) at(offset int64, n int, limit int64) ([]byte, error) {
	if from := offset - w.start; from >= 0 && from+int64(n) <= int64(w.n) {
		return w.buf[from : from+int64(n)], nil
	}
	want := int(min(int64(max(n, w.chunk)), limit-offset))
	if cap(w.buf) < want {
		w.buf = make([]byte, want)
	}
	w.start, w.n = offset, 0
	got, err := w.file.ReadAt(w.buf[:want], offset)
	if got < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	w.n = got
	return w.buf[:n], nil
}

func (w *window) reset(file vfs.File) { w.file, w.start, w.n = file, 0, 0 }

const scanChunk = 1 << 20

// scanEnd is the end of the readable part of a segment.
type scanEnd struct {
	offset    int64        // of the first missing or incomplete block
	last      lsn.Position // last position in a complete block
	marked    uint64       // highest durable LSN in a block header
	records   uint64
	committed uint64 // highest commit LSN in a complete block

	// err is errNoBlock if offset has no block header, otherwise the error of the incomplete block.
	err       error
	badOffset int64
	badLSN    uint64
	torn      int64 // size of the incomplete block, according to its header
}

// scanSegment reads and verifies a segment. It calls block, which may be nil, for each valid block, and returns a read
// error or an error of block. Invalid data ends the scan without an error.
func scanSegment(file vfs.File, seed uint32, sizeBytes int64, prev lsn.Position,
	block func(offset int64, h blockHeader, frames []byte) error,
) (scanEnd, error) {
	w := window{file: file, chunk: scanChunk}
	end := scanEnd{offset: segmentDataStart, last: prev}
	for {
		end.err, end.badOffset, end.badLSN = errNoBlock, end.offset, end.last.LSN+1
		if end.offset+blockHeaderBytes > sizeBytes {
			return end, nil
		}
		b, err := w.at(end.offset, blockHeaderBytes, sizeBytes)
		if err != nil {
			return end, err
		}
		h, err := decodeBlockHeader(b, seed, end.offset)
		if err != nil || h.firstLSN != end.last.LSN+1 {
			return end, nil //nolint:nilerr // no block of this log: the blocks end here (end.err)
		}
		frames, size := end.offset+blockHeaderBytes, int64(h.length)
		if frames+size > sizeBytes {
			end.err, end.torn = ErrShortFrame, blockHeaderBytes+size
			return end, nil
		}
		b, err = w.at(frames, int(size), sizeBytes)
		if err != nil {
			return end, err
		}
		if !end.verify(b, h) {
			return end, nil
		}
		if block != nil {
			if err := block(end.offset, h, b); err != nil {
				return end, err
			}
		}
		end.marked, end.committed = max(end.marked, h.durableLSN), max(end.committed, h.committedLSN)
		end.offset = frames + size
	}
}

func (e *scanEnd) verify(frames []byte, h blockHeader) bool {
	last, at := e.last, e.offset+blockHeaderBytes
	for rest := frames; len(rest) > 0; {
		f, next, err := DecodeFrame(rest, last)
		if err != nil {
			e.err, e.badOffset, e.badLSN, e.torn = err, at, last.LSN+1, blockHeaderBytes+int64(h.length)
			return false
		}
		at += int64(len(rest) - len(next))
		last, rest = f.Pos, next
	}
	e.records += last.LSN - e.last.LSN
	e.last = last
	return true
}

// leftover describes the data after the position at which reading stopped.
type leftover struct {
	proofLSN uint64 // highest durable LSN in a block of that data
	end      int64  // end of the last block of that data
}

// searchBlocks searches the file from the given offset on for block headers with a first LSN of at least record.
func searchBlocks(file vfs.File, seed uint32, from, sizeBytes int64, record uint64) (leftover, error) {
	var found leftover
	var magic [4]byte
	binary.LittleEndian.PutUint32(magic[:], blockMagic)
	buf := make([]byte, scanChunk)
	for at := from; at < sizeBytes; {
		n, err := file.ReadAt(buf[:min(int64(len(buf)), sizeBytes-at)], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return found, err
		}
		b := buf[:n]
		for i := 0; ; i++ {
			next := bytes.Index(b[i:], magic[:])
			if next < 0 {
				break
			}
			i += next
			offset := at + int64(i)
			if offset%frameAlign != 0 {
				continue
			}
			if h, err := decodeBlockHeader(b[i:], seed, offset); err == nil && h.firstLSN >= record {
				found.proofLSN = max(found.proofLSN, h.durableLSN)
				found.end = max(found.end, min(offset+blockHeaderBytes+int64(h.length), sizeBytes))
			}
		}
		if n < len(buf) {
			break
		}
		at += int64(n - blockHeaderBytes) // a header may cross the chunk boundary
	}
	return found, nil
}

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
