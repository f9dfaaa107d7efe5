// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// SyncMode selects when the log is synced from the page cache to the disk.
type SyncMode uint8

const (
	// SyncAlways makes Sync wait for the disk: acknowledged records survive a power failure.
	SyncAlways SyncMode = iota
	// SyncInterval syncs in the background, every Options.SyncInterval. A power failure can lose that period. The end
	// of the process alone loses nothing.
	SyncInterval
	// SyncOff leaves syncing to the operating system. The end of the process alone loses nothing.
	SyncOff
)

// String returns the name that ParseSyncMode accepts.
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

// ParseSyncMode returns the mode named always, interval or off.
func ParseSyncMode(name string) (SyncMode, error) {
	for _, m := range []SyncMode{SyncAlways, SyncInterval, SyncOff} {
		if m.String() == name {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%w: invalid sync mode %q; it must be always, interval or off", ErrOptions, name)
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

// Options configures a log.
type Options struct {
	// FS is the filesystem; required.
	FS vfs.FS
	// Dir is the log's directory, created if missing; required. It must contain only the log. The caller holds the
	// lock.
	Dir string
	// LogID identifies the log in its segments. It must be random and must not change.
	LogID [16]byte
	// SegmentBytes is the size of a segment file; 0 selects DefaultSegmentBytes. A larger block gets its own segment.
	SegmentBytes int64
	// KeepBytes is the amount of log that Release keeps for a standby to catch up from.
	KeepBytes int64
	// MaxFrameBytes limits the payload of a record; 0 selects DefaultMaxFrameBytes.
	MaxFrameBytes int
	// Sync selects when the log is synced.
	Sync SyncMode
	// SyncInterval is the period of SyncInterval; 0 selects DefaultSyncInterval.
	SyncInterval time.Duration
	// SealAfter is the time after the last Sync at which a seal is written; 0 selects DefaultSealAfter. With a
	// negative value seals are written only on Close.
	SealAfter time.Duration
	// Cache selects whether large blocks go through the system's cache.
	Cache vfs.CacheUse
	// Start is the position that an empty log continues from. Records up to it are committed, since they are in a
	// checkpoint. It is ignored if the log is not empty.
	Start lsn.Position
	// VerifyFrom makes Open skip old segments: records before this one are in a checkpoint and are used only by a
	// standby that catches up. They are verified when they are read. 0 verifies everything.
	VerifyFrom uint64
	// SlowSync is the duration from which a sync is reported as an event; 0 selects DefaultSlowSync.
	SlowSync time.Duration
	// Events receives the log's events. After events.LogFailed the log has stopped (INV-7). nil: events are not
	// reported.
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
		return o, fmt.Errorf("%w: segment of %d bytes; it must be between %d and %d", ErrOptions, o.SegmentBytes,
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
