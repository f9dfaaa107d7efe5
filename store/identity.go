// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	identityName    = "identity"
	identityVersion = 1
	// identityMaxBytes bounds what is read of an identity file; a real one has a few hundred bytes.
	identityMaxBytes = 64 << 10
)

// Identity says who a node and its store are. It is kept in the file "identity", replaced atomically.
type Identity struct {
	// NodeID names the node for as long as its data directory lives.
	NodeID uuid.UUID
	// StoreID names the content: a data directory that is wiped or restored gets a new one.
	StoreID uuid.UUID
	// PairID is the pair that the node belongs to; zero until it joined one.
	PairID uuid.UUID
	// Incarnation grows when the store may have lost acknowledged bytes (INV-6), and when a snapshot replaces its
	// content, so that the pair's record no longer matches it.
	Incarnation uint64
	// Fence is what the node has promised to obey.
	Fence identity.Fence
	// Run is the generation of the last run of this store that the pair's record is known to have named (INV-11); zero
	// if there was none.
	Run uuid.UUID
	// ClaimedRun is the generation of the run that took part last, while it is not known whether the record names it;
	// zero otherwise.
	ClaimedRun uuid.UUID
	// MayHaveLost is true when acknowledged bytes may be gone (INV-6): a start followed an unclean stop of the
	// operating system with sync=off or interval, or found the log gone or ending before the checkpoint; or MarkLoss
	// was called. It stays true over restarts until ClearLoss.
	MayHaveLost bool
	// Restored names the backup that the content was restored from; empty otherwise, and once the node has joined a
	// pair. Such a node is no member of anything, but it is not empty: it may seed a new pair, and must not be made a
	// copy of another.
	Restored string
	// Quarantine is the directory in the data directory that keeps what the store held when it could not be opened; empty
	// if that never happened, and when a snapshot has replaced it. Such a store waits to be filled: it is not empty,
	// and may not begin a pair.
	Quarantine string
	// QuarantineReason says which file could not be opened, and why.
	QuarantineReason string
}

// Member is the entry that the store has, or would have, in the pair's record.
func (id *Identity) Member() identity.Member {
	m := identity.Member{Node: id.NodeID, Store: id.StoreID, Incarnation: id.Incarnation, Run: id.Run}
	if id.ClaimedRun != uuid.Nil {
		m.Run = id.ClaimedRun
	}
	return m
}

// identityFile is the JSON form of what is kept in the identity file.
type identityFile struct {
	Version     int            `json:"version"`
	NodeID      uuid.UUID      `json:"node_id"`
	StoreID     uuid.UUID      `json:"store_id"`
	PairID      uuid.UUID      `json:"pair_id"`
	Incarnation uint64         `json:"incarnation"`
	Fence       identity.Fence `json:"fence"`
	// Run and ClaimedRun: see Identity.
	Run        uuid.UUID `json:"run,omitzero"`
	ClaimedRun uuid.UUID `json:"claimed_run,omitzero"`
	// BootID is the operating system's boot of the last start.
	BootID string `json:"boot_id"`
	// Clean is true after a Close that synced everything.
	Clean bool `json:"clean"`
	// Sync is the sync mode of the last run.
	Sync string `json:"sync"`
	// MayHaveLost, until ClearLoss.
	MayHaveLost bool `json:"may_have_lost,omitempty"`
	// Install is set while a received snapshot replaces page.db and the log.
	Install *installMark `json:"install,omitempty"`
	// Restoring names the backup that is being restored: until that is done, nothing else may use the directory.
	Restoring string `json:"restoring,omitempty"`
	// Restored names the backup that the content came from, until JoinPair.
	Restored string `json:"restored,omitempty"`
	// Quarantining is set while what cannot be opened is moved to the directory of that name: see quarantine.go.
	Quarantining string `json:"setting_aside,omitempty"`
	// Quarantine names that directory until a snapshot is installed or the node is in sync, and QuarantineReason what was
	// wrong.
	Quarantine       string `json:"set_aside,omitempty"`
	QuarantineReason string `json:"set_aside_why,omitempty"`
}

// installMark makes the replacement of page.db and log by a snapshot atomic: see Install.Commit.
type installMark struct {
	Position lsn.Position `json:"position"`
}

// readIdentity returns fs.ErrNotExist for a directory that has none yet.
func readIdentity(fsys vfs.FS, dir string) (identityFile, error) {
	var id identityFile
	name := filepath.Join(dir, identityName)
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return id, fmt.Errorf("open identity: %w", err)
	}
	defer func() { _ = f.Close() }()
	size, err := f.SizeBytes()
	if err != nil {
		return id, fmt.Errorf("read identity: %w", err)
	}
	if size > identityMaxBytes {
		return id, fmt.Errorf("%w: %s has %d bytes, more than any identity file", ErrIdentityLost, name, size)
	}
	raw := make([]byte, size)
	if _, err := f.ReadAt(raw, 0); err != nil && size > 0 {
		return id, fmt.Errorf("read identity: %w", err)
	}
	return decodeIdentity(name, raw)
}

// decodeIdentity checks the second line, a CRC32C of the first, before it believes the first.
func decodeIdentity(name string, raw []byte) (identityFile, error) {
	var id identityFile
	line, sum, ok := bytes.Cut(raw, []byte("\n"))
	want := fmt.Sprintf("crc32c=%08x", crc32.Checksum(line, crc32.MakeTable(crc32.Castagnoli)))
	if !ok || strings.TrimSpace(string(sum)) != want {
		return id, fmt.Errorf("%w: %s fails its checksum", ErrIdentityLost, name)
	}
	if err := json.Unmarshal(line, &id); err != nil {
		return id, fmt.Errorf("%w: %s: %w", ErrIdentityLost, name, err)
	}
	if id.Version > identityVersion {
		return id, fmt.Errorf("%w: %s has format %d and this program knows up to %d; start the newer program that wrote it",
			ErrIdentity, name, id.Version, identityVersion)
	}
	return id, nil
}

// writeIdentity replaces the file atomically and is durable before it returns.
func writeIdentity(fsys vfs.FS, dir string, id identityFile) error {
	line, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	sum := crc32.Checksum(line, crc32.MakeTable(crc32.Castagnoli))
	raw := fmt.Appendf(nil, "%s\ncrc32c=%08x\n", line, sum)
	name := filepath.Join(dir, identityName)
	tmp := name + ".tmp"
	if err := writeFileSync(fsys, tmp, raw); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return fmt.Errorf("replace identity: %w", err)
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fmt.Errorf("replace identity: %w", err)
	}
	return nil
}

// writeFileSync writes a small file whole and syncs it.
func writeFileSync(fsys vfs.FS, name string, raw []byte) error {
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, werr := f.WriteAt(raw, 0)
	if werr == nil {
		werr = f.Sync()
	}
	if err := errors.Join(werr, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// openIdentity reads or creates the identity and settles whether bytes may have been lost since the last run (INV-6).
func openIdentity(o *Options) (identityFile, error) {
	id, err := readIdentity(o.FS, o.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := noContent(o.FS, o.Dir); err != nil {
			return id, err
		}
		id = identityFile{Version: identityVersion, NodeID: uuid.New(), StoreID: uuid.New(), Incarnation: 1}
	case err != nil:
		return id, err
	case id.Restoring != "":
		return id, fmt.Errorf("%w: %s holds a part of the backup %s; restore it again, or empty the directory",
			ErrRestoring, o.Dir, id.Restoring)
	case mutate.Off("INV-6-loss-is-not-noticed"):
	case !id.Clean && id.Sync != wal.SyncAlways.String() && (id.BootID == "" || id.BootID != o.BootID):
		id.MayHaveLost = true
	}
	id.BootID, id.Clean, id.Sync = o.BootID, false, o.Sync.String()
	if err := writeIdentity(o.FS, o.Dir, id); err != nil {
		return id, err
	}
	return id, nil
}

// Identity returns who this node and store are.
func (s *Store) Identity() Identity {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	return s.id.public()
}

// ReadIdentity reads who the node in a data directory is. Read-only.
func ReadIdentity(fsys vfs.FS, dir string) (Identity, error) {
	id, err := readIdentity(fsys, dir)
	if err != nil {
		return Identity{}, err
	}
	return id.public(), nil
}

func (id *identityFile) public() Identity {
	return Identity{
		NodeID: id.NodeID, StoreID: id.StoreID, PairID: id.PairID, Incarnation: id.Incarnation,
		Fence: id.Fence, Run: id.Run, ClaimedRun: id.ClaimedRun, MayHaveLost: id.MayHaveLost, Restored: id.Restored,
		Quarantine: id.Quarantine, QuarantineReason: id.QuarantineReason,
	}
}

// ClaimRun notes the generation of a run that is about to take part in the pair, and that of the run which the pair's
// record names now, or zero if it names none. Durable before it returns: the record may name the claimed one from then
// on (INV-11).
func (s *Store) ClaimRun(named, claimed uuid.UUID) error {
	return s.changeIdentity(func(id *identityFile) error {
		id.Run, id.ClaimedRun = named, claimed
		return nil
	})
}

// ConfirmRun notes that the pair's record names the run in sync. What an earlier store of this directory was set aside
// for is filled anew by then, whether by a snapshot or from the log. Durable before it returns.
func (s *Store) ConfirmRun(run uuid.UUID) error {
	return s.changeIdentity(func(id *identityFile) error {
		id.Run, id.ClaimedRun = run, uuid.Nil
		id.Quarantine, id.QuarantineReason = "", ""
		return nil
	})
}

// SetFence persists the configuration and term that the node obeys from now on; durable before it returns (INV-1).
// Setting the present fence again costs nothing. It returns ErrFenceLower rather than go back.
func (s *Store) SetFence(f identity.Fence) error {
	return s.changeIdentity(func(id *identityFile) error {
		if f.Less(id.Fence) {
			return fmt.Errorf("%w: asked for config %d term %d, have config %d term %d",
				ErrFenceLower, f.Config, f.Term, id.Fence.Config, id.Fence.Term)
		}
		if mutate.Off("INV-1-fence-is-not-persisted") {
			s.id.Fence = f
			return nil
		}
		id.Fence = f
		return nil
	})
}

// MarkLoss notes that acknowledged bytes may be gone (INV-6): of a machine that went down, or since the directory was
// put back to an older image (INV-11, INV-12). Durable before it returns.
func (s *Store) MarkLoss() error {
	return s.changeIdentity(func(id *identityFile) error {
		id.MayHaveLost = true
		return nil
	})
}

// ClearLoss forgets MayHaveLost and raises the incarnation, so that no record that still trusts this store to be
// complete can match it again. To be called when the pair's record does not name it in sync any more. Durable before it
// returns.
func (s *Store) ClearLoss() error {
	return s.changeIdentity(func(id *identityFile) error {
		if id.MayHaveLost {
			id.MayHaveLost = false
			id.Incarnation++
		}
		return nil
	})
}

// JoinPair makes the node a member of a pair for good; durable before it returns. It returns ErrOtherPair if it is
// a member of another one.
func (s *Store) JoinPair(pair uuid.UUID) error {
	return s.changeIdentity(func(id *identityFile) error {
		if id.PairID != uuid.Nil && id.PairID != pair {
			return fmt.Errorf("%w: %s belongs to pair %s, and the coordinator names pair %s; point the node at its own "+
				"data directory, or at its own pair's prefix in the coordinator", ErrOtherPair, s.o.Dir, id.PairID,
				pair)
		}
		id.PairID, id.Restored = pair, ""
		return nil
	})
}

// changeIdentity applies change to the identity and persists it if anything is different.
func (s *Store) changeIdentity(change func(*identityFile) error) error {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	if s.closed.Load() {
		return ErrClosed // the directory may be another process's by now
	}
	next := s.id
	if err := change(&next); err != nil {
		return err
	}
	if next == s.id {
		return nil
	}
	if err := writeIdentity(s.o.FS, s.o.Dir, next); err != nil {
		s.fail(err)
		return err
	}
	s.id = next
	return nil
}
