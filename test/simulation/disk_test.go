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
)

// errFsync is what the kernel says when it could not write what it had taken.
var errFsync = errors.New("simulated: input/output error")

// disk is what one run of a node sees of its host's filesystem: it can be slow, hang, fail, and be taken away.
type disk struct {
	mem   *vfs.Mem
	fault *vfs.Fault

	mu       sync.Mutex // guards all below
	rng      *rand.Rand
	dead     bool
	delay    time.Duration // of each write and sync of the log: up to so much
	stalled  bool
	failSync bool          // the next sync of the log fails
	lies     bool          // the kernel has dropped what it could not write, and does not say so again (INV-7)
	changed  chan struct{} // closed and replaced when something above changes
}

func newDisk(mem *vfs.Mem, rng *rand.Rand) *disk {
	d := &disk{mem: mem, fault: vfs.NewFault(mem), rng: rng, changed: make(chan struct{})}
	d.fault.SetHook(d.before)
	return d
}

// change changes the state, and wakes whoever waits for that.
func (d *disk) change(f func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
	close(d.changed)
	d.changed = make(chan struct{})
}

// before is the hook of every operation. Only the writes and syncs of the log wait: the locks that are held around them are made so
// that a bubble's clock goes on.
func (d *disk) before(op vfs.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if inLog := (op.Kind == vfs.OpWrite || op.Kind == vfs.OpSync) && inLogDir(op.Name); inLog {
		if op.Kind == vfs.OpSync && d.failSync && !d.dead {
			d.failSync, d.lies = false, true
			return errFsync
		}
		if op.Kind == vfs.OpSync && d.lies && !d.dead {
			return vfs.ErrDropped
		}
		if d.delay > 0 && !d.dead {
			delay := time.Duration(d.rng.Int64N(int64(d.delay)))
			d.mu.Unlock()
			time.Sleep(delay) //nolint:forbidigo // the bubble's clock: what a disk takes
			d.mu.Lock()
		}
		for d.stalled && !d.dead {
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

// inLogDir tells whether a file is a segment of the log, or is to be one: a file keeps the name that it was opened under.
func inLogDir(name string) bool { return filepath.Base(filepath.Dir(name)) == "log" }
