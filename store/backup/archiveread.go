// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

var errStop = errors.New("stop walking the archive")

type archivedLog struct {
	place  Objects
	files  []ArchiveFile
	unseal Unsealer
}

// walkArchive calls fn for each archived record after a position. It verifies that each record continues the previous
// one, and that the first one continues the position. raw contains the bytes of the frame. f and raw are valid until fn
// returns. errStop from fn ends the walk.
//
// at is the position of the last record that fn accepted, or the argument after if fn accepted none. The caller must
// check whether this is the required end. If a gap ended the walk, gap is the LSN at which the archive continues;
// otherwise 0.
func walkArchive(ctx context.Context, log archivedLog, after lsn.Position,
	fn func(f wal.Frame, raw []byte) error,
) (at lsn.Position, gap uint64, err error) {
	at = after
	for i := range log.files {
		f := &log.files[i]
		if f.Last.LSN <= at.LSN {
			continue
		}
		if f.First() > at.LSN+1 {
			return at, f.First(), nil
		}
		at, err = walkFile(ctx, log, f, at, fn)
		if errors.Is(err, errStop) {
			return at, 0, nil
		}
		if err != nil {
			return at, 0, err
		}
	}
	return at, 0, nil
}

func walkFile(ctx context.Context, log archivedLog, a *ArchiveFile, after lsn.Position,
	fn func(f wal.Frame, raw []byte) error,
) (lsn.Position, error) {
	at := after
	prev := a.Before
	if prev.LSN == after.LSN && prev != after {
		return at, otherHistory(a.Path, prev, after)
	}
	err := eachFrame(ctx, log.place, a, log.unseal, func(f wal.Frame, raw []byte) error {
		if f.Pos.LSN == after.LSN && f.Pos != after {
			return otherHistory(a.Path, f.Pos, after)
		}
		if f.Pos.LSN <= after.LSN {
			return nil
		}
		if err := fn(f, raw); err != nil {
			return err
		}
		at = f.Pos
		return nil
	})
	return at, err
}

func otherHistory(path string, archived, have lsn.Position) error {
	return fmt.Errorf("%w: %s has %v, expected %v", ErrOtherHistory, path, archived, have)
}

func eachFrame(
	ctx context.Context, place Objects, a *ArchiveFile, with Unsealer, fn func(f wal.Frame, raw []byte) error,
) error {
	file, err := place.Open(ctx, a.name)
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	defer func() { _ = file.Close() }() // read-only: nothing can be lost
	left := a.Bytes - 2*archiveEnds
	var frames io.ReaderAt = io.NewSectionReader(file, archiveEnds, left)
	if a.Encrypted {
		if frames, left, err = unseal(frames, left, a.Path, nil, with); err != nil {
			return err
		}
	}
	in := bufio.NewReaderSize(io.NewSectionReader(frames, 0, left), packWriteBytes)
	prev := a.Before
	var raw []byte
	for left > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		head, err := in.Peek(4)
		if err != nil {
			return unreadable(a, prev, err)
		}
		length := binary.LittleEndian.Uint32(head)
		if length > wal.MaxPayloadBytes || int64(wal.FrameBytes(int(length))) > left {
			return corruptArchive(a, prev, fmt.Errorf("invalid length of %d bytes", length))
		}
		size := wal.FrameBytes(int(length))
		raw = slices.Grow(raw[:0], size)[:size]
		if _, err := io.ReadFull(in, raw); err != nil {
			return unreadable(a, prev, err)
		}
		f, _, err := wal.DecodeFrame(raw, prev)
		if err != nil {
			return corruptArchive(a, prev, err)
		}
		if err := fn(f, raw); err != nil {
			return err
		}
		prev = f.Pos
		left -= int64(size)
	}
	if prev != a.Last {
		return corruptArchive(a, prev, errors.New("unexpected last record"))
	}
	return nil
}

// unreadable wraps err in ErrArchiveCorrupt, unless err is unrelated to the content.
func unreadable(a *ArchiveFile, prev lsn.Position, err error) error {
	if isUnreadable(err) {
		return fmt.Errorf("read archive: %w", err)
	}
	return corruptArchive(a, prev, err)
}

func corruptArchive(a *ArchiveFile, prev lsn.Position, err error) error {
	return fmt.Errorf("%w: %s, after record %v: %w", ErrArchiveCorrupt, a.Path, prev, err)
}

// ArchiveChain describes a contiguous part of an archive.
type ArchiveChain struct {
	Before, Last lsn.Position
	Files        int
	Bytes        int64
}

// VerifyArchive reads a whole archive and returns its chains. If it returns several chains, the archive is not
// contiguous: it usually has gaps between them. Errors include ErrArchiveCorrupt, ErrNewerVersion, ErrEncrypted (for
// a nil Unsealer), ErrIdentity, ErrRemote and the error of ctx.
func VerifyArchive(ctx context.Context, place Objects, with Unsealer) ([]ArchiveChain, error) {
	files, err := listArchive(ctx, place, 0)
	if err != nil {
		return nil, err
	}
	var chains []ArchiveChain
	for i := range files {
		f := &files[i]
		if err := eachFrame(ctx, place, f, with, func(wal.Frame, []byte) error { return nil }); err != nil {
			return chains, err
		}
		if n := len(chains); n == 0 || chains[n-1].Last != f.Before {
			chains = append(chains, ArchiveChain{Before: f.Before})
		}
		c := &chains[len(chains)-1]
		c.Last = f.Last
		c.Files++
		c.Bytes += f.Bytes
	}
	return chains, nil
}
