// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// manifestFormat is the format version of an unencrypted backup. sealedFormat is the format version of an encrypted
	// backup.
	manifestFormat   = 1
	sealedFormat     = 2
	manifestMaxBytes = 64 << 10
)

// Manifest describes a backup.
type Manifest struct {
	// Format is the version of the backup's format: 1, or 2 if the backup is encrypted. Name is the name of the backup's
	// directory. Created is the time at which the copy began.
	Format     int       `json:"format"`
	Name       string    `json:"name"`
	Created    time.Time `json:"created"`
	Software   string    `json:"software,omitempty"`
	PageFormat int       `json:"page_format"`
	TxnFormat  int       `json:"txn_format"`

	// PairID is the ID of the pair to which the source belongs; zero if it is not in a pair.
	PairID  uuid.UUID `json:"pair_id"`
	StoreID uuid.UUID `json:"store_id"`
	NodeID  uuid.UUID `json:"node_id"`

	// Position is the position of the last record in the backup. LastTime is the time of that record, or, if that is
	// unknown, the time of the checkpoint.
	Position   lsn.Position `json:"position"`
	LastTime   time.Time    `json:"last_time"`
	Checkpoint uint64       `json:"checkpoint"`
	PageSize   int          `json:"page_size"`
	// FileBytes is the size of the page file. DataBytes is the size of its used pages and of the checkpoint's metadata.
	FileBytes uint64 `json:"file_bytes"`
	DataBytes uint64 `json:"data_bytes"`
	Messages  uint64 `json:"messages"`
	// Files lists the stored files, except the manifest.
	Files      []FileSum   `json:"files"`
	Encryption *Encryption `json:"encryption,omitempty"`
}

func (m *Manifest) pack() FileSum {
	if m.Encryption != nil {
		return m.Encryption.Plain
	}
	return m.Files[0]
}

// FileSum contains the name, size and checksum of a file.
type FileSum struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // in hex
}

// envelope is the content of the manifest file.
type envelope struct {
	Manifest json.RawMessage `json:"manifest"`
	SHA256   string          `json:"sha256"`
}

func wrap(raw []byte) []byte {
	sum := sha256.Sum256(raw)
	return fmt.Appendf(nil, "{\"manifest\": %s,\n\"sha256\": \"%x\"}\n", raw, sum)
}

func (m *Manifest) encode() ([]byte, error) {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	return wrap(raw), nil
}

// decodeManifest decodes and verifies a manifest. The error matches ErrCorrupt or ErrNewerVersion.
func decodeManifest(b []byte) (Manifest, error) {
	damaged := func(format string, args ...any) (Manifest, error) {
		return Manifest{}, fmt.Errorf("%w: %s: %s", ErrCorrupt, manifestName, fmt.Sprintf(format, args...))
	}
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return damaged("%v", err)
	}
	// Wrapping the manifest again must result in the same bytes. This also covers the bytes around the manifest.
	if len(e.Manifest) == 0 || !bytes.Equal(wrap(e.Manifest), b) {
		return damaged("checksum mismatch")
	}
	var format struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(e.Manifest, &format); err != nil {
		return damaged("%v", err)
	}
	if format.Format > sealedFormat {
		return Manifest{}, fmt.Errorf("backup of format %d, this program supports formats up to %d: %w; use the newer "+
			"program",
			format.Format, sealedFormat, ErrNewerVersion)
	}
	var m Manifest
	if err := json.Unmarshal(e.Manifest, &m); err != nil {
		return damaged("%v", err)
	}
	if reason := m.implausible(); reason != "" {
		return damaged("%s", reason)
	}
	if m.PageFormat > page.FormatVersion || m.TxnFormat > txn.Version {
		return Manifest{}, fmt.Errorf("page format %d and transaction format %d, this program supports formats up to %d "+
			"and %d: "+
			"%w; use the newer program",
			m.PageFormat, m.TxnFormat, page.FormatVersion, txn.Version, ErrNewerVersion)
	}
	return m, nil
}

// implausible returns the first inconsistency, or "".
func (m *Manifest) implausible() string {
	name, ok := parseName(m.Name)
	switch {
	case m.Format < 1:
		return "format 0"
	case !ok || name.lsn != m.Position.LSN || name.pageSize != m.PageSize ||
		!name.created.Equal(m.Created.Truncate(time.Second)):
		return fmt.Sprintf("name %q does not match its contents", m.Name)
	case page.CheckPageSize(m.PageSize) != nil:
		return page.CheckPageSize(m.PageSize).Error()
	case (m.Format == sealedFormat) != (m.Encryption != nil):
		return fmt.Sprintf("format %d does not match its encryption", m.Format)
	case m.Encryption != nil && m.Encryption.Scheme != sealScheme:
		return fmt.Sprintf("unknown encryption %q", m.Encryption.Scheme)
	}
	stored := packName
	if m.Encryption != nil {
		stored = sealedPackName
		if reason := m.Encryption.Plain.implausible(packName); reason != "" {
			return reason
		}
	}
	if len(m.Files) != 1 {
		return "missing file " + stored
	}
	return m.Files[0].implausible(stored)
}

func (f *FileSum) implausible(name string) string {
	if f.Name != name || f.Bytes < 0 {
		return "missing file " + name
	}
	if sum, err := hex.DecodeString(f.SHA256); err != nil || len(sum) != sha256.Size {
		return "invalid checksum of " + name
	}
	return ""
}

func readManifest(ctx context.Context, place Objects, set string) (Manifest, error) {
	b, err := readObject(ctx, place, inFolder(set, manifestName), manifestMaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		if _, missing := place.List(ctx, set); errors.Is(missing, fs.ErrNotExist) {
			return Manifest{}, fmt.Errorf("%w: directory %s not found", ErrIncomplete, place.Path(set))
		}
	}
	if err != nil && !isUnreadable(err) {
		return Manifest{}, fmt.Errorf("%w: %s: read manifest: %w", ErrIncomplete, place.Path(set), err)
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("%s: read manifest: %w", place.Path(set), err)
	}
	m, err := decodeManifest(b)
	if err != nil {
		return Manifest{}, fmt.Errorf("%s: %w", place.Path(set), err)
	}
	return m, nil
}
