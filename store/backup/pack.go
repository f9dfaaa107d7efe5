// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/page"
)

// pages.pack contains the used pages, in ascending order, without the free pages between them, little endian:
//
//	+----------+-------------+---------------+---------+
//	| LSBKPACK | version u32 | page size u32 | crc u32 |   crc: CRC32C of the bytes before it
//	+----------+-------------+---------------+---------+
//	+------------+------------+---------+-------------+
//	| offset u64 | length u32 | crc u32 | data…       |   any number of these; crc: CRC32C of offset, length and data
//	+------------+------------+---------+-------------+
//	+-------------+---------+---------+
//	| records u64 | 0 (u32) | crc u32 |                   the end
//	+-------------+---------+---------+
//
// offset is the offset in the page file. The first record has offset 0 and contains the metadata of the checkpoint
// (page.Meta.Encode); all others contain whole pages.
const (
	packMagic      = "LSBKPACK"
	packVersion    = 1
	packHeadBytes  = 20
	packEntryBytes = 16

	// chunkBytes limits the data of a record; a page always fits.
	chunkBytes = page.MaxPageBytes
	// packWriteBytes is the amount of buffered data that is written together; pacedBytes replaces it in a throttled
	// backup.
	packWriteBytes = 1 << 20
	pacedBytes     = 128 << 10
	// The writeback of writebackBytes of data is started together. dirtyBytes limits the dirty data.
	writebackBytes = 1 << 20
	dirtyBytes     = 8 << 20
)

func packCRC(entry, data []byte) uint32 {
	return crc.Update(crc.Of(entry[:12]), data)
}

// estimatePackBytes returns the maximum size of a pack, without the overhead of encryption.
func estimatePackBytes(dataBytes uint64, pageSize int) uint64 {
	return dataBytes + dataBytes/uint64(pageSize)*packEntryBytes + packWriteBytes
}

type packWriter struct {
	to      io.Writer
	buf     []byte
	most    int
	offset  int64
	records uint64
	sum     hash.Hash
}

func newPack(to io.Writer, pageSize int, paced bool) *packWriter {
	w := &packWriter{
		to: to, sum: sha256.New(), buf: make([]byte, 0, packWriteBytes+chunkBytes+packEntryBytes),
		most: packWriteBytes,
	}
	if paced {
		w.most = pacedBytes
	}
	w.buf = append(w.buf, packMagic...)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, packVersion)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(pageSize))
	w.buf = binary.LittleEndian.AppendUint32(w.buf, crc.Of(w.buf))
	return w
}

func (w *packWriter) add(offset uint64, data []byte) error {
	w.entry(offset, data)
	w.records++
	if len(w.buf) < w.most {
		return nil
	}
	return w.flush()
}

func (w *packWriter) entry(offset uint64, data []byte) {
	start := len(w.buf)
	w.buf = binary.LittleEndian.AppendUint64(w.buf, offset)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(data)))
	w.buf = binary.LittleEndian.AppendUint32(w.buf, packCRC(w.buf[start:], data))
	w.buf = append(w.buf, data...)
}

func (w *packWriter) flush() error {
	if _, err := w.to.Write(w.buf); err != nil {
		return err //nolint:wrapcheck // the caller names the file
	}
	w.sum.Write(w.buf)
	w.offset += int64(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

func (w *packWriter) finish() (FileSum, error) {
	w.entry(w.records, nil)
	err := w.flush()
	return FileSum{Name: packName, Bytes: w.offset, SHA256: hex.EncodeToString(w.sum.Sum(nil))}, err
}

type packReader struct {
	file     Object
	name     string
	want     FileSum
	in       *bufio.Reader
	sum      hash.Hash
	pageSize int
	at       int64 // position in the pack
	records  uint64
	next     uint64
	buf      []byte
}

// openPack opens the pack of a backup for reading. The caller must close the result. Errors include ErrIncomplete,
// ErrCorrupt, ErrNewerVersion, ErrEncrypted, ErrIdentity and ErrRemote.
func openPack(ctx context.Context, place Objects, set string, m *Manifest, with Unsealer) (*packReader, error) {
	name := inFolder(set, m.Files[0].Name)
	file, err := openPlain(ctx, place, name, m.Encryption, with)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s: %w", ErrIncomplete, place.Path(set), err)
	case err != nil:
		return nil, err
	}
	r := &packReader{
		file: file, name: place.Path(name), want: m.pack(), sum: sha256.New(), buf: make([]byte, chunkBytes),
	}
	err = r.begin(m.PageSize)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return r, nil
}

func (r *packReader) begin(pageSize int) error {
	size, err := r.file.SizeBytes()
	if err != nil {
		return fmt.Errorf("read backup: %w", err)
	}
	if size != r.want.Bytes {
		return fmt.Errorf("%w: %s has %d bytes, the manifest has %d", ErrIncomplete, r.name, size, r.want.Bytes)
	}
	r.in = bufio.NewReaderSize(io.TeeReader(io.NewSectionReader(r.file, 0, size), r.sum), packWriteBytes)
	head := r.buf[:packHeadBytes]
	if err := r.read(head); err != nil {
		return err
	}
	if string(head[:8]) != packMagic || crc.Of(head[:packHeadBytes-4]) != binary.LittleEndian.Uint32(head[16:]) {
		return r.damaged("missing pack header")
	}
	if v := binary.LittleEndian.Uint32(head[8:]); v != packVersion {
		return fmt.Errorf("%s has version %d, this program supports version %d: %w", r.name, v, packVersion,
			ErrNewerVersion)
	}
	r.pageSize = int(binary.LittleEndian.Uint32(head[12:]))
	if r.pageSize != pageSize {
		return r.damaged("pages of %d bytes, the manifest has %d", r.pageSize, pageSize)
	}
	return nil
}

func (r *packReader) damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s, offset %d: %s", ErrCorrupt, r.name, r.at, fmt.Sprintf(format, args...))
}

func (r *packReader) read(b []byte) error {
	if _, err := io.ReadFull(r.in, b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return r.damaged("truncated record")
		}
		return fmt.Errorf("read backup: %w", err)
	}
	r.at += int64(len(b))
	return nil
}

// piece returns the next record: its offset in the page file, its data (valid until the next call), and its position in
// the pack. io.EOF means that the pack was read completely and that size and checksum match the manifest.
func (r *packReader) piece() (offset uint64, data []byte, at int64, err error) {
	var entry [packEntryBytes]byte
	if err := r.read(entry[:]); err != nil {
		return 0, nil, 0, err
	}
	offset, length := binary.LittleEndian.Uint64(entry[:]), binary.LittleEndian.Uint32(entry[8:])
	if length > chunkBytes {
		return 0, nil, 0, r.damaged("invalid record length of %d bytes", length)
	}
	at, data = r.at, r.buf[:length]
	if err := r.read(data); err != nil {
		return 0, nil, 0, err
	}
	if packCRC(entry[:], data) != binary.LittleEndian.Uint32(entry[12:]) {
		return 0, nil, 0, r.damaged("record checksum mismatch")
	}
	if length == 0 {
		return 0, nil, 0, r.end(offset)
	}
	if err := r.checkPosition(offset, length); err != nil {
		return 0, nil, 0, err
	}
	r.records++
	r.next = offset + uint64(length)
	return offset, data, at, nil
}

// checkPosition verifies that the first record is the checkpoint's metadata and that whole pages follow in ascending
// order.
func (r *packReader) checkPosition(offset uint64, length uint32) error {
	if r.records == 0 {
		if offset != 0 {
			return r.damaged("first record is not the checkpoint description")
		}
		return nil
	}
	size := uint64(r.pageSize)
	if offset < max(r.next, page.DataOffset) || (offset-page.DataOffset)%size != 0 || uint64(length)%size != 0 ||
		offset > 1<<62 {
		return r.damaged("record with %d bytes for offset %d is out of order", length, offset)
	}
	return nil
}

func (r *packReader) end(records uint64) error {
	if records != r.records {
		return r.damaged("expected %d records, found %d", records, r.records)
	}
	if r.at != r.want.Bytes {
		return r.damaged("trailing data")
	}
	if got := hex.EncodeToString(r.sum.Sum(nil)); got != r.want.SHA256 {
		return r.damaged("SHA-256 is %s, expected %s", got, r.want.SHA256)
	}
	return io.EOF
}

func (r *packReader) close() error {
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("close backup: %w", err)
	}
	return nil
}

func (r *packReader) each(ctx context.Context, fn func(offset uint64, data []byte, at int64) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read backup: %w", err)
		}
		offset, data, at, err := r.piece()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = fn(offset, data, at)
		}
		if err != nil {
			return err
		}
	}
}
