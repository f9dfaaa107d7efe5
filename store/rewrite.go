package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// newFileName is a rewrite under way.
const newFileName = "page.db_new"

// A rewrite copies the last checkpoint, packed tightly, to page.db_new and then puts that in the place of page.db. What
// a crash leaves behind, and what the next Open (recoverRewrite) makes of it:
//
//	page.db  page.db_new              page.db is the one; page.db_new, complete or not, is removed
//	         page.db_new  page.db_old page.db_new is complete and durable: it becomes page.db
//	page.db               page.db_old all was done
//
// page.db_new is synced, and its name is durable, before page.db is renamed; that is durable before page.db_new is
// renamed. Both files hold the same checkpoint, which the log continues: neither loses anything.

// RewriteOptions say how to rewrite page.db.
type RewriteOptions struct {
	// PageSize of the new file in bytes; 0 keeps the present one, which makes the rewrite a compact.
	PageSize int
	// ReserveBytes must stay free on the disk besides the new file, for the log; 0 stands for one log segment.
	ReserveBytes uint64
	// BytesPerSecond of messages that are copied, 0 for as many as can be. What Apply has to wait for takes longer with
	// a limit.
	BytesPerSecond int64
	// Reason is for the log.
	Reason string
	// Progress, if not nil, is called now and then from another goroutine; once more at most after a canceled Rewrite
	// returned.
	Progress func(Progress)
}

// RewriteResult is what a rewrite did.
type RewriteResult struct {
	// FromPageSize and PageSize, in bytes.
	FromPageSize int `json:"from_page_size"`
	PageSize     int `json:"page_size"`
	// FileBytes of page.db before and after.
	FileBytesBefore uint64 `json:"file_bytes_before"`
	FileBytesAfter  uint64 `json:"file_bytes_after"`
	// Messages that were copied and their bytes; DroppedMessages nobody wanted any more.
	Messages        uint64 `json:"messages"`
	MessageBytes    uint64 `json:"message_bytes"`
	DroppedMessages uint64 `json:"dropped_messages"`
	// Paused is for how long nothing was applied; CopyTime is how long the copying took, up to the last sync.
	Paused   time.Duration `json:"paused"`
	CopyTime time.Duration `json:"copy_time"`
}

// Rewrite writes page.db anew with another page size (resize) or with the same (compact): the messages that somebody
// wants, packed tightly, each stored once however many subscriptions want it. The former file is kept as page.db_old
// until DropOld or the next rewrite. Content, digest and sequence numbers stay as they are.
//
// Append and Sync go on at full speed meanwhile; Apply waits, and Read reads what was applied before. So it is for a
// node that nobody waits for: a standby, or one that is starting.
//
// A damaged page is repaired from the other node, and the rewrite begun anew, once.
//
// It returns a MaintenanceError if a rewrite or shrink is under way, a SpaceError before anything is written if the new
// file does not fit, ErrDataLoss if a message cannot be read. When ctx ends it returns ErrCanceled at once (within
// milliseconds; not at all once the renames have begun) and Apply goes on; page.db_new is removed in the background.
// Whatever the error, page.db is as it was, unless it is ErrFailed: then a restart finds the one or the other.
func (s *Store) Rewrite(ctx context.Context, o RewriteOptions) (RewriteResult, error) {
	result, err := s.rewriteOnce(ctx, o)
	if !errors.Is(err, ErrDataLoss) || s.damage.source.Load() == nil {
		return result, err
	}
	if left, rerr := s.RepairAll(ctx); rerr != nil || left > 0 {
		return result, err
	}
	return s.rewriteOnce(ctx, o) // what was damaged has been repaired
}

func (s *Store) rewriteOnce(ctx context.Context, o RewriteOptions) (RewriteResult, error) {
	if err := s.usable(); err != nil {
		return RewriteResult{}, err
	}
	if o.PageSize != 0 {
		if err := page.CheckPageSize(o.PageSize); err != nil {
			return RewriteResult{}, fmt.Errorf("rewrite: %w", err)
		}
	}
	wctx, u, err := s.maint.begin(ctx, "rewrite")
	if err != nil {
		return RewriteResult{}, fmt.Errorf("rewrite: %w", err)
	}
	rw := &rewrite{s: s, o: o, finished: make(chan struct{})}
	rw.meter.report = o.Progress
	go func() {
		defer s.maint.end(u)
		rw.err = rw.run(wctx)
		rw.resume()
		close(rw.finished)
		rw.cleanup()
	}()
	select {
	case <-rw.finished:
	case <-wctx.Done():
		if !rw.isFinished() && rw.abandon() { // its end ends the context, too
			s.o.Logger.Info("rewrite of page.db canceled", zap.String("reason", o.Reason))
			return RewriteResult{}, fmt.Errorf("rewrite: %w: %w", ErrCanceled, wctx.Err())
		}
		<-rw.finished
	}
	<-u.done // so that the next one can begin
	if errors.Is(rw.err, context.Canceled) || errors.Is(rw.err, context.DeadlineExceeded) ||
		errors.Is(rw.err, ErrCanceled) {
		s.o.Logger.Info("rewrite of page.db canceled", zap.String("reason", o.Reason))
	}
	if errors.Is(rw.err, context.Canceled) || errors.Is(rw.err, context.DeadlineExceeded) {
		return RewriteResult{}, fmt.Errorf("rewrite: %w: %w", ErrCanceled, rw.err)
	}
	return rw.result, rw.err
}

// rewrite is one rewrite under way.
type rewrite struct {
	s        *Store
	o        RewriteOptions
	result   RewriteResult
	err      error
	finished chan struct{} // closed when result and err are final and Apply goes on

	file    *page.File // that is read
	builder *page.Builder
	pin     *page.Pin
	meter   meter

	mu        sync.Mutex // guards what follows; before Store.mu
	pausing   bool       // Store.paused is set
	pausedAt  time.Time
	abandoned bool // whoever asked for it does not wait any more
	committed bool // too late for that
}

// abandon gives the rewrite up, so that Apply goes on at once; what is left to do goes on in the background. It returns
// false when it is too late.
func (rw *rewrite) abandon() bool {
	select {
	case <-rw.finished:
		return false
	default:
	}
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if rw.committed {
		return false
	}
	rw.abandoned = true
	rw.resumeLocked()
	return true
}

// commitPoint tells whether the rewrite is still wanted. From then on it cannot be given up.
func (rw *rewrite) commitPoint() bool {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	rw.committed = !rw.abandoned
	return rw.committed
}

// pause makes Apply wait: what it applied from now on would not be in the new file.
func (rw *rewrite) pause(ctx context.Context) error {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if rw.abandoned || ctx.Err() != nil {
		return ErrCanceled
	}
	rw.pausing, rw.pausedAt = true, time.Now()
	rw.s.mu.Lock()
	defer rw.s.mu.Unlock()
	rw.s.paused = true
	return nil
}

// resume lets Apply go on.
func (rw *rewrite) resume() {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	rw.resumeLocked()
}

func (rw *rewrite) resumeLocked() {
	if !rw.pausing {
		return
	}
	rw.pausing = false
	rw.result.Paused = time.Since(rw.pausedAt)
	rw.s.mu.Lock()
	defer rw.s.mu.Unlock()
	rw.s.paused = false
	rw.s.room.Broadcast()
}

// cleanup removes what a rewrite that did not succeed leaves behind.
func (rw *rewrite) cleanup() {
	if rw.builder != nil {
		rw.builder.Abort() // nothing, when it was finished
	}
	if rw.pin != nil {
		rw.pin.Release()
	}
	if rw.err != nil && rw.s.failed.Load() == nil {
		_ = rw.s.o.FS.Remove(rw.path(newFileName)) // the next rewrite or Open removes it otherwise
	}
}

func (rw *rewrite) path(name string) string { return filepath.Join(rw.s.o.Dir, name) }

// run does it all. On an error cleanup does the rest.
func (rw *rewrite) run(ctx context.Context) error {
	s := rw.s
	rw.meter.phase("checkpoint", 0)
	if _, err := s.Checkpoint(ctx); err != nil { // most of the work, while Apply goes on
		return fmt.Errorf("rewrite: %w", err)
	}
	if err := rw.pause(ctx); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	if _, err := s.Checkpoint(ctx); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	var err error
	if rw.file, rw.pin, err = s.pinFile(); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	if rw.o.PageSize == 0 {
		rw.o.PageSize = rw.file.PageSize()
	}
	plan, err := rw.plan(ctx)
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	s.o.Logger.Info("rewriting page.db", zap.String("reason", rw.o.Reason),
		zap.Int("from_page_size", plan.FromPageSize),
		zap.Int("page_size", plan.PageSize), zap.Uint64("messages", plan.Messages), zap.Uint64("bytes", plan.NeedBytes))
	begun := time.Now()
	meta, err := rw.copy(ctx, plan)
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	rw.result.CopyTime = time.Since(begun)
	if err := rw.verify(ctx, meta); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	if err := rw.commit(); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	rw.result.FileBytesAfter = uint64(meta.FileBytes())
	rw.resume()
	rw.meter.phase("done", rw.meter.now.TotalPages)
	s.o.Logger.Info("page.db was rewritten", zap.Int("page_size", rw.result.PageSize),
		zap.Uint64("bytes_before", rw.result.FileBytesBefore),
		zap.Uint64("bytes", rw.result.FileBytesAfter), zap.Duration("paused", rw.result.Paused))
	return nil
}

// live gives the state that the checkpoint holds: nothing is applied, so it is the present one.
func (rw *rewrite) live() liveness {
	rw.s.mu.RLock()
	defer rw.s.mu.RUnlock()
	return liveness{state: rw.s.state, lock: rw.s.mu.RLocker()}
}

// view opens the tree of the checkpoint.
func (rw *rewrite) view() *tree.View {
	return tree.New(rw.file, rw.pin.Meta().Root, tree.Options{CacheBytes: rw.s.o.MemoryBudget / 32}).View()
}

// plan finds out what the new file takes, and refuses if that is not there. A former page.db_old, which the rewrite
// replaces anyway, is dropped if that helps.
func (rw *rewrite) plan(ctx context.Context) (RewritePlan, error) {
	s := rw.s
	if at := s.Applied(); at != rw.pin.Meta().Position {
		return RewritePlan{}, fmt.Errorf("the checkpoint stands at %v, the store at %v", rw.pin.Meta().Position, at)
	}
	v := survey{file: rw.file, view: rw.view(), meta: rw.pin.Meta(), live: rw.live(), meter: rw.meter}
	plan, err := v.plan(ctx, s.o.FS, s.o.Dir, rw.o.PageSize, rw.reserve())
	rw.meter = v.meter
	if err != nil {
		return plan, err
	}
	rw.result.FromPageSize, rw.result.PageSize, rw.result.FileBytesBefore = plan.FromPageSize, plan.PageSize,
		plan.FileBytes
	if plan.NeedBytes+plan.ReserveBytes > plan.AvailableBytes && plan.Err() == nil {
		s.o.Logger.Info("dropping page.db_old to make room for a rewrite", zap.Uint64("bytes", plan.OldFileBytes))
		if err := s.o.FS.Remove(rw.path(oldFileName)); err != nil {
			return plan, fmt.Errorf("drop page.db_old: %w", err)
		}
	}
	err = plan.Err()
	return plan, err
}

func (rw *rewrite) reserve() uint64 {
	if rw.o.ReserveBytes != 0 {
		return rw.o.ReserveBytes
	}
	return uint64(rw.s.o.SegmentBytes)
}

// verify opens the new file as the next start would, and compares what it holds with the present state.
func (rw *rewrite) verify(ctx context.Context, meta page.Meta) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	file, err := page.Open(rw.s.o.FS, rw.path(newFileName), page.Options{})
	if err != nil {
		return fmt.Errorf("open the new file: %w", err)
	}
	state, err := loadState(tree.New(file, meta.Root, tree.Options{}).View(), meta)
	err = errors.Join(err, file.Close())
	if err != nil {
		return fmt.Errorf("look at the new file: %w", err)
	}
	live := rw.live()
	live.lock.Lock()
	defer live.lock.Unlock()
	if state.Digest() != live.state.Digest() || state.Messages() != live.state.Messages() ||
		state.Applied() != live.state.Applied() {
		return fmt.Errorf("%w: the new file does not hold what it should", ErrDataLoss)
	}
	return nil
}

// commit puts the new file in the place of the old one.
func (rw *rewrite) commit() error {
	s := rw.s
	s.pager.hold()
	defer s.pager.mu.Unlock()
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if s.file != rw.file || s.pager.todo != nil {
		return fmt.Errorf("%w: page.db was replaced meanwhile", ErrCanceled)
	}
	if !rw.commitPoint() {
		return ErrCanceled
	}
	done, err := rw.rename()
	if err != nil {
		return err
	}
	if done {
		err = rw.swap()
	}
	if err != nil {
		s.fail(err)
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return nil
}

// isFinished tells whether the work has come to its end, good or bad.
func (rw *rewrite) isFinished() bool {
	select {
	case <-rw.finished:
		return true
	default:
		return false
	}
}

// rename makes page.db page.db_old and page.db_new page.db, in the order that is explained above. An error of the
// first rename, or one of the second that could be undone, leaves everything as it was; any other is final.
func (rw *rewrite) rename() (bool, error) {
	s := rw.s
	final := func(err error) (bool, error) {
		err = fmt.Errorf("put the new page.db in place: %w", err)
		s.fail(err)
		return false, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if err := s.o.FS.Rename(rw.path(pageFileName), rw.path(oldFileName)); err != nil {
		if _, serr := s.o.FS.Stat(rw.path(pageFileName)); serr != nil {
			return final(errors.Join(err, serr))
		}
		return false, fmt.Errorf("keep the old page.db: %w", err)
	}
	if err := s.o.FS.SyncDir(s.o.Dir); err != nil {
		return final(err)
	}
	if err := s.o.FS.Rename(rw.path(newFileName), rw.path(pageFileName)); err != nil {
		if uerr := s.o.FS.Rename(rw.path(oldFileName), rw.path(pageFileName)); uerr != nil {
			return final(errors.Join(err, uerr))
		}
		if uerr := s.o.FS.SyncDir(s.o.Dir); uerr != nil {
			return final(errors.Join(err, uerr))
		}
		return false, fmt.Errorf("put the new page.db in place: %w", err)
	}
	if err := s.o.FS.SyncDir(s.o.Dir); err != nil {
		return final(err)
	}
	return true, nil
}

// swap opens the new page.db and goes on with it. The state is the same.
func (rw *rewrite) swap() error {
	s := rw.s
	file, err := page.Open(s.o.FS, rw.path(pageFileName), page.Options{})
	if err != nil {
		return fmt.Errorf("open the new page.db: %w", err)
	}
	old := s.file
	s.mu.Lock()
	s.use(file)
	s.index = tree.New(file, file.Meta().Root, tree.Options{CacheBytes: s.o.MemoryBudget / 8})
	s.mu.Unlock()
	s.maint.retire(old, func(err error) { s.o.Logger.Warn("close page.db_old", zap.Error(err)) })
	return nil
}

// recoverRewrite brings a rewrite that a crash interrupted to one of its two ends, before page.db is opened.
func (s *Store) recoverRewrite() error {
	at := func(name string) string { return filepath.Join(s.o.Dir, name) }
	if _, err := s.o.FS.Stat(at(newFileName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for an interrupted rewrite: %w", err)
	}
	_, err := s.o.FS.Stat(at(pageFileName))
	switch {
	case err == nil:
		s.o.Logger.Info("removing a rewrite of page.db that was interrupted")
		if err := s.o.FS.Remove(at(newFileName)); err != nil {
			return fmt.Errorf("remove an interrupted rewrite: %w", err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look at page.db: %w", err)
	}
	// It was complete before page.db was renamed. If it is damaged all the same, the old file is as good.
	from := newFileName
	if err := s.validPageFile(at(newFileName)); err != nil {
		if oerr := s.validPageFile(at(oldFileName)); oerr != nil {
			return fmt.Errorf("finish an interrupted rewrite: %w; %w", err, oerr)
		}
		s.o.Logger.Warn("the rewritten page.db is damaged; going back to the old one", zap.Error(err))
		from = oldFileName
	}
	if err := s.o.FS.Rename(at(from), at(pageFileName)); err != nil {
		return fmt.Errorf("finish an interrupted rewrite: %w", err)
	}
	if err := s.o.FS.SyncDir(s.o.Dir); err != nil {
		return fmt.Errorf("finish an interrupted rewrite: %w", err)
	}
	s.o.Logger.Info("finished a rewrite of page.db that was interrupted", zap.String("from", from))
	return nil
}

// validPageFile tells whether a page file of this store can be opened.
func (s *Store) validPageFile(name string) error {
	file, err := page.Open(s.o.FS, name, page.Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	if file.StoreID() != [16]byte(s.id.StoreID) {
		err = fmt.Errorf("%s belongs to another store: %w", name, page.ErrNotPageFile)
	}
	if cerr := file.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("close %s: %w", name, cerr)
	}
	return err
}

// DropOld removes page.db_old, which the last rewrite or the last installation of a snapshot replaced, and returns how
// many bytes that gave back; 0 if there was none. It returns a MaintenanceError while a rewrite is under way.
func (s *Store) DropOld() (uint64, error) {
	if err := s.usable(); err != nil {
		return 0, err
	}
	_, u, err := s.maint.begin(context.Background(), "drop-old")
	if err != nil {
		return 0, fmt.Errorf("drop page.db_old: %w", err)
	}
	defer s.maint.end(u)
	return dropOld(s.o.FS, s.o.Dir)
}
