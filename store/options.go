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

// PageCache selects whether large writes to page.db and to the log go through the system's page cache.
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

// ParsePageCache parses auto, keep or drop.
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

// Options configures a store. The zero value of a field selects its default.
type Options struct {
	// FS is the filesystem; nil selects the operating system's.
	FS  vfs.FS
	Dir string
	// PageSize of a new page.db, in bytes: a multiple of 2048. An existing file keeps its page size.
	PageSize int
	Sync     wal.SyncMode
	// SyncInterval is the time between syncs with wal.SyncInterval.
	SyncInterval time.Duration
	// MemoryBudget bounds the messages and index nodes held in memory, in bytes; at least MinMemoryBudget.
	MemoryBudget int64
	PageCache    PageCache
	// CheckpointBytes is the amount of log since the last checkpoint that starts the next one.
	CheckpointBytes int64
	// CheckpointInterval is the age of the last checkpoint that starts the next one, if the state has changed.
	CheckpointInterval time.Duration
	// LogKeepBytes of log before the last checkpoint are kept for a standby to catch up from; if negative, none.
	LogKeepBytes int64
	SegmentBytes int64
	// MaxFrameBytes bounds the size of one transaction.
	MaxFrameBytes int
	// BackgroundPercent is the percentage of time in which Scan, Check, Digest, PlanRewrite, Shrink and a backup may work,
	// so that they do not slow down transactions; 0 means 100. throttle.FullSpeed lifts it for one of them.
	BackgroundPercent int
	// ReplaceDamaged quarantines a store of a pair that is too corrupt to be opened (moved to damaged-… in the data
	// directory). An empty store with a new incarnation takes its place, to be filled by the other node.
	ReplaceDamaged bool
	// ReplaceUnknown does the same when the identity is lost, so that the store is not known to have belonged to a pair.
	// The empty store then has a new node ID.
	ReplaceUnknown bool
	// BootID identifies the operating system's boot; empty reads it from the kernel.
	BootID string
	// Events receives the store's events, within the constraints that package events documents; nil discards them. After
	// events.Failed the process must stop (INV-7).
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

// kernelBootID returns "" if unknown. Every start then counts as another boot, as INV-6 must assume.
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
