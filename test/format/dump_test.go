// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Names of the dumps, as files in testdata.
const (
	dumpIdentity = "identity.txt"
	dumpLog      = "log.txt"
	dumpPages    = "pages.txt"
	dumpTree     = "tree.txt"
	dumpSnapshot = "snapshot.txt"
	dumpBackup   = "backup.txt"
	dumpArchive  = "archive.txt"
	dumpContent  = "content.txt"
)

// shownBytes is the maximum length of a value that a dump contains completely. Of a longer value, a dump contains
// the start and the hash.
const shownBytes = 640

// dump returns the dumps of the scenario's files, by name.
func dump(t *testing.T, fsys vfs.FS) map[string]string {
	t.Helper()
	texts, _ := dumpSeen(t, fsys)
	return texts
}

// dumpSeen is like dump, but also returns the kinds of objects found, named as in kinds.
func dumpSeen(t *testing.T, fsys vfs.FS) (texts map[string]string, seen map[string]bool) {
	t.Helper()
	d := dumper{t: t, fsys: fsys, seen: make(map[string]bool)}
	return map[string]string{
		dumpIdentity: d.text(d.identity), dumpLog: d.text(d.log), dumpPages: d.text(d.pages), dumpTree: d.text(d.tree),
		dumpSnapshot: d.text(d.snapshot), dumpBackup: d.text(d.backup), dumpArchive: d.text(d.archive),
		dumpContent: d.text(d.content),
	}, d.seen
}

type dumper struct {
	t    *testing.T
	fsys vfs.FS
	seen map[string]bool
	out  strings.Builder
}

func (d *dumper) text(write func()) string {
	d.out.Reset()
	write()
	return d.out.String()
}

// line writes a line, indented by level.
func (d *dumper) line(level int, format string, args ...any) {
	d.out.WriteString(strings.Repeat("  ", level))
	fmt.Fprintf(&d.out, format, args...)
	d.out.WriteByte('\n')
}

// hex writes bytes in rows of 32. Of more than shownBytes, it writes the first 64 and the SHA-256.
func (d *dumper) hex(level int, b []byte) {
	if len(b) > shownBytes {
		d.hex(level, b[:64])
		d.line(level, "… %d bytes, sha256 %x", len(b), sha256.Sum256(b))
		return
	}
	for row := range chunks(b, 32) {
		d.line(level, "%s", hex.EncodeToString(row))
	}
}

func chunks(b []byte, n int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			row := b[:min(n, len(b))]
			if b = b[len(row):]; !yield(row) {
				return
			}
		}
	}
}

// text returns bytes as a quoted string, truncated after 40 bytes.
func text(b []byte) string {
	if len(b) > 40 {
		return fmt.Sprintf("%q… (%d bytes)", b[:40], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// identity writes the identity file, a text file. Its second line is the checksum of the first.
func (d *dumper) identity() {
	raw := read(d.t, d.fsys, nodeDir+"/identity")
	d.line(0, "%s", strings.TrimSuffix(strings.ReplaceAll(string(raw), `,"`, ",\n"+`"`), "\n"))
}

func (d *dumper) snapshot() {
	d.line(0, "the pieces that another node receives: the description of the checkpoint, then the pages in use")
	for _, name := range names(d.t, d.fsys, snapshotDir) {
		data := read(d.t, d.fsys, name)
		d.line(0, "piece at %d: %d bytes", pieceOffset(d.t, name), len(data))
		d.hex(1, data)
	}
}

// backup writes the files of a backup.
func (d *dumper) backup() {
	for _, name := range names(d.t, d.fsys, backupDir) {
		data := read(d.t, d.fsys, name)
		if path.Base(name) == "manifest.json" {
			d.line(0, "%s\n%s", name, strings.TrimSuffix(string(data), "\n"))
			continue
		}
		if path.Base(name) != "pages.pack" {
			continue
		}
		d.line(0, "%s: %d bytes", name, len(data))
		d.line(1, "head: version %d, page size %d", le32(data[8:]), le32(data[12:]))
		d.hex(2, data[:20])
		for data = data[20:]; len(data) > 16; {
			n := le32(data[8:])
			d.line(1, "record at %d: %d bytes", le64(data), n)
			d.hex(2, data[:16])
			d.hex(3, data[16:16+n])
			data = data[16+n:]
		}
		d.line(1, "end: %d records", le64(data))
		d.hex(2, data)
	}
}

// archive writes the files of a log archive, which contain frames of the log.
func (d *dumper) archive() {
	for _, name := range names(d.t, d.fsys, archiveDir) {
		if path.Ext(name) != ".frames" {
			continue
		}
		data := read(d.t, d.fsys, name)
		d.line(0, "%s", name)
		d.line(1, "head: version %d, before %s", le32(data[8:]), position(data[32:]))
		d.hex(2, data[:64])
		d.line(1, "frames")
		d.hex(2, data[64:len(data)-64])
		tail := data[len(data)-64:]
		d.line(1, "tail: %d records, last %s, times %d to %d", le64(tail[8:]), position(tail[16:]), le64(tail[40:]),
			le64(tail[48:]))
		d.hex(2, tail)
	}
}

// position decodes a term, an LSN and a chain checksum, and returns a description.
func position(b []byte) string {
	return fmt.Sprintf("term %d, LSN %d, chain %08x", le64(b), le64(b[8:]), le32(b[16:]))
}

func le16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// zero requires that all bytes are 0.
func (d *dumper) zero(b []byte, label string) {
	require.Empty(d.t, bytes.Trim(b, "\x00"), "%s is not zero", label)
}
