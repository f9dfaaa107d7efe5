// SPDX-License-Identifier: Apache-2.0

package rewrite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// A rewrite copies the last checkpoint, packed tightly, to page.db_new and then puts that in the place of page.db. What
// a crash leaves behind, and what the next Open (RecoverRewrite) makes of it:
//
//	page.db  page.db_new              page.db is the one; page.db_new, complete or not, is removed
//	         page.db_new  page.db_old page.db_new is complete and durable: it becomes page.db
//	page.db               page.db_old all was done
//
// page.db_new is synced, and its name is durable, before page.db is renamed; that is durable before page.db_new is
// renamed. Both files hold the same checkpoint, which the log continues: neither loses anything.

// RewriteOptions say how to rewrite page.db.
type Options struct {
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
	Progress func(checkpoint.Progress)
}

// RewriteResult is what a rewrite did.
type Result struct {
	// FromPageSize and PageSize, in bytes.
	FromPageSize int `json:"from_page_size"`
	PageSize     int `json:"page_size"`
	// FileBytes of page.db before and after.
	FileBytesBefore uint64 `json:"file_bytes_before"`
	FileBytesAfter  uint64 `json:"file_bytes_after"`
	// Messages that were copied and their bytes; DroppedMessages were wanted by no subscription any more.
	Messages        uint64 `json:"messages"`
	MessageBytes    uint64 `json:"message_bytes"`
	DroppedMessages uint64 `json:"dropped_messages"`
	// Paused is for how long nothing was applied; CopyTime is how long the copying took, up to the last sync.
	Paused   time.Duration `json:"paused"`
	CopyTime time.Duration `json:"copy_time"`
}

// Rewrite writes page.db anew with another page size (resize) or with the same (compact): the messages that some
// subscription wants, packed tightly, each stored once however many subscriptions want it. The former file is kept as
// page.db_old until DropOld or the next rewrite. Content, digest and sequence numbers stay as they are.
//
// Append and Sync go on at full speed meanwhile; Apply waits, and Read reads what was applied before. So it is for a
// node that serves no clients: a standby, or one that is starting.
//
// A damaged page is repaired from the other node, and the rewrite begun anew, once.
//
// It returns a MaintenanceError if a rewrite or shrink is under way, a SpaceError before anything is written if the new
// file does not fit, ErrDataLoss if a message cannot be read. When ctx ends it returns ErrCanceled at once (within
// milliseconds; not at all once the renames have begun) and Apply goes on; page.db_new is removed in the background.
// Whatever the error, page.db is as it was, unless it is ErrFailed: then a restart finds the one or the other.
func (m *Maintenance) Rewrite(ctx context.Context, o Options) (Result, error) {
	result, err := m.rewriteOnce(ctx, o)
	if errors.Is(err, index.ErrDataLoss) && m.e.Repair(ctx) {
		return m.rewriteOnce(ctx, o) // what was damaged has been repaired
	}
	return result, err
}

func (m *Maintenance) rewriteOnce(ctx context.Context, o Options) (Result, error) {
	if err := m.e.Usable(); err != nil {
		return Result{}, err
	}
	if o.PageSize != 0 {
		if err := page.CheckPageSize(o.PageSize); err != nil {
			return Result{}, fmt.Errorf("rewrite: %w", err)
		}
	}
	if o.ReserveBytes == 0 {
		o.ReserveBytes = m.o.ReserveBytes
	}
	wctx, u, err := m.begin(ctx, "rewrite")
	if err != nil {
		return Result{}, fmt.Errorf("rewrite: %w", err)
	}
	rw := &rewrite{m: m, e: m.e, fs: m.o.FS, events: m.o.Events, o: o, finished: make(chan struct{})}
	rw.meter = checkpoint.NewMeter(o.Progress)
	go func() {
		defer m.end(u)
		rw.err = rw.run(wctx)
		rw.resume()
		close(rw.finished)
		rw.cleanup()
	}()
	return rw.wait(wctx, u)
}

// wait waits for the end of the rewrite, or gives it up when ctx ends.
func (rw *rewrite) wait(ctx context.Context, u *task) (Result, error) {
	select {
	case <-rw.finished:
	case <-ctx.Done():
		if !rw.isFinished() && rw.abandon() { // its end ends the context, too
			rw.events(events.RewriteCanceled{Reason: rw.o.Reason})
			return Result{}, fmt.Errorf("rewrite: %w: %w", ErrCanceled, ctx.Err())
		}
		<-rw.finished
	}
	<-u.done // so that the next one can begin
	ended := errors.Is(rw.err, context.Canceled) || errors.Is(rw.err, context.DeadlineExceeded)
	if ended || errors.Is(rw.err, ErrCanceled) {
		rw.events(events.RewriteCanceled{Reason: rw.o.Reason})
	}
	if ended {
		return Result{}, fmt.Errorf("rewrite: %w: %w", ErrCanceled, rw.err)
	}
	return rw.result, rw.err
}

// rewrite is one rewrite under way.
type rewrite struct {
	m        *Maintenance
	e        Engine
	fs       vfs.FS
	events   func(events.Event)
	o        Options
	result   Result
	err      error
	finished chan struct{} // closed when result and err are final and Apply goes on

	file    *page.File             // that is read
	from    *checkpoint.Checkpoint // of file; nil before there is one
	builder *page.Builder
	meter   *checkpoint.Meter

	mu        sync.Mutex // guards what follows
	pausing   bool       // Apply waits
	pausedAt  time.Time
	abandoned bool // the caller of Rewrite does not wait any more
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
	rw.e.SetPaused(true)
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
	rw.e.SetPaused(false)
}

// cleanup removes what a rewrite that did not succeed leaves behind.
func (rw *rewrite) cleanup() {
	if rw.builder != nil {
		rw.builder.Abort() // nothing, when it was finished
	}
	if rw.from != nil {
		rw.from.Close()
	}
	if rw.err != nil && !rw.e.Failed() {
		_ = vfs.RemoveLarge(rw.fs, rw.path(datadir.NewFileName)) // the next rewrite or Open removes it otherwise
	}
}

func (rw *rewrite) path(name string) string { return filepath.Join(rw.m.o.Dir, name) }

// run does it all. On an error cleanup does the rest.
func (rw *rewrite) run(ctx context.Context) error {
	if err := rw.begin(ctx); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	plan, err := rw.plan(ctx)
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	rw.events(events.RewriteBegun{
		Reason: rw.o.Reason, FromPageSize: plan.FromPageSize, PageSize: plan.PageSize, Messages: plan.Messages,
		Bytes: plan.NeedBytes,
	})
	begun := time.Now()
	meta, err := rw.copy(ctx, plan)
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	rw.result.CopyTime = time.Since(begun)
	if err := rw.verify(ctx, meta); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	if err := rw.dropFormer(ctx); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	if err := rw.e.Swap(rw.file, rw.rename); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	rw.result.FileBytesAfter = uint64(meta.FileBytes())
	rw.resume()
	rw.meter.Done()
	rw.events(events.RewriteDone{
		PageSize: rw.result.PageSize, BytesBefore: rw.result.FileBytesBefore, Bytes: rw.result.FileBytesAfter,
		Paused: rw.result.Paused,
	})
	return nil
}

// begin pauses Apply and opens a checkpoint of all that was applied.
func (rw *rewrite) begin(ctx context.Context) error {
	rw.meter.Phase("checkpoint", 0)
	if err := rw.e.Checkpoint(ctx); err != nil { // most of the work, while Apply goes on
		return err
	}
	if err := rw.pause(ctx); err != nil {
		return err
	}
	if err := rw.e.Checkpoint(ctx); err != nil {
		return err
	}
	file, pin, err := rw.e.Pin()
	if err != nil {
		return err
	}
	rw.file, rw.from = file, checkpoint.Open(file, pin, checkpoint.Options{CacheBytes: rw.m.o.CacheBytes})
	if rw.o.PageSize == 0 {
		rw.o.PageSize = file.PageSize()
	}
	return nil
}

// plan finds out what the new file takes, and refuses if that is not there. A former page.db_old, which the rewrite
// replaces anyway, is dropped if that helps.
func (rw *rewrite) plan(ctx context.Context) (Plan, error) {
	live := rw.e.Live()
	if at, want := live.Applied(), rw.from.Meta().Position.LSN; at != want {
		return Plan{}, fmt.Errorf("the checkpoint stands at LSN %d, the store at %d", want, at)
	}
	plan, err := planWith(ctx, rw.from, live, rw.meter, rw.fs, rw.m.o.Dir, rw.o)
	if err != nil {
		return plan, err
	}
	rw.result.FromPageSize, rw.result.PageSize, rw.result.FileBytesBefore = plan.FromPageSize, plan.PageSize,
		plan.FileBytes
	if plan.NeedBytes+plan.ReserveBytes > plan.AvailableBytes && plan.Err() == nil {
		rw.events(events.OldFileDropped{Bytes: plan.OldFileBytes})
		if err := vfs.RemoveLarge(rw.fs, rw.path(datadir.OldFileName)); err != nil {
			return plan, fmt.Errorf("drop page.db_old: %w", err)
		}
	}
	err = plan.Err()
	return plan, err
}

// dropFormer removes the page.db_old of an earlier rewrite. The rename would do it as well, all at once and while
// nothing else can be done with page.db.
func (rw *rewrite) dropFormer(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := vfs.RemoveLarge(rw.fs, rw.path(datadir.OldFileName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("drop the former page.db_old: %w", err)
	}
	return nil
}

// verify opens the new file as the next start would, and compares what it holds with the present state.
func (rw *rewrite) verify(ctx context.Context, meta page.Meta) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	file, err := page.Open(rw.fs, rw.path(datadir.NewFileName), page.Options{})
	if err != nil {
		return fmt.Errorf("open the new file: %w", err)
	}
	state, err := checkpoint.LoadState(tree.New(file, meta.Root, tree.Options{}).View(), meta)
	err = errors.Join(err, file.Close())
	if err != nil {
		return fmt.Errorf("look at the new file: %w", err)
	}
	if live := rw.e.Live(); !live.Holds(state) {
		return fmt.Errorf("%w: the new file does not hold what it should", index.ErrDataLoss)
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

// rename makes page.db page.db_old and page.db_new page.db, in the order that is explained above, unless the rewrite
// was given up. An error of the first rename, or one of the second that could be undone, leaves everything as it was;
// any other is final.
func (rw *rewrite) rename() (bool, error) {
	if !rw.commitPoint() {
		return false, ErrCanceled
	}
	dir, final := rw.m.o.Dir, func(err error) (bool, error) {
		return false, rw.e.Fail(fmt.Errorf("put the new page.db in place: %w", err))
	}
	now, next, old := rw.path(datadir.PageFileName), rw.path(datadir.NewFileName), rw.path(datadir.OldFileName)
	if err := rw.fs.Rename(now, old); err != nil {
		if _, serr := rw.fs.Stat(now); serr != nil {
			return final(errors.Join(err, serr))
		}
		return false, fmt.Errorf("keep the old page.db: %w", err)
	}
	if err := rw.fs.SyncDir(dir); err != nil {
		return final(err)
	}
	if err := rw.fs.Rename(next, now); err != nil {
		if uerr := rw.fs.Rename(old, now); uerr != nil {
			return final(errors.Join(err, uerr))
		}
		if uerr := rw.fs.SyncDir(dir); uerr != nil {
			return final(errors.Join(err, uerr))
		}
		return false, fmt.Errorf("put the new page.db in place: %w", err)
	}
	if err := rw.fs.SyncDir(dir); err != nil {
		return final(err)
	}
	return true, nil
}

// Recover brings a rewrite that a crash interrupted to one of its two ends, before page.db is opened.
func Recover(fsys vfs.FS, dir string, storeID uuid.UUID, tell func(events.Event)) error {
	now, next := datadir.PageFile(dir), filepath.Join(dir, datadir.NewFileName)
	if _, err := fsys.Stat(next); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for an interrupted rewrite: %w", err)
	}
	_, err := fsys.Stat(now)
	switch {
	case err == nil:
		tell(events.RewriteRecovered{})
		if err := fsys.Remove(next); err != nil {
			return fmt.Errorf("remove an interrupted rewrite: %w", err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look at page.db: %w", err)
	}
	// It was complete before page.db was renamed. If it is damaged all the same, the old file is as good.
	from := next
	if err := validPageFile(fsys, next, storeID); err != nil {
		old := filepath.Join(dir, datadir.OldFileName)
		if oerr := validPageFile(fsys, old, storeID); oerr != nil {
			return fmt.Errorf("finish an interrupted rewrite: %w; %w", err, oerr)
		}
		tell(events.RewriteDamaged{Err: err})
		from = old
	}
	if err := fsys.Rename(from, now); err != nil {
		return fmt.Errorf("finish an interrupted rewrite: %w", err)
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fmt.Errorf("finish an interrupted rewrite: %w", err)
	}
	tell(events.RewriteRecovered{From: filepath.Base(from)})
	return nil
}

// validPageFile tells whether a page file of a store can be opened.
func validPageFile(fsys vfs.FS, name string, storeID uuid.UUID) error {
	file, err := page.Open(fsys, name, page.Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	if file.StoreID() != [16]byte(storeID) {
		err = fmt.Errorf("%s belongs to another store: %w", name, page.ErrNotPageFile)
	}
	if cerr := file.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("close %s: %w", name, cerr)
	}
	return err
}
