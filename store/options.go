// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// Defaults and limits of Options.
const (
	DefaultPageSize           = 2048
	DefaultMemoryBudget       = 256 << 20
	MinMemoryBudget           = 16 << 20
	DefaultCheckpointBytes    = 128 << 20
	DefaultCheckpointInterval = 30 * time.Second
	DefaultLogKeepBytes       = 256 << 20
	DefaultSegmentBytes       = 64 << 20
	DefaultMaxFrameBytes      = 128 << 20
)

// PageCache selects whether large writes to page.db and to the log use the operating system's page cache.
type PageCache int

const (
	// CacheAuto is CacheDrop for page.db while the store does not serve readers (Store.ServeReaders). Otherwise it is
	// the faster of CacheKeep and CacheDrop (vfs.FasterPath).
	CacheAuto PageCache = iota
	// CacheKeep writes through the cache and leaves the pages in it.
	CacheKeep
	// CacheDrop bypasses the cache.
	CacheDrop
)

// ParsePageCache returns the PageCache with the given name: auto, keep or drop. It returns an error for other names.
func ParsePageCache(text string) (PageCache, error) {
	if i := slices.Index(PageCacheNames(), text); i >= 0 {
		return PageCache(i), nil
	}
	return 0, fmt.Errorf("store: invalid page cache %q: expected one of %s", text, strings.Join(PageCacheNames(), ", "))
}

func (c PageCache) use(serving bool) vfs.CacheUse {
	switch {
	case c == CacheKeep:
		return vfs.UseCache
	case c == CacheDrop, !serving:
		return vfs.AvoidCache
	default:
		return vfs.FasterPath
	}
}

// PageCacheNames returns the names that ParsePageCache accepts.
func PageCacheNames() []string { return []string{"auto", "keep", "drop"} }

// Options configures a store. Dir is required. The zero value of any other field selects its default.
type Options struct {
	// FS is the filesystem; nil selects that of the operating system.
	FS  vfs.FS
	Dir string
	// PageSize is the page size of a new page.db in bytes: a multiple of 2048, at most 1 MiB. An existing file keeps its
	// page size.
	PageSize int
	Sync     wal.SyncMode
	// SyncInterval is the time between syncs in mode wal.SyncInterval.
	SyncInterval time.Duration
	// MemoryBudget is the approximate maximum memory for messages, caches and index nodes, in bytes; at least
	// MinMemoryBudget.
	MemoryBudget int64
	PageCache    PageCache
	// CheckpointBytes is the size of the log since the last checkpoint, in bytes, at which the next checkpoint is
	// started.
	CheckpointBytes int64
	// CheckpointInterval is the time since the last checkpoint after which the next checkpoint is started, if the state
	// has changed.
	CheckpointInterval time.Duration
	// LogKeepBytes is the size of the log, in bytes, that is retained so that a standby can catch up, unless disk space
	// is short. It includes the log that recovery requires. A negative value retains only that log.
	LogKeepBytes int64
	SegmentBytes int64
	// MaxFrameBytes is the maximum size of an encoded transaction.
	MaxFrameBytes int
	// BackgroundPercent is the maximum percentage of time for background work, such as a scan or a backup; 0 means 100.
	// throttle.FullSpeed lifts the limit for one operation.
	BackgroundPercent int
	// ReplaceDamaged quarantines the store if it belongs to a pair and is too corrupt to be opened. Open moves its
	// files to damaged-… in the data directory and creates an empty store with a new incarnation.
	ReplaceDamaged bool
	// ReplaceUnknown also quarantines a store without a readable identity, which may have belonged to a pair. The empty
	// store has a new node ID.
	ReplaceUnknown bool
	// BootID identifies the current boot of the operating system. If it is empty, Open reads it from the kernel.
	BootID string
	// Events receives the store's events; nil discards them. The function must observe the constraints in package
	// events. After events.Failed the process must stop (INV-7).
	Events func(events.Event)
}

func (o Options) withDefaults() (Options, error) {
	if o.Dir == "" {
		return o, errors.New("store: data directory not set")
	}
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.Events == nil {
		o.Events = events.Discard
	}
	o.PageSize = cmp.Or(o.PageSize, DefaultPageSize)
	o.MemoryBudget = cmp.Or(o.MemoryBudget, DefaultMemoryBudget)
	o.CheckpointBytes = cmp.Or(o.CheckpointBytes, DefaultCheckpointBytes)
	o.CheckpointInterval = cmp.Or(o.CheckpointInterval, DefaultCheckpointInterval)
	o.LogKeepBytes = max(cmp.Or(o.LogKeepBytes, DefaultLogKeepBytes), 0)
	o.SegmentBytes = cmp.Or(o.SegmentBytes, DefaultSegmentBytes)
	o.MaxFrameBytes = cmp.Or(o.MaxFrameBytes, DefaultMaxFrameBytes)
	if o.MemoryBudget < MinMemoryBudget {
		return o, fmt.Errorf("store: memory budget of %d bytes is below the minimum of %d", o.MemoryBudget,
			MinMemoryBudget)
	}
	if o.BootID == "" {
		o.BootID = kernelBootID()
	}
	return o, nil
}

// kernelBootID returns the boot ID, or "" if it is unknown. Without a boot ID, every start counts as another boot
// (INV-6).
func kernelBootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

func (o *Options) directory() datadir.Options {
	return datadir.Options{FS: o.FS, Dir: o.Dir, BootID: o.BootID, Sync: o.Sync}
}
