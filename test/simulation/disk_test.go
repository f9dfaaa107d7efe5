// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// errFsync is the kernel's error for failed writeback.
var errFsync = errors.New("simulated: input/output error")

// disk is the filesystem of a host as seen by one process. It can be slow, block, fail, and be revoked.
type disk struct {
	vfs.FS
	mem *memfs.FS

	mu         sync.Mutex // guards all fields below
	rng        *rand.Rand
	dead       bool
	delay      time.Duration // maximum delay of each write and sync of the log
	stalled    bool
	failSync   bool          // the next sync of the log fails
	losesSyncs bool          // syncs report success without effect: the kernel has dropped the dirty pages (INV-7)
	low        bool          // the disk is nearly full
	failed     func()        // called once, when delay, stalled or failSync affects an operation; may be nil
	full       func()        // called once, when the node queries the free space while low is set; may be nil
	changed    chan struct{} // closed and replaced when a field above changes
}

func newDisk(mem *memfs.FS, rng *rand.Rand) *disk {
	fault := faultfs.New(mem)
	d := &disk{FS: fault, mem: mem, rng: rng, changed: make(chan struct{})}
	fault.SetHook(d.before)
	return d
}

// change updates the state and wakes the blocked operations.
func (d *disk) change(f func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
	close(d.changed)
	d.changed = make(chan struct{})
}

// Usage implements vfs.FS.
func (d *disk) Usage(dir string) (vfs.Usage, error) {
	u, err := d.FS.Usage(dir)
	d.mu.Lock()
	low, full := d.low, d.full
	if low {
		d.full = nil
	}
	d.mu.Unlock()
	if low {
		u.FreeBytes, u.AvailableBytes = 0, 0
		if full != nil {
			full()
		}
	}
	return u, err
}

// failures calls failed, once. The caller holds mu.
func (d *disk) failures() {
	if f := d.failed; f != nil {
		d.failed = nil
		f()
	}
}

// before is the hook of every operation. It delays only writes and syncs of the log, because the locks held around them
// do not stop the clock of a synctest bubble.
func (d *disk) before(op faultfs.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if inLog := (op.Kind == faultfs.OpWrite || op.Kind == faultfs.OpSync) && inLogDir(op.Name); inLog {
		if op.Kind == faultfs.OpSync && d.failSync && !d.dead {
			d.failSync, d.losesSyncs = false, true
			d.failures()
			return errFsync
		}
		if op.Kind == faultfs.OpSync && d.losesSyncs && !d.dead {
			return faultfs.ErrDropped
		}
		if d.delay > 0 && !d.dead {
			d.failures()
			delay := time.Duration(d.rng.Int64N(int64(d.delay)))
			d.mu.Unlock()
			time.Sleep(delay) //nolint:forbidigo // the bubble's clock
			d.mu.Lock()
		}
		for d.stalled && !d.dead {
			d.failures()
			changed := d.changed
			d.mu.Unlock()
			<-changed
			d.mu.Lock()
		}
	}
	if d.dead {
		return syscall.EIO
	}
	return nil
}

// inLogDir reports whether a file is a segment of the log, possibly still under the name with which it was created.
func inLogDir(name string) bool { return filepath.Base(filepath.Dir(name)) == "log" }
