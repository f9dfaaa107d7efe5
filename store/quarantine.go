// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// A store of a pair that cannot be opened is set aside: what is in the way is moved to a directory beside it, and the
// store begins empty, as a standby that the other node has to fill. A crash at any point must leave neither a store
// that is taken for complete nor a directory that is taken for a new node's. So the identity goes first, and has the
// mark Quarantining until everything is moved; a start that finds the mark goes on moving.
//
// From the first write on, the record does not name this store in sync any more: it has a higher incarnation, or is of
// another node (INV-4), and may have lost what was acknowledged, so that it waits for an operator if no other node is
// in sync (INV-6). Quarantine stays in the identity: without a pair's record such a store waits, where a new one would
// begin a pair (INV-9).

// quarantinePrefix begins the name of the directory in which a store that could not be opened is kept.
const quarantinePrefix = "damaged-"

// openOrReplace opens the store. If it is damaged so that it cannot be opened, and the options allow it, what is there
// is set aside.
func openOrReplace(o Options) (*Store, error) {
	s, err := open(o)
	if err == nil || !cannotOpen(err) {
		return s, err
	}
	name, aerr := quarantine(&o, err)
	if aerr != nil {
		return nil, errors.Join(err, aerr)
	}
	if name == "" {
		return nil, fmt.Errorf("%w. No other node is known to hold what was stored here, so nothing was changed. Put "+
			"the file back if there is a copy of it as it was when the node stopped; or restore a backup into an "+
			"empty directory (lockstep store restore); or, to begin with nothing, or if this node of a pair may be "+
			"filled by the other one, move everything in %s elsewhere and start again", err, o.Dir)
	}
	o.Events(events.Quarantined{Dir: filepath.Join(o.Dir, name), Err: err})
	return open(o)
}

// cannotOpen tells whether it is what the files hold that keeps the store from being opened, and not, say, who may read
// them.
func cannotOpen(err error) bool {
	for _, damage := range []error{
		page.ErrDamaged, page.ErrNotPageFile, wal.ErrDamaged, index.ErrDataLoss, ErrLogGap, ErrPagesMissing,
		ErrIdentityLost,
	} {
		if errors.Is(err, damage) {
			return true
		}
	}
	return false
}

// noContent returns ErrIdentityLost for a directory without an identity that has the files of a node. A new node makes
// its identity before anything else.
func noContent(fsys vfs.FS, dir string) error {
	if mutate.Off("INV-9-lost-identity-is-a-new-node") {
		return nil
	}
	names, _, err := logFiles(fsys, dir)
	if err != nil {
		return fmt.Errorf("look for the log: %w", err)
	}
	for _, name := range append(names, datadir.PageFileName, datadir.NewFileName) {
		switch _, err := fsys.Stat(filepath.Join(dir, name)); {
		case err == nil:
			return fmt.Errorf("%w: %s is not there, but %s is", ErrIdentityLost, filepath.Join(dir, identityName), name)
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("look for %s: %w", name, err)
		}
	}
	return nil
}

// logFiles lists the files of the log, as names in the data directory. What else is in a directory called log is
// not ours: the data directory may be the wrong one.
func logFiles(fsys vfs.FS, dir string) (names []string, there bool, err error) {
	all, err := fsys.ReadDir(datadir.LogDir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, name := range all {
		if wal.IsLogFile(name) {
			names = append(names, filepath.Join(datadir.LogName, name))
		}
	}
	return names, true, nil
}

// quarantine sets a store aside and returns the name of the directory in which it is kept. "" if it is in no pair, for
// then no other node has what is in it.
func quarantine(o *Options, why error) (name string, err error) {
	lock, err := o.FS.Lock(filepath.Join(o.Dir, datadir.LockName))
	if err != nil {
		return "", fmt.Errorf("set the damaged store aside: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	id, err := readIdentity(o.FS, o.Dir)
	lost := errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrIdentityLost)
	switch {
	case lost && !o.ReplaceUnknown:
		return "", nil
	case lost:
		id = identityFile{
			Version: identityVersion, NodeID: uuid.New(), StoreID: uuid.New(), BootID: o.BootID,
			Sync: o.Sync.String(),
		}
	case err != nil:
		return "", fmt.Errorf("set the damaged store aside: %w", err)
	case !o.ReplaceDamaged || id.PairID == uuid.Nil && id.Quarantine == "":
		return "", nil
	}
	name = quarantinePrefix + time.Now().UTC().Format("20060102T150405.000000000")
	id.Incarnation++
	id.MayHaveLost, id.Install = true, nil
	id.Quarantining, id.Quarantine, id.QuarantineReason = name, name, shortened(why.Error())
	if err := keepIdentity(o, name); err != nil {
		return "", fmt.Errorf("set the damaged store aside: %w", err)
	}
	if err := writeIdentity(o.FS, o.Dir, id); err != nil {
		return "", fmt.Errorf("set the damaged store aside: %w", err)
	}
	return name, finishQuarantine(o, &id)
}

// whyBytes bounds what the identity keeps of an error, in bytes.
const whyBytes = 500

func shortened(text string) string {
	if len(text) > whyBytes {
		return strings.ToValidUTF8(text[:whyBytes], "") + "…"
	}
	return text
}

// keepIdentity puts a copy of the identity, as it is, beside the files that will follow.
func keepIdentity(o *Options, name string) error {
	to := filepath.Join(o.Dir, name)
	if err := vfs.MkdirAllSync(o.FS, filepath.Join(to, datadir.LogName), 0o750); err != nil {
		return err
	}
	raw, err := vfs.ReadFile(o.FS, filepath.Join(o.Dir, identityName), identityMaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read identity: %w", err)
	}
	if err := writeFileSync(o.FS, filepath.Join(to, identityName), raw); err != nil {
		return err
	}
	return o.FS.SyncDir(to)
}

// finishQuarantine moves what belongs to a store that is being set aside, and then takes the mark out of the identity.
func finishQuarantine(o *Options, id *identityFile) error {
	if id.Quarantining == "" {
		return nil
	}
	to := filepath.Join(o.Dir, id.Quarantining)
	fail := func(err error) error { return fmt.Errorf("set the damaged store aside in %s: %w", to, err) }
	if err := vfs.MkdirAllSync(o.FS, filepath.Join(to, datadir.LogName), 0o750); err != nil {
		return fail(err)
	}
	names, hadLog, err := logFiles(o.FS, o.Dir)
	if err != nil {
		return fail(err)
	}
	// The log first: a page file without it is one that may have lost. A rewrite or a snapshot in the making would be
	// taken for the page file of the new store.
	for _, name := range append(names, datadir.PageFileName, datadir.NewFileName, datadir.ReceiveName) {
		err := o.FS.Rename(filepath.Join(o.Dir, name), filepath.Join(to, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fail(err)
		}
	}
	dirs := []string{filepath.Join(to, datadir.LogName), to, o.Dir}
	if hadLog {
		dirs = append(dirs, datadir.LogDir(o.Dir))
	}
	for _, dir := range dirs {
		if err := o.FS.SyncDir(dir); err != nil {
			return fail(err)
		}
	}
	id.Quarantining = ""
	return writeIdentity(o.FS, o.Dir, *id)
}
