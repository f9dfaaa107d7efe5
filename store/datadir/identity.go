// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	identityName     = "identity"
	identityVersion  = 1
	identityMaxBytes = 64 << 10
)

// Identity identifies a node and its store.
type Identity struct {
	// NodeID stays the same for the lifetime of the data directory, unless the identity is lost and the store is
	// quarantined.
	NodeID uuid.UUID
	// StoreID identifies the store. A wiped or restored data directory gets a new StoreID. A snapshot of the peer that
	// replaces the content keeps it, and increments Incarnation.
	StoreID uuid.UUID
	PairID  uuid.UUID // zero until the node joins a pair
	// Incarnation is incremented when a snapshot replaces the content, when the store is quarantined, and when a
	// possible loss of acknowledged bytes is cleared (INV-6).
	Incarnation uint64
	Fence       identity.Fence
	// Generation is the last process generation of this store known to be listed in the cluster record (INV-11); zero if
	// none.
	Generation uuid.UUID
	// ClaimedGeneration is the generation of the last process that participated in the pair, until the cluster record is
	// known to list it.
	ClaimedGeneration uuid.UUID
	// MayHaveLost is set if acknowledged bytes may be lost (INV-6). It is set after an unclean stop with sync=off or
	// interval, if the operating system may have restarted since then. Other causes are a log that was missing or too
	// short, a quarantine, and a call of MarkLoss. The flag persists over restarts until ClearLoss.
	MayHaveLost bool
	// Restored is the name of the backup from which the content was restored, until the node joins a pair.
	Restored string
	// Quarantine is the name of the subdirectory with the files of a store that could not be opened. The field is cleared
	// when a snapshot replaces the content or the node is in sync. Until then, the store waits for a copy from the other
	// node, is not considered empty, and must not seed a pair. QuarantineReason is the error of Open, truncated after
	// about 500 bytes.
	Quarantine       string
	QuarantineReason string
}

// Member returns the store's entry in the cluster record, or the entry that the store would have there.
func (id *Identity) Member() identity.Member {
	m := identity.Member{Node: id.NodeID, Store: id.StoreID, Incarnation: id.Incarnation, Generation: id.Generation}
	if id.ClaimedGeneration != uuid.Nil {
		m.Generation = id.ClaimedGeneration
	}
	return m
}

// IdentityFile is the JSON form of the identity file, which is replaced atomically.
type IdentityFile struct {
	Version           int            `json:"version"`
	NodeID            uuid.UUID      `json:"node_id"`
	StoreID           uuid.UUID      `json:"store_id"`
	PairID            uuid.UUID      `json:"pair_id"`
	Incarnation       uint64         `json:"incarnation"`
	Fence             identity.Fence `json:"fence"`
	Generation        uuid.UUID      `json:"run,omitzero"`
	ClaimedGeneration uuid.UUID      `json:"claimed_run,omitzero"`
	// BootID and Sync are those of the process that opened the store last.
	BootID string `json:"boot_id"`
	// Clean reports whether that process ended with a Close that synced everything.
	Clean       bool         `json:"clean"`
	Sync        string       `json:"sync"`
	MayHaveLost bool         `json:"may_have_lost,omitempty"`
	Install     *InstallMark `json:"install,omitempty"` // set while a received snapshot replaces page.db and the log
	// Restoring is the name of the backup being restored. Until the restore is complete, Open rejects the directory.
	Restoring string `json:"restoring,omitempty"`
	Restored  string `json:"restored,omitempty"`
	// Quarantining is set while unusable files are moved to the directory with that name: see quarantine.go.
	Quarantining string `json:"setting_aside,omitempty"`
	// Quarantine is cleared when a snapshot is installed or the node is in sync.
	Quarantine       string `json:"set_aside,omitempty"`
	QuarantineReason string `json:"set_aside_why,omitempty"`
}

// InstallMark makes the replacement of page.db and log by a snapshot atomic: see store.Install.
type InstallMark struct {
	Position lsn.Position `json:"position"`
}

// readIdentity reads and verifies the identity file. It returns fs.ErrNotExist if the directory has none.
func readIdentity(fsys vfs.FS, dir string) (IdentityFile, error) {
	var id IdentityFile
	name := filepath.Join(dir, identityName)
	raw, err := vfs.ReadFile(fsys, name, identityMaxBytes)
	if errors.Is(err, vfs.ErrTooLarge) {
		return id, fmt.Errorf("%w: %w", ErrIdentityLost, err)
	}
	if err != nil {
		return id, fmt.Errorf("read identity: %w", err)
	}
	return decodeIdentity(name, raw)
}

// decodeIdentity decodes the first line of the file, and verifies it with the CRC32C in the second line.
func decodeIdentity(name string, raw []byte) (IdentityFile, error) {
	var id IdentityFile
	line, sum, ok := bytes.Cut(raw, []byte("\n"))
	want := fmt.Sprintf("crc32c=%08x", crc.Of(line))
	if !ok || strings.TrimSpace(string(sum)) != want {
		return id, fmt.Errorf("%w: %s: checksum mismatch", ErrIdentityLost, name)
	}
	if err := json.Unmarshal(line, &id); err != nil {
		return id, fmt.Errorf("%w: %s: %w", ErrIdentityLost, name, err)
	}
	if id.Version > identityVersion {
		return id, fmt.Errorf("%w: %s has format %d, this version supports %d; start the newer version that wrote it",
			ErrIdentity, name, id.Version, identityVersion)
	}
	return id, nil
}

// Write replaces the file atomically and durably.
func (id IdentityFile) Write(fsys vfs.FS, dir string) error {
	line, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	raw := fmt.Appendf(nil, "%s\ncrc32c=%08x\n", line, crc.Of(line))
	if err := vfs.WriteFileAtomic(fsys, filepath.Join(dir, identityName), raw); err != nil {
		return fmt.Errorf("replace identity: %w", err)
	}
	return nil
}

// Options configures the use of a data directory.
type Options struct {
	FS  vfs.FS
	Dir string
	// BootID identifies the boot of the operating system; empty if unknown.
	BootID string
	Sync   wal.SyncMode
}

// OpenIdentity reads or creates the identity, determines whether acknowledged bytes of earlier process generations
// may have been lost (INV-6), and replaces the identity file.
func OpenIdentity(o Options) (IdentityFile, error) {
	id, err := readIdentity(o.FS, o.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := noContent(o.FS, o.Dir); err != nil {
			return id, err
		}
		id = IdentityFile{Version: identityVersion, NodeID: uuid.New(), StoreID: uuid.New(), Incarnation: 1}
	case err != nil:
		return id, err
	case id.Restoring != "":
		return id, fmt.Errorf("%w: %s contains a part of %s; run the command again, or empty the directory",
			ErrRestoring, o.Dir, id.Restoring)
	case mutate.Off("INV-6-loss-is-not-noticed"):
	case !id.Clean && id.Sync != wal.SyncAlways.String() && (id.BootID == "" || id.BootID != o.BootID):
		id.MayHaveLost = true
	}
	id.BootID, id.Clean, id.Sync = o.BootID, false, o.Sync.String()
	if err := id.Write(o.FS, o.Dir); err != nil {
		return id, err
	}
	return id, nil
}

// ReadIdentity reads the identity in a data directory, without modifying it.
func ReadIdentity(fsys vfs.FS, dir string) (Identity, error) {
	id, err := readIdentity(fsys, dir)
	if err != nil {
		return Identity{}, err
	}
	return id.Identity(), nil
}

// Identity returns the content of the file without the fields that only Open and interrupted operations need.
func (id *IdentityFile) Identity() Identity {
	return Identity{
		NodeID: id.NodeID, StoreID: id.StoreID, PairID: id.PairID, Incarnation: id.Incarnation,
		Fence: id.Fence, Generation: id.Generation, ClaimedGeneration: id.ClaimedGeneration, MayHaveLost: id.MayHaveLost,
		Restored:   id.Restored,
		Quarantine: id.Quarantine, QuarantineReason: id.QuarantineReason,
	}
}
