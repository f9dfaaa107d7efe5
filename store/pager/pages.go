// SPDX-License-Identifier: Apache-2.0

package pager

import (
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Errors of a Pager.
var (
	ErrClosed   = errors.New("store is closed")
	ErrReplaced = errors.New("page.db was replaced")
)

// Pages is page.db and its tree, which contains the index and the persisted state.
type Pages struct {
	File  *page.File
	Index *tree.Tree
}

// Acquire returns page.db, which stays open and is not replaced until Release.
func (p *Pager) Acquire() Pages {
	p.fileMu.RLock()
	return Pages{File: p.file, Index: p.index}
}

// Release ends the use of page.db after Acquire.
func (p *Pager) Release() { p.fileMu.RUnlock() }

// Use sets the page file. It must be called before Start, or by a function that Exclusive calls.
func (p *Pager) Use(file *page.File) Pages {
	p.use(file)
	p.previous, p.todo, p.repaired = file.Meta().Position.LSN, nil, false
	return Pages{File: p.file, Index: p.index}
}

func (p *Pager) use(file *page.File) {
	p.file = file
	p.index = tree.New(file, file.Meta().Root, tree.Options{CacheBytes: p.o.MemoryBudget / 8})
	file.UseCache(vfs.CacheUse(p.cacheUse.Load()))
	file.OnCorruption(p.damage.FoundPage)
}

// Exclusive calls fn while no checkpoint is in progress and no other code writes page.db or has acquired it (Acquire).
// Operations with a Pin may still read the file. fn may close the file (CloseFile), replace it, and call Use.
func (p *Pager) Exclusive(fn func() error) error {
	p.hold()
	defer p.mu.Unlock()
	p.fileMu.Lock()
	defer p.fileMu.Unlock()
	return fn()
}

// CloseFile closes page.db. It must only be called by a function that Exclusive calls.
func (p *Pager) CloseFile() error { return p.file.Close() }

// Swap calls rename, which replaces old with another page file with the same content, and opens page.db again. old is
// closed when its readers have finished. Swap returns ErrReplaced if old is no longer page.db, or if a batch is not
// completely written. An error after rename has returned done is final (INV-7).
func (p *Pager) Swap(old *page.File, rename func() (done bool, err error)) error {
	return p.Exclusive(func() error {
		if err := p.engine.Usable(); err != nil {
			return err
		}
		if p.file != old || p.todo != nil {
			return ErrReplaced
		}
		if done, err := rename(); err != nil || !done {
			return err
		}
		file, err := page.Open(p.o.FS, old.Path(), page.Options{})
		if err != nil {
			return p.engine.Fail(fmt.Errorf("open the new page.db: %w", err))
		}
		p.use(file)
		p.retired.add(old, func(err error) { p.o.Events(events.OldFileNotClosed{Err: err}) })
		return nil
	})
}

// SetCacheUse sets how writes to page.db use the operating system's page cache.
func (p *Pager) SetCacheUse(use vfs.CacheUse) {
	p.cacheUse.Store(int32(use))
	p.fileMu.RLock()
	defer p.fileMu.RUnlock()
	if p.file != nil {
		p.file.UseCache(use)
	}
}

// Pin pins the last durable checkpoint for a long operation. It does not block Close or Exclusive. If one of them
// closes the file, later reads fail, and StillUses returns the reason.
func (p *Pager) Pin() (*page.File, *page.Pin, error) {
	p.fileMu.RLock()
	defer p.fileMu.RUnlock()
	if err := p.engine.Usable(); err != nil {
		return nil, nil, err
	}
	return p.file, p.file.Pin(), nil
}

// StillUses returns an error if the pager was stopped, or if file was closed since Pin. The data read from the file
// may then be invalid. A file that a rewrite replaced stays open while it is pinned.
func (p *Pager) StillUses(file *page.File) error {
	p.fileMu.RLock()
	defer p.fileMu.RUnlock()
	if p.closed.Load() {
		return ErrClosed
	}
	if p.file != file && errors.Is(file.ReadPages(1, nil), page.ErrClosed) {
		return fmt.Errorf("%w while it was read; try again", ErrReplaced)
	}
	return nil
}
