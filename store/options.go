// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

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

// PageCache says whether what is written in large pieces, by checkpoints and to the log, goes through the system's
// cache.
type PageCache int

const (
	// CacheAuto is CacheDrop for page.db while the store does not serve readers (Store.ServeReaders), and otherwise
	// whichever of CacheKeep and CacheDrop takes less time (vfs.FasterWay).
	CacheAuto PageCache = iota
	// CacheKeep writes through it and leaves it there.
	CacheKeep
	// CacheDrop writes past it.
	CacheDrop
)

// ParsePageCache reads auto, keep or drop.
func ParsePageCache(text string) (PageCache, error) {
	if i := slices.Index(PageCacheNames(), text); i >= 0 {
		return PageCache(i), nil
	}
	return 0, fmt.Errorf("store: page cache %q: it is one of %s", text, strings.Join(PageCacheNames(), ", "))
}

// use is what it means for a file that consumers may read.
func (c PageCache) use() vfs.CacheUse {
	switch c {
	case CacheKeep:
		return vfs.UseCache
	case CacheDrop:
		return vfs.AvoidCache
	default:
		return vfs.FasterWay
	}
}

// PageCacheNames lists what ParsePageCache takes.
func PageCacheNames() []string { return []string{"auto", "keep", "drop"} }

// Options configure a store. The zero value of a field means its default.
type Options struct {
	// FS is the filesystem; nil means the operating system's.
	FS vfs.FS
	// Dir is the data directory; made if it is not there.
	Dir string
	// PageSize is the page size of a page.db that is made now, in bytes: a multiple of 2048. An existing file keeps its
	// own.
	PageSize int
	// Sync says when an appended record counts as durable.
	Sync wal.SyncMode
	// SyncInterval is the time between syncs with wal.SyncInterval.
	SyncInterval time.Duration
	// MemoryBudget bounds the messages and index nodes held in memory, in bytes; at least MinMemoryBudget.
	MemoryBudget int64
	// PageCache says what stays in the system's cache of what a checkpoint wrote.
	PageCache PageCache
	// CheckpointBytes starts a checkpoint when so much log was written since the last one.
	CheckpointBytes int64
	// CheckpointInterval starts a checkpoint when the last one is so old and something changed.
	CheckpointInterval time.Duration
	// LogKeepBytes of log before the last checkpoint are kept for a standby to catch up from; less than 0 means none.
	LogKeepBytes int64
	// SegmentBytes is the size of a log segment.
	SegmentBytes int64
	// MaxFrameBytes bounds one transaction.
	MaxFrameBytes int
	// BackgroundPercent of the time is what Scan, Check, Digest, PlanRewrite, Shrink and a backup may work; they pause
	// for the rest, so that transactions do not feel them (pace.FullSpeed turns that off for one of them). 0 means all
	// of the time.
	BackgroundPercent int
	// ReplaceDamaged sets a store of a pair aside (damaged-…, beside what takes its place) that is damaged so that it
	// cannot be opened, and begins an empty one under a new incarnation, to be filled by the other node.
	ReplaceDamaged bool
	// ReplaceUnknown does the same when the identity is lost, so that nothing tells that the store was one of a pair.
	// The empty one is of another node then.
	ReplaceUnknown bool
	// BootID names the operating system's boot; empty reads it from the kernel.
	BootID string
	// Events is told what happens in the store, in the words of package events, which says what it must and must not do
	// (events.Log writes them to a log). After events.Failed the process must stop (INV-7). nil: nothing is told.
	Events func(events.Event)
}

// withDefaults fills in the defaults and checks the rest.
func (o Options) withDefaults() (Options, error) {
	if o.Dir == "" {
		return o, errors.New("store: no data directory given")
	}
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.Events == nil {
		o.Events = events.Discard
	}
	setDefault(&o.PageSize, DefaultPageSize)
	setDefault(&o.MemoryBudget, DefaultMemoryBudget)
	setDefault(&o.CheckpointBytes, DefaultCheckpointBytes)
	setDefault(&o.CheckpointInterval, DefaultCheckpointInterval)
	setDefault(&o.LogKeepBytes, DefaultLogKeepBytes)
	o.LogKeepBytes = max(o.LogKeepBytes, 0)
	setDefault(&o.SegmentBytes, DefaultSegmentBytes)
	setDefault(&o.MaxFrameBytes, DefaultMaxFrameBytes)
	if o.MemoryBudget < MinMemoryBudget {
		return o, fmt.Errorf("store: memory budget of %d bytes is below the minimum of %d", o.MemoryBudget,
			MinMemoryBudget)
	}
	if o.BootID == "" {
		o.BootID = kernelBootID()
	}
	return o, nil
}

func setDefault[T int | int64 | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// kernelBootID is empty where the kernel does not tell; then every start counts as another boot, as INV-6 must assume.
func kernelBootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}
