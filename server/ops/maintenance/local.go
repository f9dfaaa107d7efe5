// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

const (
	localFile     = "maintenance.json"
	localMaxBytes = 1 << 20
	keptSteps     = 16
	keptProblems  = 20
)

// localState contains the plan steps and startup operations that this node has completed, and the result of its last
// scan. If the node crashes between a step and the write of the file, the step is repeated.
type localState struct {
	fs   vfs.FS
	path string

	mu sync.Mutex // guards the fields below
	v  localContent
}

type localContent struct {
	Version int        `json:"version"`
	Done    []doneStep `json:"done"` // newest first
	// ResizeDone and CompactDone report whether this node has executed the operation that its configuration
	// requests. They are reset when the setting is disabled.
	ResizeDone  bool                   `json:"config_resize_done,omitempty"`
	CompactDone bool                   `json:"config_compact_done,omitempty"`
	LastScan    *checkpoint.ScanResult `json:"last_scan,omitempty"`
}

type doneStep struct {
	ID       string    `json:"id"`
	PageSize int       `json:"page_size"`
	At       time.Time `json:"at"`
	// Incarnation is the incarnation of the store when the step was done. A rewrite of another incarnation does not
	// count as done.
	Incarnation uint64 `json:"incarnation"`
	// Process identifies the process that was requested to restart. It is empty for other steps.
	Process string `json:"process,omitempty"`
}

// openLocal reads maintenance.json. An invalid file is logged and ignored: at worst, a step is repeated.
func openLocal(fsys vfs.FS, dir string, logger *zap.Logger) (*localState, error) {
	l := &localState{fs: fsys, path: filepath.Join(dir, localFile), v: localContent{Version: 1}}
	raw, err := vfs.ReadFile(fsys, l.path, localMaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", l.path, err)
	}
	if err := json.Unmarshal(raw, &l.v); err != nil || l.v.Version != 1 {
		logger.Warn("cannot decode the completed plan steps; a step may be repeated",
			zap.String("file", l.path), zap.Error(err))
		l.v = localContent{Version: 1}
	}
	return l, nil
}

func (l *localState) done(id string, incarnation uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return id != "" && slices.ContainsFunc(l.v.Done,
		func(d doneStep) bool { return d.ID == id && d.Incarnation == incarnation })
}

// restarted reports which process of this node was requested to restart for a plan: an earlier process (before) or
// this process (now).
func (l *localState) restarted(plan, process string) (before, now bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.v.Done {
		if d.ID == plan && d.Process != "" {
			before, now = before || d.Process != process, now || d.Process == process
		}
	}
	return before, now
}

func (l *localState) recordStep(step doneStep) error {
	return l.change(func(v *localContent) bool {
		v.Done = slices.Insert(v.Done, 0, step)
		v.Done = v.Done[:min(len(v.Done), keptSteps)]
		return true
	})
}

func (l *localState) saveScan(r *checkpoint.ScanResult) error {
	kept := *r
	kept.Problems = slices.Clone(r.Problems[:min(len(r.Problems), keptProblems)])
	return l.change(func(v *localContent) bool {
		v.LastScan = &kept
		return true
	})
}

func (l *localState) lastScan() checkpoint.ScanResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.v.LastScan == nil {
		return checkpoint.ScanResult{}
	}
	return *l.v.LastScan
}

// config reports which of the operations requested by the configuration have not been done. For operations that are
// no longer requested, it deletes the record that they are done.
func (l *localState) config(resize, compact bool) (wantResize, wantCompact bool, err error) {
	err = l.change(func(v *localContent) bool {
		before := *v
		v.ResizeDone, v.CompactDone = v.ResizeDone && resize, v.CompactDone && compact
		wantResize, wantCompact = resize && !v.ResizeDone, compact && !v.CompactDone
		return v.ResizeDone != before.ResizeDone || v.CompactDone != before.CompactDone
	})
	return wantResize, wantCompact, err
}

func (l *localState) configDone(resize, compact bool) error {
	return l.change(func(v *localContent) bool {
		v.ResizeDone, v.CompactDone = resize, compact
		return true
	})
}

// change applies fn to a copy of the state. If fn returns true, change writes the file before it returns.
func (l *localState) change(fn func(*localContent) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.v
	next.Done = slices.Clone(l.v.Done)
	if !fn(&next) {
		return nil
	}
	raw, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", l.path, err)
	}
	if err := vfs.WriteFileAtomic(l.fs, l.path, append(raw, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", l.path, err)
	}
	l.v = next
	return nil
}
