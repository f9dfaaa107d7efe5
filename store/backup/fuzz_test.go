// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

func exampleManifest() Manifest {
	created := time.Date(2026, 11, 21, 0, 45, 0, 123e6, time.UTC)
	sum := sha256.Sum256(nil)
	return Manifest{
		Format: manifestFormat, Name: setName(created, 123, 16384, 0), Created: created, Software: "lockstep 1.2.3",
		PageFormat: page.FormatVersion, TxnFormat: txn.Version,
		PairID: uuid.UUID{1}, StoreID: uuid.UUID{2}, NodeID: uuid.UUID{3},
		Position: lsn.Position{Term: 4, LSN: 123, Chain: 5}, LastTime: created, Checkpoint: 6, PageSize: 16384,
		FileBytes: 1 << 20, DataBytes: 1 << 19, Messages: 7,
		Files: []FileSum{{Name: packName, Bytes: 0, SHA256: hex.EncodeToString(sum[:])}},
	}
}

// The encoding of a manifest is stable. Manifests with a newer version or with invalid fields are rejected.
func TestManifestFormat(t *testing.T) {
	m := exampleManifest()
	raw, err := m.encode()
	require.NoError(t, err)
	const want = `{"manifest": {
  "format": 1,
  "name": "20261121T004500Z-lsn000123-ps16384",
  "created": "2026-11-21T00:45:00.123Z",
  "software": "lockstep 1.2.3",
  "page_format": 1,
  "txn_format": 1,
  "pair_id": "01000000-0000-0000-0000-000000000000",
  "store_id": "02000000-0000-0000-0000-000000000000",
  "node_id": "03000000-0000-0000-0000-000000000000",
  "position": {
    "Term": 4,
    "LSN": 123,
    "Chain": 5
  },
  "last_time": "2026-11-21T00:45:00.123Z",
  "checkpoint": 6,
  "page_size": 16384,
  "file_bytes": 1048576,
  "data_bytes": 524288,
  "messages": 7,
  "files": [
    {
      "name": "pages.pack",
      "bytes": 0,
      "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    }
  ]
},
"sha256": "`
	require.Truef(t, bytes.HasPrefix(raw, []byte(want)), "%s", raw)
	back, err := decodeManifest(raw)
	require.NoError(t, err)
	require.Equal(t, m, back)

	m.Format = sealedFormat + 1
	raw, err = m.encode()
	require.NoError(t, err)
	_, err = decodeManifest(raw)
	require.ErrorIs(t, err, ErrNewerVersion)
	m.Format, m.PageFormat = manifestFormat, page.FormatVersion+1
	raw, err = m.encode()
	require.NoError(t, err)
	_, err = decodeManifest(raw)
	require.ErrorIs(t, err, ErrNewerVersion)
	for what, corrupt := range map[string]func(*Manifest){
		"name": func(m *Manifest) { m.Name = "../../etc" }, "lsn": func(m *Manifest) { m.Position.LSN++ },
		"page size": func(m *Manifest) { m.PageSize = 16385 }, "file": func(m *Manifest) { m.Files[0].Name = "../x" },
		"no file": func(m *Manifest) { m.Files = nil }, "sum": func(m *Manifest) { m.Files[0].SHA256 = "12" },
	} {
		m := exampleManifest()
		corrupt(&m)
		raw, err := m.encode()
		require.NoError(t, err)
		_, err = decodeManifest(raw)
		require.ErrorIs(t, err, ErrCorrupt, what)
	}
}

// FuzzManifest verifies that an accepted manifest survives a round trip.
func FuzzManifest(f *testing.F) {
	m := exampleManifest()
	raw, err := m.encode()
	require.NoError(f, err)
	f.Add(raw)
	f.Add(wrap([]byte(`{"format": 1}`)))
	f.Add(wrap([]byte(`{}`)))
	f.Add(wrap([]byte(`[]`)))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, wrap(b)} { // the second manifest has a valid checksum
			m, err := decodeManifest(b)
			if err != nil {
				continue
			}
			raw, err := m.encode()
			require.NoError(t, err)
			again, err := decodeManifest(raw)
			require.NoError(t, err)
			require.Equal(t, m.Name, again.Name)
			require.Equal(t, m.Files, again.Files)
		}
	})
}

// FuzzArchiveEnds verifies that an accepted head and tail of an archived file survive a round trip.
func FuzzArchiveEnds(f *testing.F) {
	a := ArchiveFile{
		StoreID: uuid.UUID{2}, Before: lsn.Position{Term: 1, LSN: 4, Chain: 5},
		Last: lsn.Position{Term: 2, LSN: 7, Chain: 6}, Records: 3,
		FirstTime: time.UnixMilli(5).UTC(), LastTime: time.UnixMilli(6).UTC(),
	}
	f.Add(a.head(), a.tail())
	f.Fuzz(func(t *testing.T, head, tail []byte) {
		if len(head) != archiveEnds || len(tail) != archiveEnds {
			return
		}
		for range 2 {
			var b ArchiveFile
			if b.decode(head, tail) == nil {
				require.Equal(t, b.Last.LSN-b.Before.LSN, b.Records)
				var c ArchiveFile
				require.NoError(t, c.decode(b.head(), b.tail()))
				require.Equal(t, b, c)
			}
			head, tail = seal(bytes.Clone(head)), seal(bytes.Clone(tail)) // with a valid checksum
		}
	})
}

// FuzzPack verifies that the records of any pack are not empty, in order and within the file.
func FuzzPack(f *testing.F) {
	var out bytes.Buffer
	w := newPack(&out, 2048, false)
	require.NoError(f, w.add(0, []byte("description")))
	require.NoError(f, w.add(page.DataOffset, make([]byte, 4096)))
	sum, err := w.finish()
	require.NoError(f, err)
	raw := out.Bytes()
	require.Equal(f, int64(len(raw)), sum.Bytes)
	f.Add(raw)
	f.Fuzz(func(t *testing.T, b []byte) {
		mem := memfs.New()
		require.NoError(t, vfs.WriteFileAtomic(mem, "/"+packName, b))
		s := sha256.Sum256(b)
		m := Manifest{PageSize: 2048, Files: []FileSum{{
			Name: packName, Bytes: int64(len(b)),
			SHA256: hex.EncodeToString(s[:]),
		}}}
		r, err := openPack(t.Context(), Directory(mem, "/"), "", &m, nil)
		if err != nil {
			return
		}
		defer func() { require.NoError(t, r.close()) }()
		var next uint64
		_ = r.each(t.Context(), func(offset uint64, data []byte, at int64) error {
			require.GreaterOrEqual(t, offset, next)
			require.NotEmpty(t, data)
			require.LessOrEqual(t, at+int64(len(data)), int64(len(b)))
			next = offset + uint64(len(data))
			return nil
		})
	})
}
