// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// A block contains the frames of one Append, or is a seal. It begins at a multiple of 8:
//
//	 0       4       8        12      16           24          32
//	+-------+-------+--------+-------+------------+-----------+--------+
//	| magic | crc   | length | flags | durable    | first     | frames |
//	| u32   | u32   | u32    | u32   | LSN u64    | LSN u64   | length |
//	+-------+-------+--------+-------+------------+-----------+--------+
//
// Bit 0 of flags marks a seal. The other bits contain first LSN - commit LSN. These bits are 0 if no record was known
// to be committed, or if the difference does not fit. The commit LSN is the LSN of the last record known to be
// committed when the block was written (INV-13). It is less than the first LSN. Releases before INV-13 wrote 0 and
// ignore these bits.
//
// durable LSN is the LSN of the last record known to be durable when the block was written. crc is the CRC32C of
// bytes 8 to 31. Its initial value is derived from the log id, the first LSN of the segment and the offset of the
// block in the file: block headers left from an earlier use of the segment file are invalid. A block without frames
// is a seal.
const (
	blockMagic       = 0x4b424c6c // "lLBK"
	blockHeaderBytes = 32
	blockFlagSeal    = 1
	blockCommitShift = 1
	maxCommitBehind  = 1<<(32-blockCommitShift) - 1
)

type blockHeader struct {
	length       uint32 // of the frames, in bytes
	seal         bool
	durableLSN   uint64
	firstLSN     uint64 // of the first frame; in a seal, of the next record
	committedLSN uint64 // less than firstLSN; 0 if unknown
}

func (h blockHeader) flags() (flags uint32) {
	if h.seal {
		flags = blockFlagSeal
	}
	if behind := h.firstLSN - h.committedLSN; h.committedLSN > 0 && behind <= maxCommitBehind {
		flags |= uint32(behind) << blockCommitShift
	}
	return flags
}

// setFlags sets the fields of h that are encoded in flags. h.firstLSN must already be set.
func (h *blockHeader) setFlags(flags uint32) {
	h.seal = flags&blockFlagSeal != 0
	if behind := uint64(flags >> blockCommitShift); behind > 0 && behind < h.firstLSN {
		h.committedLSN = h.firstLSN - behind
	}
}

var errNoBlock = errors.New("no block at this position")

func segmentSeed(logID [16]byte, first uint64) uint32 {
	var b [24]byte
	copy(b[:], logID[:])
	binary.LittleEndian.PutUint64(b[16:], first)
	return checksum(0, b[:])
}

// encode writes the header to scratch, which must have blockHeaderBytes bytes or more.
func (h blockHeader) encode(scratch []byte, seed uint32, offset int64) {
	binary.LittleEndian.PutUint32(scratch[0:], blockMagic)
	binary.LittleEndian.PutUint32(scratch[8:], h.length)
	binary.LittleEndian.PutUint32(scratch[12:], h.flags())
	binary.LittleEndian.PutUint64(scratch[16:], h.durableLSN)
	binary.LittleEndian.PutUint64(scratch[24:], h.firstLSN)
	binary.LittleEndian.PutUint32(scratch[4:], blockChecksum(scratch, seed, offset))
}

func blockChecksum(b []byte, seed uint32, offset int64) uint32 {
	// Different initial values never result in the same checksum for the same bytes.
	crc := seed ^ uint32(offset) ^ uint32(offset>>32)*0x9e3779b1
	return checksum(crc, b[8:blockHeaderBytes])
}

func decodeBlockHeader(b []byte, seed uint32, offset int64) (blockHeader, error) {
	if len(b) < blockHeaderBytes || binary.LittleEndian.Uint32(b) != blockMagic ||
		binary.LittleEndian.Uint32(b[4:]) != blockChecksum(b, seed, offset) {
		return blockHeader{}, errNoBlock
	}
	h := blockHeader{
		length:     binary.LittleEndian.Uint32(b[8:]),
		durableLSN: binary.LittleEndian.Uint64(b[16:]),
		firstLSN:   binary.LittleEndian.Uint64(b[24:]),
	}
	h.setFlags(binary.LittleEndian.Uint32(b[12:]))
	if h.length%frameAlign != 0 || h.durableLSN >= h.firstLSN {
		return blockHeader{}, errNoBlock
	}
	return h, nil
}

type blockInfo struct {
	first, last lsn.Position
	firstPrev   uint32
	maxPayload  int
}

// walkFrames reads the headers of frames and verifies that the frames follow the position prev, but does not verify
// checksums. It calls termEnd with the last position of each term that ends within the frames or directly before
// them.
func walkFrames(frames []byte, prev lsn.Position, termEnd func(lsn.Position)) (blockInfo, error) {
	var info blockInfo
	for last := prev; len(frames) > 0; {
		h, size, err := frameHeader(frames)
		if err != nil {
			return info, err
		}
		if size > len(frames) {
			return info, fmt.Errorf("%w: %d bytes are missing", ErrShortFrame, size-len(frames))
		}
		if h.pos.LSN != last.LSN+1 || h.prevCRC != last.Chain || h.pos.Term < last.Term {
			return info, fmt.Errorf("%w: %s after checksum %08x does not follow %s", ErrChain, h.pos, h.prevCRC, last)
		}
		if info.first.LSN == 0 {
			info.first, info.firstPrev = h.pos, h.prevCRC
		}
		if h.pos.Term != last.Term && last.LSN > 0 {
			termEnd(last)
		}
		info.maxPayload = max(info.maxPayload, h.length)
		info.last, last = h.pos, h.pos
		frames = frames[size:]
	}
	return info, nil
}
