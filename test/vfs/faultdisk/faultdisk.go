// SPDX-License-Identifier: Apache-2.0

// Package faultdisk implements a filesystem with faults that a test controls over HTTP, from outside the process that
// uses it. It can fail operations, flip bits, be slow, block, and lose unsynced data when the process is killed.
//
// A node links this package only if it was built with the tag "faultdisk", and uses it only if the environment
// contains Variable: see server/node/disk_faultdisk.go.
package faultdisk

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

const (
	// Variable is the environment variable with the address, host:port, on which the disk listens for commands.
	Variable = "FAULTDISK"
	// VariableState is the environment variable with the initial State, as JSON.
	VariableState = "FAULTDISK_STATE"
	// VariableBoot is the environment variable with the boot ID of the simulated machine, which changes after a power
	// failure.
	VariableBoot = "FAULTDISK_BOOT"
	// Tag is the build tag of a node that links this package.
	Tag = "faultdisk"
)

// ErrState is returned by Set for an invalid State.
var ErrState = errors.New("faultdisk: invalid disk state")

// State is the behavior of the disk. The zero value is a disk without faults.
type State struct {
	// Rules are applied to each operation. The delays of all matching rules are added; the first error is returned.
	Rules []Rule `json:"rules,omitempty"`
	// Hold buffers writes in memory until they are synced, so that a kill of the process loses the same data as a power
	// failure. The fraction Leak of the buffered sectors, from 0 to 1, is also written immediately.
	Hold bool    `json:"hold,omitempty"`
	Leak float64 `json:"leak,omitempty"`
	// Seed is the seed for the random choice of leaked sectors and flipped bits.
	Seed uint64 `json:"seed,omitempty"`
}

// Rule is a fault. Error, Flip, Delay and Stall are its effects; the other fields are its conditions.
type Rule struct {
	// Ops contains the names of the affected operations, as returned by faultfs.OpKind.String; empty means all.
	Ops []string `json:"ops,omitempty"`
	// Files is a pattern (path.Match) for the base name; empty for all.
	Files string `json:"files,omitempty"`
	// Skip is the number of initial matching operations that are not affected. After them, every Every-th matching
	// operation is affected (0: each), at most Times operations in total (0: no limit).
	Skip  uint64 `json:"skip,omitempty"`
	Every uint64 `json:"every,omitempty"`
	Times uint64 `json:"times,omitempty"`

	// Error is the error of the operation, which is not executed: EIO or ENOSPC; empty for none.
	Error string `json:"error,omitempty"`
	// Flip flips a bit of the data that is read or written. Such a rule applies only to reads and writes.
	Flip bool `json:"flip,omitempty"`
	// Delay is the delay before the operation, in nanoseconds in JSON.
	Delay time.Duration `json:"delay,omitempty"`
	// Stall blocks the operation until Set replaces the state. The rules of the new state then apply to the operation.
	Stall bool `json:"stall,omitempty"`
}

func (r Rule) matches(op faultfs.Op) bool {
	if len(r.Ops) > 0 && !slices.Contains(r.Ops, op.Kind.String()) {
		return false
	}
	if r.Flip && op.Kind != faultfs.OpRead && op.Kind != faultfs.OpWrite {
		return false
	}
	ok, err := path.Match(r.Files, filepath.Base(op.Name))
	return r.Files == "" || (err == nil && ok)
}

// errno returns the error named by r.Error, or nil if r.Error is empty. The second result is ErrState if the name is
// invalid.
func (r Rule) errno() (error, error) { // the first result is the simulated error
	switch r.Error {
	case "":
		return nil, nil
	case "EIO":
		return syscall.EIO, nil
	case "ENOSPC":
		return syscall.ENOSPC, nil
	default:
		return nil, fmt.Errorf("%w: error %q must be EIO or ENOSPC", ErrState, r.Error)
	}
}

// Disk is a filesystem with faults.
type Disk struct {
	fault *faultfs.FS
	cache *faultfs.WriteBack

	mu    sync.Mutex // guards the fields below
	now   State
	seen  []uint64 // number of matching operations, by rule
	hits  []uint64 // number of faults, by rule
	rng   *rand.Rand
	ended chan struct{} // closed when the state is replaced
}

// New returns a Disk without faults on inner, which no other program may write to.
func New(inner vfs.FS) *Disk {
	cache := faultfs.NewWriteBack(inner)
	d := &Disk{cache: cache, fault: faultfs.New(cache), ended: make(chan struct{})}
	d.fault.SetHook(d.before)
	return d
}

// FS returns the filesystem with the faults.
func (d *Disk) FS() vfs.FS { return d.fault }

// Set replaces the state, resets the counts of faults, and unblocks stalled operations. It returns ErrState for an
// invalid state, which changes nothing.
func (d *Disk) Set(s State) error {
	for _, r := range s.Rules {
		if _, err := r.errno(); err != nil {
			return err
		}
		if _, err := path.Match(r.Files, ""); err != nil {
			return fmt.Errorf("%w: files %q: %w", ErrState, r.Files, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cache.Hold(s.Hold, s.Leak, s.Seed)
	d.now, d.seen, d.hits = s, make([]uint64, len(s.Rules)), make([]uint64, len(s.Rules))
	d.rng = rand.New(rand.NewPCG(s.Seed, 12))
	close(d.ended)
	d.ended = make(chan struct{})
	return nil
}

// Hits returns the number of faults of each rule since the last Set.
func (d *Disk) Hits() []uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.hits)
}

// before is the hook of the filesystem.
func (d *Disk) before(op faultfs.Op) error {
	for {
		err, delay, stall := d.apply(op)
		if delay > 0 {
			<-time.After(delay)
		}
		if stall == nil {
			return err
		}
		<-stall
	}
}

// apply returns the fault for an operation. If stall is not nil, the caller waits for it and calls apply again.
func (d *Disk) apply(op faultfs.Op) (err error, delay time.Duration, stall <-chan struct{}) { //nolint:revive,staticcheck // a value
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, r := range d.now.Rules {
		if !r.matches(op) {
			continue
		}
		d.seen[i]++
		if d.seen[i] <= r.Skip || (d.seen[i]-r.Skip)%max(r.Every, 1) != 0 || (r.Times > 0 && d.hits[i] >= r.Times) {
			continue
		}
		d.hits[i]++
		delay += r.Delay
		if r.Stall {
			stall = d.ended
		}
		if err != nil {
			continue
		}
		if r.Flip && op.Length > 0 {
			err = &faultfs.FlipBit{Bit: d.rng.Int64N(op.Length * 8)}
		} else {
			err, _ = r.errno() // validated by Set
		}
	}
	return err, delay, stall
}

// ServeHTTP sets the state (PUT with a State), and returns the number of faults of each rule (GET), as JSON.
func (d *Disk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPut:
		var s State
		err := json.NewDecoder(r.Body).Decode(&s)
		if err == nil {
			err = d.Set(s)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	case http.MethodGet:
		_ = json.NewEncoder(w).Encode(d.Hits()) // on an error the test receives an incomplete response
	default:
		http.Error(w, "method must be PUT or GET", http.StatusMethodNotAllowed)
	}
}
