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

// Node provides the role and the failover operations of the node of a Manager.
type Node interface {
	// Pair returns the failover status. Changed returns a channel that is closed at the next change of that status.
	Pair() failover.Status
	Changed() <-chan struct{}
	// Alone reports whether the node is standalone.
	Alone() bool
	// Serving returns the term in which this node is active and serves clients. ok is false if it does not serve.
	// While ok is true, all committed transactions are applied. While the node is temporarily blocked, ok is true,
	// but Commit waits or fails.
	Serving() (term uint64, ok bool)
	// Commit commits a transaction on the active. Its errors are those of package replication.
	Commit(ctx context.Context, payload []byte) (*txn.Result, error)
	// Standby returns the progress of the connected standby. ok is false if no standby is connected or this node is
	// not active.
	Standby() (s Standby, ok bool)
	// HandOver switches over to the standby.
	HandOver(ctx context.Context) error
}

// Standby is the status of the standby, as known to the active.
type Standby struct {
	Node uuid.UUID
	// Required reports whether transactions wait for acknowledgements of this standby.
	Required bool
	// AppliedLSN is the LSN of the last record that the standby has applied. CommitLSN is the LSN of the last record
	// that it may apply.
	AppliedLSN, CommitLSN uint64
}

// Operations executes operations on the page file of this node, or of the other node over the network. progress
// may be nil. It is called from any goroutine, possibly once after the operation has returned.
type Operations interface {
	Scan(ctx context.Context, maxPageSize int, progress func(checkpoint.Progress)) (checkpoint.ScanResult, error)
	Rewrite(ctx context.Context, req RewriteRequest, progress func(checkpoint.Progress)) (RewriteResult, error)
	Shrink(ctx context.Context, dryRun bool) (ShrinkResult, error)
	Backup(ctx context.Context, req BackupRequest, progress func(checkpoint.Progress)) (backup.Set, error)
	Checkpoint(ctx context.Context) error
	// Restart restarts the node, which must be a standby, for a plan. done is true if the node has already
	// restarted.
	Restart(ctx context.Context, planID string) (done bool, err error)
	// Digest waits until the node has applied the record atLSN and no later record, and hashes its content. If atLSN is
	// 0, it hashes the current content. It returns store.ErrPast if the node has already applied later records.
	Digest(ctx context.Context, atLSN uint64) (checkpoint.Digest, error)
}

// Peers provides the operations of the node at an address.
type Peers interface {
	At(address string) Operations
	// Activity returns the operation that runs on the node, or nil.
	Activity(ctx context.Context, address string) (*Activity, error)
	// Report sends a report to the active at an address.
	Report(ctx context.Context, address string, r Report) error
}

// Report is sent to the active. It contains the operations that a node has completed.
type Report struct {
	Node uuid.UUID
	// Recommended is the page size recommended by a scan, in bytes; 0 without a scan.
	Recommended int
	// StartupID is the ID of the startup request that the node has executed. It is empty if none was executed.
	StartupID string
}

// Activity is an operation in progress on a node.
type Activity struct {
	// Operation is "scan", "rewrite", "shrink", "backup", "verify-backup" or "drop-old".
	Operation string
	Since     time.Time
	Progress  checkpoint.Progress
	PlanID    string // ID of the plan, if the operation is one of its steps
}

// RewriteRequest contains the parameters of a rewrite.
type RewriteRequest struct {
	// PageSize is the new page size in bytes. If it is 0, the current page size is kept (a compaction).
	PageSize int
	// DryRun requests only the expected result. The page file is not changed.
	DryRun bool
	// PlanID is the ID of the plan or startup request, if the rewrite is one of its steps.
	PlanID string
}

// RewriteResult is the actual or expected result of a rewrite.
type RewriteResult struct {
	PageSizeBefore, PageSizeAfter int // in bytes
	// FileBytesBefore and FileBytesAfter are the sizes of page.db.
	FileBytesBefore, FileBytesAfter uint64
	// NeededBytes is the disk space that the rewrite needs. AvailableBytes is the disk space that is available; it is set
	// for a dry run only.
	NeededBytes, AvailableBytes uint64
	Messages                    uint64 // number of messages written
	// Duration is the duration of the rewrite. It is 0 for a dry run, and if an earlier call has already completed the
	// rewrite.
	Duration time.Duration
}

// ShrinkResult is the actual or expected result of a shrink.
type ShrinkResult struct{ FileBytesBefore, FileBytesAfter uint64 }

// BackupRequest contains the parameters of a backup.
type BackupRequest struct {
	// Path is the location of the backup. If it is empty, the configured location is used.
	Path string
	// Keep is the number of backups to keep; 0 means the configured number.
	Keep int
	// BytesPerSecond limits the rate of the backup. If it is 0, only the limit of background work applies.
	BytesPerSecond int64
}
