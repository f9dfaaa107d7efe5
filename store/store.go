// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/repair"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// Store is the message store of one node. Its methods are safe for concurrent use, except where documented
// otherwise.
type Store struct {
	o          Options
	lock       io.Closer
	background atomic.Int32 // current value of Options.BackgroundPercent
	governor   *throttle.Governor

	idMu sync.Mutex
	id   datadir.IdentityFile

	log *wal.Log

	mu      sync.RWMutex // guards the fields below up to written
	state   *queue.State
	applied lsn.Position
	room    *sync.Cond // on mu: signals that Apply may continue, or that the store is unusable
	paused  bool       // a rewrite is copying the checkpoint
	holds   holds
	written int64 // total bytes of messages that were moved from memory to pages
	// sinceCheckpoint is the number of bytes of log that were applied and are not in a checkpoint. It is increased under
	// mu.
	sinceCheckpoint atomic.Int64

	recent recentFrames

	// The following fields are used only by the goroutine that calls Apply.
	reader   *wal.Reader
	readerAt lsn.Position
	results  []applyResult
	touched  []uint64

	extents   extentCache
	lanes     laneCache
	ahead     readAhead
	watch     watchers
	site      siteWatch
	clock     clock
	filters   atomic.Uint64 // see Filters
	dedups    atomic.Bool   // some queue has accepted message IDs
	snapshots snapshotSet
	pages     *pager.Pager
	repair    *repair.Repairer
	maint     *rewrite.Maintenance

	closed   atomic.Bool
	failed   atomic.Pointer[error]
	failOnce sync.Once
}

// Open opens or creates the store in o.Dir and loads the last checkpoint. It does not apply the log after the
// checkpoint: the caller must first determine which records are committed (INV-5).
//
// Errors include datadir.ErrInUse, datadir.ErrIdentity, datadir.ErrIdentityLost, datadir.ErrRestoring,
// ErrPagesMissing, ErrLogGap, index.ErrDataLoss (the state in the checkpoint is corrupt), and the errors of opening a
// page file (package page) or a log (package wal). With Options.ReplaceDamaged, Open quarantines a corrupt store of a
// pair and opens an empty one.
func Open(o Options) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return openOrReplace(o)
}

func openOrReplace(o Options) (*Store, error) {
	s, err := open(o)
	if err == nil || !cannotOpen(err) {
		return s, err
	}
	name, aerr := datadir.Quarantine(o.directory(), err, o.ReplaceDamaged, o.ReplaceUnknown)
	if aerr != nil {
		return nil, errors.Join(err, aerr)
	}
	if name == "" {
		return nil, fmt.Errorf("%w. No other node is known to have a copy, so nothing was changed. Restore the file as it "+
			"was when the node stopped; or restore a backup into an empty directory (lockstep store restore); or move "+
			"everything in %s, except raft, elsewhere and start again: the node then begins empty, or is filled by the "+
			"other node of its pair", err, o.Dir)
	}
	o.Events(events.Quarantined{Dir: filepath.Join(o.Dir, name), Err: err})
	return open(o)
}

// cannotOpen reports whether err means that files are corrupt or missing, unlike, for example, a permission error.
func cannotOpen(err error) bool {
	return slices.ContainsFunc([]error{
		page.ErrCorrupt, page.ErrNotPageFile, wal.ErrCorrupt, index.ErrDataLoss, ErrLogGap, ErrPagesMissing,
		datadir.ErrIdentityLost,
	}, func(corrupt error) bool { return errors.Is(err, corrupt) })
}

func open(o Options) (_ *Store, err error) {
	s := &Store{o: o, governor: throttle.NewGovernor()}
	s.repair = repair.New(engine{s}, o.Events)
	s.pages = pager.New(pager.Options{
		FS: o.FS, MemoryBudget: o.MemoryBudget, CheckpointBytes: o.CheckpointBytes,
		CheckpointInterval: o.CheckpointInterval, Events: o.Events, Engine: engine{s}, Damage: s.repair,
	})
	s.ServeReaders(true)
	s.maint = s.newMaintenance()
	s.SetBackgroundPercent(o.BackgroundPercent)
	s.clock.init()
	s.room = sync.NewCond(&s.mu)
	defer func() {
		if err != nil {
			_ = s.closeFiles() // err is the original cause
		}
	}()
	if err := s.lockDir(); err != nil {
		return nil, err
	}
	if s.id, err = datadir.OpenIdentity(o.directory()); err != nil {
		return nil, err
	}
	if err := datadir.FinishQuarantine(o.directory(), &s.id); err != nil {
		return nil, err
	}
	emptied, err := s.recoverInstall()
	if err != nil {
		return nil, err
	}
	if err := rewrite.Recover(s.o.FS, s.o.Dir, s.id.StoreID, s.o.Events); err != nil {
		return nil, err
	}
	if err := s.openPages(); err != nil {
		return nil, err
	}
	if err := s.openLog(s.applied, emptied); err != nil {
		return nil, err
	}
	s.state.CountAfter(s.log.End().LSN)
	s.repair.Use(s.pages, s.log)
	s.pages.Start()
	return s, nil
}

func (s *Store) lockDir() error {
	if err := s.o.FS.MkdirAll(s.o.Dir, 0o750); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	if err := s.o.FS.SyncDir(filepath.Dir(filepath.Clean(s.o.Dir))); err != nil {
		return fmt.Errorf("sync the parent of the data directory: %w", err)
	}
	var err error
	s.lock, err = s.o.FS.Lock(s.path(datadir.LockName))
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("%w: %s; stop that process, or configure another data directory", datadir.ErrInUse, s.o.Dir)
	}
	if err != nil {
		return fmt.Errorf("lock the data directory: %w", err)
	}
	return nil
}

func (s *Store) openPages() error {
	name := datadir.PageFile(s.o.Dir)
	file, err := page.Open(s.o.FS, name, page.Options{})
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.mayBegin(); err != nil {
			return err
		}
		file, err = page.Create(s.o.FS, name, page.CreateOptions{PageSize: s.o.PageSize, StoreID: s.id.StoreID})
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	return s.usePages(file)
}

func (s *Store) usePages(file *page.File) error {
	meta := file.Meta()
	pages := s.pages.Use(file)
	state, err := checkpoint.LoadState(pages.Index.View(), meta)
	if err != nil {
		return fmt.Errorf("load checkpoint %d: %w", meta.Checkpoint, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != nil {
		state.ContinueCounts(s.state)
		if state.Site().Differs(s.state.Site()) {
			defer s.site.wake() // a snapshot of another site was installed
		}
	}
	s.state, s.applied = state, meta.Position
	s.dedups.Store(state.Deduplicates())
	s.holds.reach(s.applied.LSN)
	// An installed snapshot may contain other access rules and another membership.
	s.watch.wake([]uint64{queue.AccessQueue, queue.FleetQueue})
	return nil
}

// openLog opens the log and verifies that it continues the checkpoint, which has the given position. If the log is
// missing or ends before the checkpoint, openLog records the loss (MarkLoss) and continues with an empty log. emptied
// is set if recoverInstall has emptied the log, which is not a loss.
func (s *Store) openLog(at lsn.Position, emptied bool) error {
	missing, err := s.logIsMissing(at)
	if err != nil {
		return err
	}
	if missing && !emptied {
		// Mark the loss before a new log is created, since afterwards it could no longer be detected (INV-6).
		s.o.Events(events.LogMissing{Checkpoint: at})
		if err := s.MarkLoss(); err != nil {
			return err
		}
	}
	s.log, err = wal.Open(wal.Options{
		FS: s.o.FS, Dir: datadir.LogDir(s.o.Dir), LogID: s.id.StoreID, SegmentBytes: s.o.SegmentBytes,
		KeepBytes: s.o.LogKeepBytes, MaxFrameBytes: s.o.MaxFrameBytes, Sync: s.o.Sync, SyncInterval: s.o.SyncInterval,
		Cache: s.o.PageCache.use(true), Start: at, VerifyFrom: at.LSN, Events: s.logEvent,
	})
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	end := s.log.End()
	if end.LSN < at.LSN {
		// With sync=off or interval, the log may lose records that a checkpoint, which is always synced, already contains.
		s.o.Events(events.LogBehind{LogEnd: end, Checkpoint: at})
		if err := s.MarkLoss(); err != nil {
			return err
		}
		if err := s.log.Reset(at); err != nil {
			return fmt.Errorf("reset the log to the checkpoint: %w", err)
		}
		return nil
	}
	if have, ok := s.log.PositionOf(at.LSN); !ok || have != at {
		return fmt.Errorf("%w: checkpoint at %v, but the log begins at LSN %d and ends at %v", ErrLogGap, at,
			s.log.First(), end)
	}
	s.log.NoteCommitted(at.LSN) // INV-5: a checkpoint contains only committed records
	return nil
}

// mayBegin returns nil if a store without page.db may start with an empty file, and ErrPagesMissing if it must not. The
// store may do so if it has no pair and no fence and was not restored. It may also do so if its log still begins with
// the first record, or if it is quarantined and has no log segment.
func (s *Store) mayBegin() error {
	if s.id.PairID == uuid.Nil && s.id.Fence == (identity.Fence{}) && s.id.Restored == "" {
		return nil
	}
	files, err := s.logFiles()
	if err != nil {
		return err
	}
	if slices.Contains(files, wal.FirstSegment) || s.id.Quarantine != "" && !slices.ContainsFunc(files, isSegment) {
		return nil
	}
	return fmt.Errorf("%w: %s does not exist, and the log does not begin with the first record",
		ErrPagesMissing, datadir.PageFile(s.o.Dir))
}

func (s *Store) logFiles() ([]string, error) {
	names, err := s.o.FS.ReadDir(datadir.LogDir(s.o.Dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the log: %w", err)
	}
	return names, nil
}

func isSegment(name string) bool { return filepath.Ext(name) == ".seg" }

// logIsMissing reports whether all segments of an existing log were removed. It returns false for a new directory,
// and if a truncation of the log was interrupted.
func (s *Store) logIsMissing(checkpoint lsn.Position) (bool, error) {
	if checkpoint.IsZero() && s.id.PairID == uuid.Nil && s.id.Fence == (identity.Fence{}) {
		return false, nil
	}
	files, err := s.logFiles()
	return err == nil && !slices.Contains(files, "cut.intent") && !slices.ContainsFunc(files, isSegment), err
}

// Close writes a checkpoint and closes all files. It marks the directory clean if the store has not failed and the
// files were closed without an error. If the store has failed, Close only closes the files. A second call does
// nothing.
func (s *Store) Close() error {
	if !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	s.maint.Close()
	s.wakeRoom()
	s.snapshots.closeAll()
	s.ahead.close()
	err := s.pages.Stop(s.failed.Load() != nil)
	return errors.Join(err, s.closeFiles())
}

// closeFiles closes all files. It marks the directory clean if the log was open, the store has not failed, and the log
// and the page file were closed without an error.
func (s *Store) closeFiles() error {
	var err error
	if s.log != nil {
		err = errors.Join(err, s.log.Close())
	}
	err = errors.Join(err, s.pages.Close())
	if err == nil && s.log != nil && s.failed.Load() == nil {
		s.idMu.Lock()
		s.id.Clean = true
		err = s.id.Write(s.o.FS, s.o.Dir)
		s.idMu.Unlock()
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// fail makes the store permanently unusable (INV-7). The first call sends events.Failed; later calls do nothing.
func (s *Store) fail(err error) {
	s.failOnce.Do(func() {
		s.failed.Store(&err)
		s.o.Events(events.Failed{Err: err})
		go s.wakeRoom()
	})
}

func (s *Store) logEvent(e events.Event) {
	s.o.Events(e)
	if f, ok := e.(events.LogFailed); ok {
		s.fail(f.Err)
	}
}

func (s *Store) wakeRoom() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room.Broadcast()
}

// Usable returns ErrClosed if the store is closed, an error that matches ErrFailed if it has failed, and otherwise
// nil.
func (s *Store) Usable() error {
	if s.closed.Load() {
		return ErrClosed
	}
	if err := s.failed.Load(); err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, *err)
	}
	return nil
}

// ServeReaders sets whether consumers read messages from this store, for CacheAuto. The default is true.
func (s *Store) ServeReaders(on bool) { s.pages.SetCacheUse(s.o.PageCache.use(on)) }

// View calls fn with the applied state, which does not change during the call. fn must not modify or retain the
// state, block, or perform I/O.
func (s *Store) View(fn func(state *queue.State)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	fn(s.state)
}

// QueueName returns the name of a queue for log messages. It never blocks: it returns "" if the queue does not exist
// or the lock on the state is not immediately available.
func (s *Store) QueueName(id uint64) string {
	if !s.mu.TryRLock() {
		return ""
	}
	defer s.mu.RUnlock()
	if q := s.state.Queue(id); q != nil {
		return q.Name()
	}
	return ""
}

// Filters returns a version number that changes when the filter of a subscription changes, before any later message
// becomes readable.
func (s *Store) Filters() uint64 { return s.filters.Load() }

// Repair returns the component that records and repairs corruption.
func (s *Store) Repair() *repair.Repairer { return s.repair }
