package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// asidePrefix begins the name of the directory in which a store that could not be opened is kept.
const asidePrefix = "damaged-"

// openOrReplace opens the store. If it is damaged so that it cannot be opened, and the options allow it, what is there is set aside, and
// the store begins empty: it is a standby then that the other node has to fill.
func openOrReplace(o Options) (*Store, error) {
	s, err := open(o)
	if err == nil || !o.ReplaceDamaged {
		return s, err
	}
	if !errors.Is(err, page.ErrDamaged) && !errors.Is(err, ErrDataLoss) && !errors.Is(err, wal.ErrDamaged) {
		return nil, err
	}
	aside, aerr := setAside(&o)
	if aerr != nil {
		return nil, errors.Join(err, aerr)
	}
	if aside == "" {
		return nil, err
	}
	o.Logger.Error("the store is damaged and cannot be opened; it was set aside, and this node has to get everything from the other one",
		zap.String("kept_in", aside), zap.Error(err))
	return open(o)
}

// setAside moves log and page.db of a node of a pair into a directory beside them; "" if it is in no pair, for then nobody else has
// what is in them. The identity comes first: from then on the record does not name this store in sync any more (INV-4), and the node
// waits for an operator if nobody else is (INV-6).
func setAside(o *Options) (aside string, err error) {
	lock, err := o.FS.Lock(filepath.Join(o.Dir, lockName))
	if err != nil {
		return "", fmt.Errorf("set the damaged store aside: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	fail := func(err error) (string, error) { return "", fmt.Errorf("set the damaged store aside: %w", err) }
	id, err := readIdentity(o.FS, o.Dir)
	if err != nil {
		return fail(err)
	}
	if id.PairID == uuid.Nil {
		return "", nil
	}
	id.Incarnation++
	id.MayHaveLost, id.Install = true, nil
	if err := writeIdentity(o.FS, o.Dir, id); err != nil {
		return fail(err)
	}
	aside = filepath.Join(o.Dir, asidePrefix+time.Now().UTC().Format("20060102T150405.000000000"))
	asideLog := filepath.Join(aside, logDirName)
	if err := o.FS.MkdirAll(asideLog, 0o750); err != nil {
		return fail(err)
	}
	// The log first: without it a page file that is still there is no store that could be opened by mistake, but one that may have lost.
	logDir := filepath.Join(o.Dir, logDirName)
	names, err := o.FS.ReadDir(logDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	for _, name := range names {
		if err := o.FS.Rename(filepath.Join(logDir, name), filepath.Join(asideLog, name)); err != nil {
			return fail(err)
		}
	}
	if len(names) > 0 {
		if err := errors.Join(o.FS.SyncDir(asideLog), o.FS.SyncDir(logDir)); err != nil {
			return fail(err)
		}
	}
	if err := o.FS.Rename(filepath.Join(o.Dir, pageFileName), filepath.Join(aside, pageFileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	if err := errors.Join(o.FS.SyncDir(aside), o.FS.SyncDir(o.Dir)); err != nil {
		return fail(err)
	}
	return aside, nil
}
