// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// A file of the archive is <first LSN>-<last LSN>.frames, 20 digits each, little endian:
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
// before is the position that the first frame follows. The times are those of the first and the last transaction in the
// file; 0 if there is none. crc is the CRC-32C of the 60 bytes before it. The frames carry their own checksums, which
// are chained: a file continues another one if its before is the other's last.
const (
	archiveMagic    = "LSARCHIV"
	archiveEndMagic = "LSARCEND"
	archiveVersion  = 1
	archiveEnds     = 64 // bytes of the head, and of the tail
	archiveSuffix   = ".frames"
	archiveTmp      = ".new" + archiveSuffix
)

// ArchiveFile is a file of the archive.
type ArchiveFile struct {
	// Path of the file and its size.
	Path  string
	Bytes int64
	// StoreID of the store that archived it.
	StoreID [16]byte
	// Before is the position that the first record follows, Last that of the last one.
	Before, Last lsn.Position
	// Records in it.
	Records uint64
	// FirstTime and LastTime are the times of the first and the last transaction; zero if there is none.
	FirstTime, LastTime time.Time
}

// First is the LSN of the first record.
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
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func sealed(b []byte, magic string) bool {
	return string(b[:8]) == magic && crc32.Checksum(b[:60],
		crc32.MakeTable(crc32.Castagnoli)) == binary.LittleEndian.Uint32(b[60:])
}

func (f *ArchiveFile) head() []byte {
	b := make([]byte, archiveEnds)
	copy(b, archiveMagic)
	binary.LittleEndian.PutUint32(b[8:], archiveVersion)
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

// decode fills in what head and tail say. It returns ErrArchiveDamaged or ErrNewerVersion.
func (f *ArchiveFile) decode(head, tail []byte) error {
	if !sealed(head, archiveMagic) || !sealed(tail, archiveEndMagic) {
		return fmt.Errorf("%w: %s does not begin and end like a file of the archive", ErrArchiveDamaged, f.Path)
	}
	if v := binary.LittleEndian.Uint32(head[8:]); v != archiveVersion {
		return fmt.Errorf("%s is of version %d, this program knows version %d: %w; use the newer program", f.Path, v,
			archiveVersion,
			ErrNewerVersion)
	}
	f.StoreID = [16]byte(head[16:32])
	f.Before, f.Last, f.Records = getPosition(head[32:]), getPosition(tail[16:]), binary.LittleEndian.Uint64(tail[8:])
	first, last := binary.LittleEndian.Uint64(tail[40:]), binary.LittleEndian.Uint64(tail[48:])
	if first != 0 || last != 0 {
		f.FirstTime, f.LastTime = time.UnixMilli(int64(first)).UTC(), time.UnixMilli(int64(last)).UTC()
	}
	if f.Records == 0 || f.Last.LSN != f.Before.LSN+f.Records {
		return fmt.Errorf("%w: %s: %d records do not lead from %v to %v", ErrArchiveDamaged, f.Path, f.Records,
			f.Before, f.Last)
	}
	return nil
}

// readEnds reads head and tail of a file of the archive.
func readEnds(fsys vfs.FS, path string) (_ ArchiveFile, err error) {
	a := ArchiveFile{Path: path}
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return a, fmt.Errorf("read the archive: %w", err)
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing can be lost
	if a.Bytes, err = f.SizeBytes(); err != nil {
		return a, fmt.Errorf("read the archive: %w", err)
	}
	var head, tail [archiveEnds]byte
	if a.Bytes < 2*archiveEnds {
		return a, fmt.Errorf("%w: %s is too short", ErrArchiveDamaged, path)
	}
	for at, b := range map[int64][]byte{0: head[:], a.Bytes - archiveEnds: tail[:]} {
		if _, err := f.ReadAt(b, at); err != nil && !errors.Is(err, io.EOF) {
			return a, fmt.Errorf("read the archive: %w", err)
		}
	}
	err = a.decode(head[:], tail[:])
	return a, err
}

// ListArchive returns the files of an archive, oldest first. A directory that is not there has none. A file that cannot
// be understood is an error: ErrArchiveDamaged, ErrNewerVersion. The frames are not read. fsys may be nil for the
// operating system's.
func ListArchive(fsys vfs.FS, dir string) ([]ArchiveFile, error) {
	if fsys == nil {
		fsys = vfs.OS()
	}
	names, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the archive: %w", err)
	}
	var files []ArchiveFile
	for _, name := range names {
		first, last, ok := parseArchiveName(name)
		if !ok {
			continue
		}
		f, err := readEnds(fsys, join(dir, name))
		if err == nil && (f.First() != first || f.Last.LSN != last) {
			err = fmt.Errorf("%w: %s holds the records %d to %d", ErrArchiveDamaged, f.Path, f.First(), f.Last.LSN)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b ArchiveFile) int {
		return cmp.Or(cmp.Compare(a.Before.LSN, b.Before.LSN), cmp.Compare(a.Last.LSN, b.Last.LSN))
	})
	return files, nil
}

// PruneArchive removes files that hold no record after beforeLSN, and, if olderThan is not zero, no transaction from
// that time on. The newest file always stays: an Archiver goes on from it. It returns how many it removed. The files go
// oldest first and durably, so that a crash leaves no gap.
func PruneArchive(fsys vfs.FS, dir string, beforeLSN uint64, olderThan time.Time) (int, error) {
	if fsys == nil {
		fsys = vfs.OS()
	}
	files, err := ListArchive(fsys, dir)
	if err != nil {
		return 0, err
	}
	removed := 0
	for len(files) > 1 && files[0].Last.LSN <= beforeLSN &&
		(olderThan.IsZero() || files[0].LastTime.Before(olderThan)) {
		if err := fsys.Remove(files[0].Path); err != nil {
			return removed, fmt.Errorf("remove old log from the archive: %w", err)
		}
		if err := fsys.SyncDir(dir); err != nil {
			return removed, fmt.Errorf("remove old log from the archive: %w", err)
		}
		removed++
		files = files[1:]
	}
	return removed, nil
}

// removeArchiveTmp removes a file that was not finished.
func removeArchiveTmp(fsys vfs.FS, dir string) error {
	names, err := fsys.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the archive: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, archiveTmp) {
			if err := fsys.Remove(join(dir, name)); err != nil {
				return fmt.Errorf("remove an unfinished file of the archive: %w", err)
			}
		}
	}
	return nil
}
