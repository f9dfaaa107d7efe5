// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// A store of a pair that cannot be opened can be quarantined: its files are moved to a subdirectory, and it starts
// empty. The identity is written first, with the field Quarantining, which is set until all files are moved. If
// store.Open finds it set, Open continues the move. The store then has a higher incarnation, or a new node ID
// (INV-4). Quarantine stays in the identity: without a cluster record such a store waits (INV-9).

const quarantinePrefix = "damaged-"

// noContent returns ErrIdentityLost for a directory that has a node's files but no identity. A new node creates its
// identity before any other file except the lock.
func noContent(fsys vfs.FS, dir string) error {
	if mutate.Off("INV-9-lost-identity-is-a-new-node") {
		return nil
	}
	names, _, err := logFiles(fsys, dir)
	if err != nil {
		return fmt.Errorf("list the log: %w", err)
	}
	for _, name := range append(names, PageFileName, NewFileName) {
		switch _, err := fsys.Stat(filepath.Join(dir, name)); {
		case err == nil:
			return fmt.Errorf("%w: %s does not exist, but %s does", ErrIdentityLost, filepath.Join(dir, identityName), name)
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("stat %s: %w", name, err)
		}
	}
	return nil
}

// logFiles returns the names of the log's files, relative to the data directory. there reports whether the log
// directory exists.
func logFiles(fsys vfs.FS, dir string) (names []string, there bool, err error) {
	all, err := fsys.ReadDir(LogDir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, name := range all {
		if wal.IsLogFile(name) {
			names = append(names, filepath.Join(LogName, name))
		}
	}
	return names, true, nil
}

// Quarantine quarantines a store that cannot be opened, and returns the name of the quarantine directory. member
// permits the quarantine of a store that belongs to a pair or was quarantined before. unknown permits the quarantine
// of a store without a readable identity. If the quarantine is not permitted, Quarantine changes nothing and returns
// "".
func Quarantine(o Options, why error, member, unknown bool) (name string, err error) {
	lock, err := o.FS.Lock(filepath.Join(o.Dir, LockName))
	if err != nil {
		return "", fmt.Errorf("quarantine the store: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	id, err := readIdentity(o.FS, o.Dir)
	lost := errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrIdentityLost)
	switch {
	case lost && !unknown:
		return "", nil
	case lost:
		id = IdentityFile{
			Version: identityVersion, NodeID: uuid.New(), StoreID: uuid.New(), BootID: o.BootID,
			Sync: o.Sync.String(),
		}
	case err != nil:
		return "", fmt.Errorf("quarantine the store: %w", err)
	case !member || id.PairID == uuid.Nil && id.Quarantine == "":
		return "", nil
	}
	name = quarantinePrefix + time.Now().UTC().Format("20060102T150405.000000000")
	id.Incarnation++
	id.MayHaveLost, id.Install = true, nil
	id.Quarantining, id.Quarantine, id.QuarantineReason = name, name, shortened(why.Error())
	if err := keepIdentity(o, name); err != nil {
		return "", fmt.Errorf("quarantine the store: %w", err)
	}
	if err := id.Write(o.FS, o.Dir); err != nil {
		return "", fmt.Errorf("quarantine the store: %w", err)
	}
	return name, FinishQuarantine(o, &id)
}

const whyBytes = 500

func shortened(text string) string {
	if len(text) > whyBytes {
		return strings.ToValidUTF8(text[:whyBytes], "") + "…"
	}
	return text
}

func keepIdentity(o Options, name string) error {
	to := filepath.Join(o.Dir, name)
	if err := vfs.MkdirAllSync(o.FS, filepath.Join(to, LogName), 0o750); err != nil {
		return err
	}
	raw, err := vfs.ReadFile(o.FS, filepath.Join(o.Dir, identityName), identityMaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read identity: %w", err)
	}
	return vfs.WriteFileAtomic(o.FS, filepath.Join(to, identityName), raw)
}

// FinishQuarantine moves the remaining files of an interrupted quarantine, if any, and then clears Quarantining in the
// identity.
func FinishQuarantine(o Options, id *IdentityFile) error {
	if id.Quarantining == "" {
		return nil
	}
	to := filepath.Join(o.Dir, id.Quarantining)
	fail := func(err error) error { return fmt.Errorf("quarantine the store in %s: %w", to, err) }
	if err := vfs.MkdirAllSync(o.FS, filepath.Join(to, LogName), 0o750); err != nil {
		return fail(err)
	}
	names, hadLog, err := logFiles(o.FS, o.Dir)
	if err != nil {
		return fail(err)
	}
	// Move the log first: a page file without a log is treated as a store that may have lost data. Also move an
	// unfinished rewrite or snapshot, which would be mistaken for the page file of the new store.
	for _, name := range append(names, PageFileName, NewFileName, ReceiveName) {
		err := o.FS.Rename(filepath.Join(o.Dir, name), filepath.Join(to, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fail(err)
		}
	}
	dirs := []string{filepath.Join(to, LogName), to, o.Dir}
	if hadLog {
		dirs = append(dirs, LogDir(o.Dir))
	}
	for _, dir := range dirs {
		if err := o.FS.SyncDir(dir); err != nil {
			return fail(err)
		}
	}
	id.Quarantining = ""
	return id.Write(o.FS, o.Dir)
}
