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

// A rewrite copies the last checkpoint, packed tightly, to page.db_new and then replaces page.db with it. A crash can
// leave these files, which the next Open (Recover) resolves:
//
//	page.db  page.db_new              page.db is current; page.db_new, complete or not, is removed
//	         page.db_new  page.db_old page.db_new is complete and durable: it becomes page.db
//	page.db               page.db_old the rewrite is complete
//
// page.db_new is synced, and its name is durable, before page.db is renamed. That rename is durable before
// page.db_new is renamed. Both files have the same content at the same position.

// Options configures a rewrite.
type Options struct {
	// PageSize is the new page size; 0 keeps the current one (a compact).
	PageSize int
	// ReserveBytes is the space that must stay free on the disk for the log, in addition to the new file. The default
	// is one log segment.
	ReserveBytes uint64
	// BytesPerSecond limits the rate of copied message bytes, if not 0. A limit extends the time for which Apply is
	// paused.
	BytesPerSecond int64
	Reason         string
	// Progress, if not nil, is called periodically from another goroutine. One more call may occur after a canceled
	// Rewrite has returned.
	Progress func(checkpoint.Progress)
}

// Result is the result of a rewrite.
type Result struct {
	FromPageSize    int    `json:"from_page_size"`
	PageSize        int    `json:"page_size"`
	FileBytesBefore uint64 `json:"file_bytes_before"`
	FileBytesAfter  uint64 `json:"file_bytes_after"`
	// Messages is the number of messages copied. DroppedMessages is the number of messages omitted because no
	// subscription needs them.
	Messages        uint64 `json:"messages"`
	MessageBytes    uint64 `json:"message_bytes"`
	DroppedMessages uint64 `json:"dropped_messages"`
	// Paused is the time for which Apply was paused. CopyTime includes the last sync.
	Paused   time.Duration `json:"paused"`
	CopyTime time.Duration `json:"copy_time"`
}

// Rewrite rewrites page.db with another page size (resize) or with the same one (compact). The new file contains the
// messages that at least one subscription needs, packed tightly. The previous file is kept as page.db_old until
// DropOld, the next rewrite or the installation of a snapshot. Content, digest and sequence numbers do not change.
//
// Append and Sync continue at full speed. Apply blocks, and Read uses the state before the pause.
//
// If a message cannot be read, Rewrite tries to repair all known corruption. If that succeeds, it starts again, once.
//
// Rewrite returns a MaintenanceError if another operation is running, and index.ErrDataLoss if a message cannot be
// read. If the new file does not fit, Rewrite returns a SpaceError before it copies anything. It also returns a
// SpaceError if less than half of the reserve is free during the copy. When ctx ends before the renames begin, it
// immediately returns ErrCanceled, and Apply resumes. After any error except store.ErrFailed, page.db is unchanged.
// After store.ErrFailed, the next Open uses the old or the new file.
func (m *Maintenance) Rewrite(ctx context.Context, o Options) (Result, error) {
	result, err := m.rewriteOnce(ctx, o)
	if errors.Is(err, index.ErrDataLoss) && m.e.Repair(ctx) {
		return m.rewriteOnce(ctx, o)
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

func (rw *rewrite) wait(ctx context.Context, u *task) (Result, error) {
	select {
	case <-rw.finished:
	case <-ctx.Done():
		if !rw.isFinished() && rw.abandon() { // the end of the rewrite also ends the context
			rw.events(events.RewriteCanceled{Reason: rw.o.Reason})
			return Result{}, fmt.Errorf("rewrite: %w: %w", ErrCanceled, ctx.Err())
		}
		<-rw.finished
	}
	<-u.done // so that the next operation can begin
	ended := errors.Is(rw.err, context.Canceled) || errors.Is(rw.err, context.DeadlineExceeded)
	if ended || errors.Is(rw.err, ErrCanceled) {
		rw.events(events.RewriteCanceled{Reason: rw.o.Reason})
	}
	if ended {
		return Result{}, fmt.Errorf("rewrite: %w: %w", ErrCanceled, rw.err)
	}
	return rw.result, rw.err
}

type rewrite struct {
	m        *Maintenance
	e        Engine
	fs       vfs.FS
	events   func(events.Event)
	o        Options
	result   Result
	err      error
	finished chan struct{} // closed when result and err are final and Apply is resumed

	file    *page.File
	from    *checkpoint.Checkpoint // nil before it is opened
	builder *page.Builder
	meter   *checkpoint.Meter

	mu        sync.Mutex // guards the fields below
	pausing   bool
	pausedAt  time.Time
	abandoned bool // the caller of Rewrite no longer waits
	committed bool // the rewrite can no longer be abandoned
}

// abandon cancels the rewrite and resumes Apply immediately; the remaining work continues in the background. It
// returns false if the rewrite can no longer be canceled.
func (rw *rewrite) abandon() bool {
	if rw.isFinished() {
		return false
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

// commitPoint returns false if the rewrite was abandoned. After commitPoint has returned true, the rewrite can no
// longer be abandoned.
func (rw *rewrite) commitPoint() bool {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	rw.committed = !rw.abandoned
	return rw.committed
}

// pause pauses Apply.
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

func (rw *rewrite) cleanup() {
	if rw.builder != nil {
		rw.builder.Abort() // no effect after Finish
	}
	if rw.from != nil {
		rw.from.Close()
	}
	if rw.err != nil && !rw.e.Failed() {
		_ = vfs.RemoveLarge(rw.fs, rw.path(datadir.NewFileName)) // otherwise the next rewrite or Open removes it
	}
}

func (rw *rewrite) path(name string) string { return filepath.Join(rw.m.o.Dir, name) }

// run executes the rewrite. The caller must call resume and cleanup afterwards.
func (rw *rewrite) run(ctx context.Context) error {
	if err := rw.begin(ctx); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	plan, err := rw.plan(ctx)
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	rw.events(events.RewriteStarted{
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
	if err := rw.removePreviousOld(ctx); err != nil {
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

func (rw *rewrite) begin(ctx context.Context) error {
	rw.meter.Phase("checkpoint", 0)
	if err := rw.e.Checkpoint(ctx); err != nil { // does most of the work before Apply is paused
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
	rw.file, rw.from = file, checkpoint.Open(file, pin, checkpoint.Options{
		CacheBytes: rw.m.o.CacheBytes, Pace: rw.e.Governed(0),
	})
	if rw.o.PageSize == 0 {
		rw.o.PageSize = file.PageSize()
	}
	return nil
}

// plan estimates the plan of the rewrite from the message index: reading all messages would take almost as long as
// copying them. If the rewrite needs the space of page.db_old, plan removes that file. It returns a SpaceError if there
// is no space for the new file.
func (rw *rewrite) plan(ctx context.Context) (Plan, error) {
	live := rw.e.Live()
	if at, want := live.Applied(), rw.from.Meta().Position.LSN; at != want {
		return Plan{}, fmt.Errorf("checkpoint is at LSN %d, the store at %d", want, at)
	}
	plan, err := planWith(ctx, rw.from, live, rw.from.Estimate, rw.meter, rw.fs, rw.m.o.Dir, rw.o)
	if err != nil {
		return plan, err
	}
	rw.result.FromPageSize, rw.result.PageSize, rw.result.FileBytesBefore = plan.FromPageSize, plan.PageSize,
		plan.FileBytes
	if plan.NeedBytes+plan.ReserveBytes > plan.AvailableBytes && plan.Err() == nil {
		rw.events(events.OldFileDropped{Bytes: plan.OldFileBytes})
		if err := vfs.RemoveLarge(rw.fs, rw.path(datadir.OldFileName)); err != nil {
			return plan, fmt.Errorf("remove page.db_old: %w", err)
		}
	}
	err = plan.Err()
	return plan, err
}

// removePreviousOld removes the page.db_old of an earlier rewrite gradually.
func (rw *rewrite) removePreviousOld(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := vfs.RemoveLarge(rw.fs, rw.path(datadir.OldFileName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the previous page.db_old: %w", err)
	}
	return nil
}

// verify loads the state from the new file. It compares the digest, the number of messages and the applied LSN with
// those of the current state.
func (rw *rewrite) verify(ctx context.Context, meta page.Meta) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	file, err := page.Open(rw.fs, rw.path(datadir.NewFileName), page.Options{})
	if err != nil {
		return fmt.Errorf("open new file: %w", err)
	}
	state, err := checkpoint.LoadState(tree.New(file, meta.Root, tree.Options{}).View(), meta)
	err = errors.Join(err, file.Close())
	if err != nil {
		return fmt.Errorf("load new file: %w", err)
	}
	if live := rw.e.Live(); !live.Holds(state) {
		return fmt.Errorf("%w: content of the new file differs from the store", index.ErrDataLoss)
	}
	return nil
}

func (rw *rewrite) isFinished() bool {
	select {
	case <-rw.finished:
		return true
	default:
		return false
	}
}

// rename renames page.db to page.db_old, and then page.db_new to page.db, unless the rewrite was abandoned. If the
// first rename fails and page.db still exists, or if the second fails and the first can be undone, the files are
// unchanged. Any other error is final.
func (rw *rewrite) rename() (bool, error) {
	if !rw.commitPoint() {
		return false, ErrCanceled
	}
	dir, final := rw.m.o.Dir, func(err error) (bool, error) {
		return false, rw.e.Fail(fmt.Errorf("install the new page.db: %w", err))
	}
	now, next, old := rw.path(datadir.PageFileName), rw.path(datadir.NewFileName), rw.path(datadir.OldFileName)
	if err := rw.fs.Rename(now, old); err != nil {
		if _, serr := rw.fs.Stat(now); serr != nil {
			return final(errors.Join(err, serr))
		}
		return false, fmt.Errorf("keep old page.db: %w", err)
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
		return false, fmt.Errorf("install the new page.db: %w", err)
	}
	if err := rw.fs.SyncDir(dir); err != nil {
		return final(err)
	}
	return true, nil
}

// Recover completes or rolls back a rewrite that a crash interrupted. It must be called before page.db is opened.
func Recover(fsys vfs.FS, dir string, storeID uuid.UUID, report func(events.Event)) error {
	now, next := datadir.PageFile(dir), filepath.Join(dir, datadir.NewFileName)
	if _, err := fsys.Stat(next); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("check for an interrupted rewrite: %w", err)
	}
	_, err := fsys.Stat(now)
	switch {
	case err == nil:
		report(events.RewriteRecovered{})
		if err := fsys.Remove(next); err != nil {
			return fmt.Errorf("remove an interrupted rewrite: %w", err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("stat page.db: %w", err)
	}
	// page.db_new was complete before page.db was renamed. If it is corrupt, the old file has the same content.
	from := next
	if err := validPageFile(fsys, next, storeID); err != nil {
		old := filepath.Join(dir, datadir.OldFileName)
		if oerr := validPageFile(fsys, old, storeID); oerr != nil {
			return fmt.Errorf("finish an interrupted rewrite: %w; %w", err, oerr)
		}
		report(events.RewriteCorrupt{Err: err})
		from = old
	}
	if err := fsys.Rename(from, now); err != nil {
		return fmt.Errorf("finish an interrupted rewrite: %w", err)
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fmt.Errorf("finish an interrupted rewrite: %w", err)
	}
	report(events.RewriteRecovered{From: filepath.Base(from)})
	return nil
}

func validPageFile(fsys vfs.FS, name string, storeID uuid.UUID) error {
	file, err := page.Open(fsys, name, page.Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	if file.StoreID() != [16]byte(storeID) {
		err = fmt.Errorf("%s belongs to another store: %w", name, page.ErrNotPageFile)
	}
	return errors.Join(err, file.Close())
}
