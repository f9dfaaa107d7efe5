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

// SyncAlways makes Sync wait for the disk. With SyncInterval, a power failure can lose the records of the last
// Options.SyncInterval; with SyncOff, it can lose more. A process crash loses nothing in any mode.
const (
	SyncAlways SyncMode = iota
	SyncInterval
	SyncOff
)

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

// ParseSyncMode returns the mode with the given name: always, interval or off.
func ParseSyncMode(name string) (SyncMode, error) {
	for _, m := range []SyncMode{SyncAlways, SyncInterval, SyncOff} {
		if m.String() == name {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%w: invalid sync mode %q; it must be always, interval or off", ErrOptions, name)
}

// Defaults and limits of Options.
const (
	DefaultSegmentBytes  = 64 << 20
	DefaultMaxFrameBytes = 128 << 20
	DefaultSyncInterval  = 100 * time.Millisecond
	DefaultSealAfter     = 100 * time.Millisecond
	DefaultSlowSync      = time.Second

	minSegmentBytes = 8 << 10
	maxSegmentBytes = 4 << 30
)

// Options configures a log. FS and Dir are required; zero values of the other fields select the defaults.
type Options struct {
	FS vfs.FS
	// Dir is created if missing and must contain only the log. The caller must hold the lock of the data directory.
	Dir string
	// LogID identifies the log in its segments. It is random and does not change.
	LogID [16]byte
	// SegmentBytes is the size of a segment. A larger block gets its own segment.
	SegmentBytes int64
	// KeepBytes is the minimum size of the log that Release retains, unless disk space is low (SetLowSpace) or records
	// are discarded (Discard).
	KeepBytes int64
	// MaxFrameBytes is the maximum payload of a record.
	MaxFrameBytes int
	Sync          SyncMode
	SyncInterval  time.Duration
	// SealAfter is the idle time after which a seal is written; in mode SyncInterval, it is the sync interval instead.
	// It can be exceeded by up to one interval. If SealAfter is negative, only Close and TruncateAfter write seals.
	SealAfter time.Duration
	// Cache selects whether large blocks are written through the page cache.
	Cache vfs.CacheUse
	// Start is the position before the first record of a new log. Records up to Start must be in a checkpoint.
	Start lsn.Position
	// VerifyFrom is the first record that Open must verify. Open can skip segments that contain only older records,
	// which must be in a checkpoint.
	VerifyFrom uint64
	SlowSync   time.Duration // minimum duration of a sync that is reported as an event
	// Events receives the events of the log; it may be nil. After events.LogFailed the log accepts no records (INV-7).
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
