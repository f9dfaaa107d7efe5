// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Node is the node that a Manager works in.
type Node interface {
	// Pair returns the status of failover. Changed is closed when the role or the record changes.
	Pair() failover.Status
	Changed() <-chan struct{}
	// Alone reports whether the node belongs to no pair.
	Alone() bool
	// Serving returns the term in which the node is active and serves clients; ok is false if it does not. While ok is
	// true, everything ever committed is applied. The node may be blocked for a moment: then Commit waits or fails.
	Serving() (term uint64, ok bool)
	// Commit commits a transaction on the serving active. The errors are replication's.
	Commit(ctx context.Context, payload []byte) (*txn.Result, error)
	// Standby returns the progress of the connected standby; ok is false without one, or if this node is not active.
	Standby() (s Standby, ok bool)
	HandOver(ctx context.Context) error
}

// Standby is the status of the standby on the active.
type Standby struct {
	Node uuid.UUID
	// Required: transactions wait for its acks.
	Required bool
	// AppliedLSN is the last record that it has applied, and CommitLSN the last that it may apply.
	AppliedLSN, CommitLSN uint64
}

// Operations are the operations on the page file of this node, or of the other one over the network. progress may be
// nil; it is called from any goroutine, and possibly once after the operation has returned.
type Operations interface {
	Scan(ctx context.Context, maxPageSize int, progress func(checkpoint.Progress)) (checkpoint.ScanResult, error)
	Rewrite(ctx context.Context, req RewriteRequest, progress func(checkpoint.Progress)) (RewriteResult, error)
	Shrink(ctx context.Context, dryRun bool) (ShrinkResult, error)
	Backup(ctx context.Context, req BackupRequest, progress func(checkpoint.Progress)) (backup.Set, error)
	Checkpoint(ctx context.Context) error
	// Restart restarts the node, a standby, for a plan; done is true if it has already restarted.
	Restart(ctx context.Context, planID string) (done bool, err error)
	// Digest waits for exactly an LSN and hashes the content at it. It returns store.ErrPast if the LSN has passed.
	Digest(ctx context.Context, atLSN uint64) (checkpoint.Digest, error)
}

// Peers calls the node at an address.
type Peers interface {
	At(address string) Operations
	// Activity returns the running operation, or nil.
	Activity(ctx context.Context, address string) (*Activity, error)
	// Report sends a report to the active.
	Report(ctx context.Context, address string, r Report) error
}

// Report is a report of a node to the active.
type Report struct {
	Node uuid.UUID
	// Recommended page size of a scan, in bytes; 0 for none.
	Recommended int
	// StartupID is the executed request for the next start; empty for none.
	StartupID string
}

// Activity is an operation that runs on a node.
type Activity struct {
	// Operation is "scan", "rewrite", "shrink", "backup", "verify-backup" or "drop-old".
	Operation string
	Since     time.Time
	Progress  checkpoint.Progress
	PlanID    string // of the plan that it is a step of, if any
}

// RewriteRequest contains the parameters of a rewrite.
type RewriteRequest struct {
	// PageSize in bytes; 0 keeps the current one (a compaction).
	PageSize int
	// DryRun only returns the expected result.
	DryRun bool
	// PlanID is the plan that it is a step of, if any. A step is executed once.
	PlanID string
}

// RewriteResult is the actual or expected result of a rewrite.
type RewriteResult struct {
	PageSizeBefore, PageSizeAfter int // in bytes
	// FileBytesBefore and FileBytesAfter are the sizes of page.db.
	FileBytesBefore, FileBytesAfter uint64
	// NeededBytes is the space needed during the rewrite, and AvailableBytes the available space.
	NeededBytes, AvailableBytes uint64
	Messages                    uint64 // written
	// Duration is 0 if the rewrite had been done before.
	Duration time.Duration
}

// ShrinkResult is the actual or expected result of a shrink.
type ShrinkResult struct{ FileBytesBefore, FileBytesAfter uint64 }

// BackupRequest contains the parameters of a backup.
type BackupRequest struct {
	// Path of the backup directory; empty means the setting.
	Path string
	// Keep is the number of backups to keep; 0 means the setting.
	Keep int
	// BytesPerSecond limits the rate; 0 means no limit.
	BytesPerSecond int64
}
