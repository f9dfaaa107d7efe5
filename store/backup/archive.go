// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// A file of the archive is named <first LSN>-<last LSN>.frames, with 20 digits each. Its content is little endian:
//
//	 0          8         12   16         32                       52   56   60    64
//	+----------+---------+----+----------+------------------------+----+----+-----+
//	| LSARCHIV | version | 0  | store id | before: term, LSN, crc | 0  | 0  | crc |
//	| 8 bytes  | u32     |u32 | 16       | u64      u64   u32     |u32 |u32 | u32 |
//	+----------+---------+----+----------+------------------------+----+----+-----+
//	| frames, as they are in the log                                              |
//	+----------+---------+------------------------+-----+------------+------------+----+-----+
//	| LSARCEND | records | last: term, LSN, crc   | 0   | first time | last time  | 0  | crc |
//	| 8 bytes  | u64     | u64     u64    u32     | u32 | ms i64     | ms i64     |u32 | u32 |
//	+----------+---------+------------------------+-----+------------+------------+----+-----+
//
// version is 1, or 2 if the frames are encrypted as one age file (age-encryption.org/v1). The head and tail are
// never encrypted, so that an Archiver can continue an archive that it cannot decrypt. before is the position before
// the first frame. first time and last time are the times of the first and the last transaction in the file, or 0 if
// the file contains none. crc is the CRC32C of the 60 bytes before it. The checksums of frames are chained: file B
// continues file A if before of B equals last of A.
//
// The marker gap-<LSN>, with 20 digits, means that the archive lacks records before this LSN, and that no backup made
// since by this node contains them. An Archiver writes it before the file that begins with this LSN, and deletes it
// after such a backup. It also marks the start of an archive that replaces one of another history, unless the start is
// LSN 1.
const (
	archiveMagic    = "LSARCHIV"
	archiveEndMagic = "LSARCEND"
	archiveVersion  = 1
	sealedArchive   = 2
	archiveEnds     = 64 // length of head and tail
	archiveSuffix   = ".frames"
	gapPrefix       = "gap-"
	// previousArchiveTmp is the suffix of unfinished files of releases up to 0.3.
	previousArchiveTmp = ".new" + archiveSuffix
)

// ArchiveFile is a file of the archive.
type ArchiveFile struct {
	Path  string
	Bytes int64
	// Encrypted reports whether an identity is required to read the records.
	Encrypted bool
	StoreID   [16]byte
	// Before is the position before the first record. Last is the position of the last record.
	Before, Last lsn.Position
	Records      uint64
	// FirstTime and LastTime are the times of the first and the last transaction; zero if the file contains none.
	FirstTime, LastTime time.Time

	name string // in its location
}

// First returns the LSN of the first record.
func (f *ArchiveFile) First() uint64 { return f.Before.LSN + 1 }

func archiveName(first, last uint64) string {
	return fmt.Sprintf("%020d-%020d%s", first, last, archiveSuffix)
}

func parseArchiveName(name string) (first, last uint64, ok bool) {
	m := regexp.MustCompile(`^(\d{20})-(\d{20})` + regexp.QuoteMeta(archiveSuffix) + `$`).FindStringSubmatch(name)
	if m == nil {
		return 0, 0, false
	}
	first, err1 := strconv.ParseUint(m[1], 10, 64)
	last, err2 := strconv.ParseUint(m[2], 10, 64)
	return first, last, err1 == nil && err2 == nil && first >= 1 && first <= last
}

func gapName(first uint64) string { return fmt.Sprintf("%s%020d", gapPrefix, first) }

func parseGapName(name string) (first uint64, ok bool) {
	digits, marked := strings.CutPrefix(name, gapPrefix)
	if !marked || len(digits) != 20 {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil && first > 0
}

func isArchived(name string) bool {
	_, _, ok := parseArchiveName(name)
	return ok
}

func putPosition(b []byte, p lsn.Position) {
	binary.LittleEndian.PutUint64(b, p.Term)
	binary.LittleEndian.PutUint64(b[8:], p.LSN)
	binary.LittleEndian.PutUint32(b[16:], p.Chain)
}

func getPosition(b []byte) lsn.Position {
	return lsn.Position{
		Term: binary.LittleEndian.Uint64(b), LSN: binary.LittleEndian.Uint64(b[8:]),
		Chain: binary.LittleEndian.Uint32(b[16:]),
	}
}

func seal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[60:], crc.Of(b[:60]))
	return b
}

func sealed(b []byte, magic string) bool {
	return string(b[:8]) == magic && crc.Of(b[:60]) == binary.LittleEndian.Uint32(b[60:])
}

func (f *ArchiveFile) head() []byte {
	b := make([]byte, archiveEnds)
	copy(b, archiveMagic)
	binary.LittleEndian.PutUint32(b[8:], archiveVersion)
	if f.Encrypted {
		binary.LittleEndian.PutUint32(b[8:], sealedArchive)
	}
	copy(b[16:], f.StoreID[:])
	putPosition(b[32:], f.Before)
	return seal(b)
}

func (f *ArchiveFile) tail() []byte {
	b := make([]byte, archiveEnds)
	copy(b, archiveEndMagic)
	binary.LittleEndian.PutUint64(b[8:], f.Records)
	putPosition(b[16:], f.Last)
	if !f.FirstTime.IsZero() {
		binary.LittleEndian.PutUint64(b[40:], uint64(f.FirstTime.UnixMilli()))
		binary.LittleEndian.PutUint64(b[48:], uint64(f.LastTime.UnixMilli()))
	}
	return seal(b)
}

func (f *ArchiveFile) decode(head, tail []byte) error {
	if !sealed(head, archiveMagic) || !sealed(tail, archiveEndMagic) {
		return fmt.Errorf("%w: %s does not have the header and trailer of an archive file", ErrArchiveCorrupt, f.Path)
	}
	v := binary.LittleEndian.Uint32(head[8:])
	if v != archiveVersion && v != sealedArchive {
		return fmt.Errorf("%s has version %d, this program supports versions up to %d: %w; use the newer program", f.Path,
			v, sealedArchive, ErrNewerVersion)
	}
	f.Encrypted = v == sealedArchive
	f.StoreID = [16]byte(head[16:32])
	f.Before, f.Last, f.Records = getPosition(head[32:]), getPosition(tail[16:]), binary.LittleEndian.Uint64(tail[8:])
	first, last := binary.LittleEndian.Uint64(tail[40:]), binary.LittleEndian.Uint64(tail[48:])
	if first != 0 || last != 0 {
		f.FirstTime, f.LastTime = time.UnixMilli(int64(first)).UTC(), time.UnixMilli(int64(last)).UTC()
	}
	if f.Records == 0 || f.Last.LSN != f.Before.LSN+f.Records {
		return fmt.Errorf("%w: %s: %d records do not span %v to %v", ErrArchiveCorrupt, f.Path, f.Records,
			f.Before, f.Last)
	}
	return nil
}

func readEnds(ctx context.Context, place Objects, name string) (_ ArchiveFile, err error) {
	a := ArchiveFile{Path: place.Path(name), name: name}
	f, err := place.Open(ctx, name)
	if err != nil {
		return a, fmt.Errorf("read archive: %w", err)
	}
	defer func() { _ = f.Close() }() // read-only: nothing can be lost
	if a.Bytes, err = f.SizeBytes(); err != nil {
		return a, fmt.Errorf("read archive: %w", err)
	}
	var head, tail [archiveEnds]byte
	if a.Bytes < 2*archiveEnds {
		return a, fmt.Errorf("%w: %s is too short", ErrArchiveCorrupt, a.Path)
	}
	for at, b := range map[int64][]byte{0: head[:], a.Bytes - archiveEnds: tail[:]} {
		if _, err := f.ReadAt(b, at); err != nil && !errors.Is(err, io.EOF) {
			return a, fmt.Errorf("read archive: %w", err)
		}
	}
	if err := a.decode(head[:], tail[:]); err != nil {
		return a, err
	}
	if first, last, ok := parseArchiveName(path.Base(name)); ok && (a.First() != first || a.Last.LSN != last) {
		return a, fmt.Errorf("%w: %s contains records %d to %d", ErrArchiveCorrupt, a.Path, a.First(), a.Last.LSN)
	}
	return a, nil
}

type archivedName struct {
	name        string
	first, last uint64
}

// archiveListing contains the names in an archive.
type archiveListing struct {
	files []archivedName // oldest first
	gaps  []uint64       // LSNs in the names of the markers, ascending
	// former reports whether a subdirectory with an archive of another history exists.
	former bool
}

// listNames returns the names in an archive, without reading the files.
func listNames(ctx context.Context, place Objects) (archiveListing, error) {
	var l archiveListing
	entries, err := place.List(ctx, "")
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("list archive: %w", err)
	}
	for _, e := range entries {
		if first, last, ok := parseArchiveName(e.Name); ok {
			l.files = append(l.files, archivedName{name: e.Name, first: first, last: last})
		} else if first, ok := parseGapName(e.Name); ok {
			l.gaps = append(l.gaps, first)
		}
		l.former = l.former || e.Folder && strings.HasPrefix(e.Name, previousPrefix)
	}
	slices.SortFunc(l.files, func(a, b archivedName) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last))
	})
	slices.Sort(l.gaps)
	return l, nil
}

// listArchive reads the heads and tails of the files with records above the given LSN, and returns these files.
func listArchive(ctx context.Context, place Objects, after uint64) ([]ArchiveFile, error) {
	l, err := listNames(ctx, place)
	if err != nil {
		return nil, err
	}
	names := slices.DeleteFunc(l.files, func(n archivedName) bool { return n.last <= after })
	files := make([]ArchiveFile, 0, len(names))
	for _, n := range names {
		f, err := readEnds(ctx, place, n.name)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// pruneArchive removes files that have no record after beforeLSN and, if olderThan is not zero, no transaction at or
// after olderThan. It always retains the newest file. It returns the number of removed files. It removes files
// durably, oldest first.
func pruneArchive(ctx context.Context, place Objects, beforeLSN uint64, olderThan time.Time) (int, error) {
	l, err := listNames(ctx, place)
	if err != nil {
		return 0, err
	}
	removed := 0
	for names := l.files; len(names) > 1 && names[0].last <= beforeLSN; names = names[1:] {
		if !olderThan.IsZero() {
			f, err := readEnds(ctx, place, names[0].name)
			if err != nil {
				return removed, err
			}
			if !f.LastTime.Before(olderThan) {
				return removed, nil
			}
		}
		if err := place.Delete(ctx, names[0].name); err != nil {
			return removed, fmt.Errorf("remove old log from the archive: %w", err)
		}
		removed++
	}
	return removed, nil
}
