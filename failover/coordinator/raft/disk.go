// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	hraft "github.com/hashicorp/raft"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	logFile       = "raft.db"
	snapshotsKept = 2
	lockLimit     = 500 * time.Millisecond
)

const probeKey = "lockstep-probe"

// idKey is the key of the voter's ID. It is stored in the same file as the votes: they can only be lost together.
const idKey = "lockstep-voter-id"

type disk struct {
	dir   string
	store *boltStore
	snaps *hraft.FileSnapshotStore
	id    string // empty in a new directory
	used  atomic.Bool
	reads chan struct{} // one slot per running read
}

const (
	readTimeout     = 500 * time.Millisecond
	concurrentReads = 16 // limit of reads that wait for a stalled disk
)

// reading calls f, which reads from the disk. It returns errDiskStalled on a timeout, or if too many reads are
// waiting.
func reading[T any](d *disk, f func() (T, error)) (out T, err error) {
	select {
	case d.reads <- struct{}{}:
	default:
		return out, errDiskStalled
	}
	type answer struct {
		out T
		err error
	}
	done := make(chan answer, 1)
	go func() {
		defer func() { <-d.reads }()
		var a answer
		a.out, a.err = f()
		done <- a
	}()
	timer := time.NewTimer(readTimeout)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.out, a.err
	case <-timer.C:
		return out, errDiskStalled
	}
}

func openDisk(dir string, noSync bool, log raftLog) (*disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("raft: voter directory: %w", err)
	}
	snaps, err := hraft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, log)
	if err != nil {
		return nil, fmt.Errorf("raft: snapshots in %s: %w", dir, err)
	}
	path := filepath.Join(dir, logFile)
	store, err := openBoltStore(path, noSync)
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("raft: %s: %w: stop the other process first", dir, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("raft: open %s (if it is corrupt, move the directory away and replace this voter: "+
			"lockstep pair replace): %w", path, err)
	}
	d := &disk{dir: dir, store: store, snaps: snaps, reads: make(chan struct{}, concurrentReads)}
	if err := d.check(); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return d, nil
}

func (d *disk) check() error {
	id, err := d.store.Get([]byte(idKey))
	if err != nil && !errors.Is(err, errKeyNotFound) {
		return fmt.Errorf("raft: read voter id in %s: %w", d.dir, err)
	}
	d.id = string(id)
	list, err := d.snaps.List()
	if err != nil {
		return fmt.Errorf("raft: snapshots in %s: %w", d.dir, err)
	}
	first, err := d.store.FirstIndex()
	if err != nil {
		return fmt.Errorf("raft: log in %s: %w", d.dir, err)
	}
	const hint = ": part of the directory is missing; move it away, start with an empty one, and replace this voter " +
		"(lockstep pair replace)"
	switch {
	case d.id == "" && (len(list) > 0 || first > 0):
		return fmt.Errorf("raft: %s has a log or snapshots but no voter id%s", d.dir, hint)
	case first > 1 && len(list) == 0:
		return fmt.Errorf("raft: log in %s begins at %d, but the snapshot before it is missing%s", d.dir,
			first, hint)
	}
	return nil
}

// empty reports whether this voter has no log entry and no snapshot. A vote does not count.
func (d *disk) empty() (bool, error) {
	if d.used.Load() {
		return false, nil // never empty again
	}
	last, err := reading(d, d.lastIndex)
	if err != nil {
		return false, err
	}
	d.used.Store(last > 0)
	return last == 0, nil
}

// lastIndex returns the last index in the log and the snapshots; 0 if both are empty.
func (d *disk) lastIndex() (uint64, error) {
	list, err := d.snaps.List()
	if err != nil {
		return 0, fmt.Errorf("raft: snapshots in %s: %w", d.dir, err)
	}
	last, err := d.store.LastIndex()
	if err != nil {
		return 0, fmt.Errorf("raft: log in %s: %w", d.dir, err)
	}
	for _, s := range list {
		last = max(last, s.Index)
	}
	return last, nil
}

func (d *disk) identify(kind Kind) error {
	if d.id != "" {
		if have := kindOf(d.id); have != kind {
			return fmt.Errorf("raft: directory %s belongs to a %s, this process is a %s", d.dir, have, kind)
		}
		return nil
	}
	return d.rename(kind)
}

func (d *disk) rename(kind Kind) error {
	id := newID(kind)
	if err := d.store.Set([]byte(idKey), []byte(id)); err != nil {
		return fmt.Errorf("raft: write voter id to %s: %w", d.dir, err)
	}
	d.id = id
	return nil
}

// probe durably writes a value to the disk.
func (d *disk) probe() error {
	if err := d.store.Set([]byte(probeKey), []byte{1}); err != nil {
		return fmt.Errorf("raft: write to %s: %w", d.dir, err)
	}
	return nil
}

func (d *disk) close() error {
	if err := d.store.Close(); err != nil {
		return fmt.Errorf("raft: close %s: %w", d.dir, err)
	}
	return nil
}

func newID(kind Kind) string { return string(kind) + "-" + uuid.NewString() }

func kindOf(id string) Kind {
	if strings.HasPrefix(id, string(KindWitness)+"-") {
		return KindWitness
	}
	return KindNode
}

const never = 1000 * time.Hour

// withLongTimeouts sets timeouts that prevent elections until endVerification resets them, and returns c.
func withLongTimeouts(c *hraft.Config) *hraft.Config {
	c.HeartbeatTimeout, c.ElectionTimeout = never, never
	return c
}

// raftConfig returns the configuration of the raft library. It is the same on all voters, except for their IDs.
func raftConfig(id string, election time.Duration, log raftLog) *hraft.Config {
	c := hraft.DefaultConfig()
	c.LocalID = hraft.ServerID(id)
	// All voters need the same timeout: a voter with a longer one can win elections, and delays them.
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = election, election, election
	c.CommitTimeout = election / 2 // followers serve no reads, so the commit index may be sent late
	c.MaxAppendEntries = 16
	// The state is a small record: snapshots are cheap.
	c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = 30*time.Second, 256, 64
	c.NoLegacyTelemetry = true
	c.Logger = log
	return c
}
