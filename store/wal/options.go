// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// SyncMode says when the log is brought from the page cache to the disk.
type SyncMode uint8

const (
	// SyncAlways makes Sync wait for the disk: what was acknowledged survives a power failure.
	SyncAlways SyncMode = iota
	// SyncInterval syncs in the background, every Options.SyncInterval: a power failure can cost that much. The end of
	// the process alone costs nothing.
	SyncInterval
	// SyncOff leaves it to the operating system. The end of the process alone costs nothing.
	SyncOff
)

// String returns the name that ParseSyncMode takes.
func (m SyncMode) String() string {
	switch m {
	case SyncAlways:
		return "always"
	case SyncInterval:
		return "interval"
	case SyncOff:
		return "off"
	default:
		return fmt.Sprintf("sync-mode-%d", uint8(m))
	}
}

// ParseSyncMode returns the mode called always, interval or off.
func ParseSyncMode(name string) (SyncMode, error) {
	for _, m := range []SyncMode{SyncAlways, SyncInterval, SyncOff} {
		if m.String() == name {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%w: %q is not a sync mode; it must be always, interval or off", ErrOptions, name)
}

// Defaults of Options.
const (
	DefaultSegmentBytes  = 64 << 20
	DefaultMaxFrameBytes = 128 << 20
	DefaultSyncInterval  = 100 * time.Millisecond
	DefaultSealAfter     = 100 * time.Millisecond
	DefaultSlowSync      = time.Second

	minSegmentBytes = 8 << 10
	maxSegmentBytes = 4 << 30
)

// Options of a log.
type Options struct {
	// FS is where the log is; required.
	FS vfs.FS
	// Dir is the log's directory, created if it is not there; required. It must belong to the log alone. The caller
	// holds the lock.
	Dir string
	// LogID tells this log's segments from those of every other log. It must be random and must stay the same.
	LogID [16]byte
	// SegmentBytes is the size of a segment file; 0 is DefaultSegmentBytes. A block that is larger gets a segment of
	// its own.
	SegmentBytes int64
	// KeepBytes is how much log Release leaves for a standby to catch up from.
	KeepBytes int64
	// MaxFrameBytes limits the payload of a record; 0 is DefaultMaxFrameBytes.
	MaxFrameBytes int
	// Sync says when the log goes to the disk.
	Sync SyncMode
	// SyncInterval is the period of SyncInterval; 0 is DefaultSyncInterval.
	SyncInterval time.Duration
	// SealAfter is how long after the last Sync the log is sealed; 0 is DefaultSealAfter, less than 0 is never (but on
	// Close).
	SealAfter time.Duration
	// Cache says whether large blocks go through the system's cache.
	Cache vfs.CacheUse
	// Start is the position that an empty log continues from, and everything up to it is committed, since a checkpoint
	// holds it. It is ignored if the log is not empty.
	Start lsn.Position
	// VerifyFrom spares Open the reading of old segments: records before this one are in a checkpoint and only of use
	// for a standby that catches up. They are verified when they are read. 0 verifies everything.
	VerifyFrom uint64
	// SlowSync is how long a sync may take without an event; 0 is DefaultSlowSync.
	SlowSync time.Duration
	// Events is told what happens in the log. After events.LogFailed it has stopped (INV-7). nil: nothing is told.
	Events func(events.Event)
}

func (o Options) withDefaults() (Options, error) {
	if o.FS == nil || o.Dir == "" {
		return o, fmt.Errorf("%w: FS and Dir are required", ErrOptions)
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if o.SegmentBytes < minSegmentBytes || o.SegmentBytes > maxSegmentBytes {
		return o, fmt.Errorf("%w: a segment of %d bytes; it must be between %d and %d", ErrOptions, o.SegmentBytes,
			minSegmentBytes,
			int64(maxSegmentBytes))
	}
	if o.MaxFrameBytes == 0 {
		o.MaxFrameBytes = DefaultMaxFrameBytes
	}
	if o.MaxFrameBytes < 0 || o.MaxFrameBytes > MaxPayloadBytes {
		return o, fmt.Errorf("%w: records of at most %d bytes; the limit must be between 1 and %d", ErrOptions,
			o.MaxFrameBytes,
			MaxPayloadBytes)
	}
	if o.SyncInterval == 0 {
		o.SyncInterval = DefaultSyncInterval
	}
	if o.SealAfter == 0 {
		o.SealAfter = DefaultSealAfter
	}
	if o.SyncInterval < 0 || o.KeepBytes < 0 || o.Sync > SyncOff {
		return o, fmt.Errorf("%w: sync mode %s, sync interval %s, keep %d bytes", ErrOptions, o.Sync, o.SyncInterval,
			o.KeepBytes)
	}
	if o.SlowSync == 0 {
		o.SlowSync = DefaultSlowSync
	}
	if o.Events == nil {
		o.Events = events.Discard
	}
	return o, nil
}
