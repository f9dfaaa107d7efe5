// SPDX-License-Identifier: Apache-2.0

// Package faultdisk is a disk that a test breaks from outside the process that uses it: it fails operations, flips
// bits, is slow, hangs, and loses what was not synced when the process is killed. It is told what to do over HTTP.
//
// Only a node that was built with the tag "faultdisk" links it, and only when the environment has Variable does it use
// it: see server/node/disk_faultdisk.go.
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
	"github.com/lockstep-mq/lockstep/store/vfs/faultfs"
)

const (
	// Variable is the environment variable that holds the address, host:port, on which the disk listens for what it is
	// to do.
	Variable = "FAULTDISK"
	// VariableState is the environment variable that holds what it does from the first operation on: a State, as JSON.
	VariableState = "FAULTDISK_STATE"
	// VariableBoot is the environment variable that names the boot of the machine that the disk is in: another one
	// after a power failure.
	VariableBoot = "FAULTDISK_BOOT"
	// Tag is the build tag of a node that links this package.
	Tag = "faultdisk"
)

// ErrState is returned for a State that means nothing.
var ErrState = errors.New("faultdisk: not a state of the disk")

// State is what the disk does. The zero value is a disk that works.
type State struct {
	// Rules are applied to each operation: all the delays, the first error.
	Rules []Rule `json:"rules,omitempty"`
	// Hold keeps what is written in memory until it is synced, but for the part Leak of it, from 0 to 1: killed, the
	// process leaves what a power failure would.
	Hold bool    `json:"hold,omitempty"`
	Leak float64 `json:"leak,omitempty"`
	// Seed of the dice for what leaks and which bits flip.
	Seed uint64 `json:"seed,omitempty"`
}

// Rule is a fault. What it does is Error, Flip, Delay and Stall; the rest says when.
type Rule struct {
	// Ops are the operations that it is for, by the names of faultfs.OpKind; none for all.
	Ops []string `json:"ops,omitempty"`
	// Files is a pattern (path.Match) for the base name; empty for all.
	Files string `json:"files,omitempty"`
	// Skip so many operations, then strike at each one, or at each so many (Every), so many Times; 0 for ever.
	Skip  uint64 `json:"skip,omitempty"`
	Every uint64 `json:"every,omitempty"`
	Times uint64 `json:"times,omitempty"`

	// Error that the operation fails with: EIO or ENOSPC. It is not done then.
	Error string `json:"error,omitempty"`
	// Flip a bit of what is read or written.
	Flip bool `json:"flip,omitempty"`
	// Delay before it is done, in nanoseconds.
	Delay time.Duration `json:"delay,omitempty"`
	// Stall until the state is replaced. The operation is done then, as the new state has it.
	Stall bool `json:"stall,omitempty"`
}

// matches tells whether the rule is for an operation.
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

// errno that the rule fails operations with; nil for none.
func (r Rule) errno() (error, error) { // the first one is a value
	switch r.Error {
	case "":
		return nil, nil
	case "EIO":
		return syscall.EIO, nil
	case "ENOSPC":
		return syscall.ENOSPC, nil
	default:
		return nil, fmt.Errorf("%w: error %q is none of EIO and ENOSPC", ErrState, r.Error)
	}
}

// Disk is the filesystem and what is wrong with it.
type Disk struct {
	fault *faultfs.FS
	cache *faultfs.WriteBack

	mu    sync.Mutex // guards what follows
	now   State
	seen  []uint64 // operations that each rule was for
	hits  []uint64 // how often each rule struck
	rng   *rand.Rand
	ended chan struct{} // closed when the state is replaced
}

// New wraps inner, which no other program may write to.
func New(inner vfs.FS) *Disk {
	cache := faultfs.NewWriteBack(inner)
	d := &Disk{cache: cache, fault: faultfs.New(cache), ended: make(chan struct{})}
	d.fault.SetHook(d.before)
	return d
}

// FS is the filesystem.
func (d *Disk) FS() vfs.FS { return d.fault }

// Set replaces the state; what hangs goes on.
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

// Hits tells how often each rule of the state struck.
func (d *Disk) Hits() []uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.hits)
}

// before is the hook of the fault filesystem.
func (d *Disk) before(op faultfs.Op) error {
	for {
		err, delay, stall := d.strike(op)
		if delay > 0 {
			<-time.After(delay)
		}
		if stall == nil {
			return err
		}
		<-stall
	}
}

// strike says what becomes of an operation; with a stall it has to be asked again when that has ended.
func (d *Disk) strike(op faultfs.Op) (err error, delay time.Duration, stall <-chan struct{}) { //nolint:revive,staticcheck // a value
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
			err, _ = r.errno() // Set has looked
		}
	}
	return err, delay, stall
}

// ServeHTTP sets the state (PUT, a State) and tells how often its rules struck (GET, a list of numbers), both as JSON.
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
		_ = json.NewEncoder(w).Encode(d.Hits()) // the test sees that it gets nothing
	default:
		http.Error(w, "PUT or GET", http.StatusMethodNotAllowed)
	}
}
