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
	// Pair is what failover knows. Changed is closed when the role or the record changes.
	Pair() failover.Status
	Changed() <-chan struct{}
	// Alone is true for a node that is in no pair.
	Alone() bool
	// Serving gives the term in which the node is the active one and lets clients in; ok is false when it does not.
	// While it is true, everything that was ever committed is applied. It may be blocked for a moment: then Commit
	// waits or fails.
	Serving() (term uint64, ok bool)
	// Commit commits a transaction on the serving active. The errors are replication's.
	Commit(ctx context.Context, payload []byte) (*txn.Result, error)
	// Standby tells how far the connected standby is; ok is false when there is none, or this node is not active.
	Standby() (s Standby, ok bool)
	// HandOver makes the other node the active one.
	HandOver(ctx context.Context) error
}

// Standby is what the active knows of its standby.
type Standby struct {
	// Node that it is.
	Node uuid.UUID
	// Required: transactions wait for its acks.
	Required bool
	// AppliedLSN is what it has applied; CommitLSN is what it could have.
	AppliedLSN, CommitLSN uint64
}

// Operations are what can be asked of a node's page file: of this one's, or of the other's over the network. A progress
// function may be nil; it is called from any goroutine, and perhaps once more after the operation has returned.
type Operations interface {
	// Scan recommends a page size.
	Scan(ctx context.Context, maxPageSize int, progress func(checkpoint.Progress)) (checkpoint.ScanResult, error)
	// Rewrite writes the page file anew.
	Rewrite(ctx context.Context, req RewriteRequest, progress func(checkpoint.Progress)) (RewriteResult, error)
	// Shrink gives the free end of the page file back.
	Shrink(ctx context.Context, dryRun bool) (ShrinkResult, error)
	// Backup makes a save-set.
	Backup(ctx context.Context, req BackupRequest, progress func(checkpoint.Progress)) (backup.Set, error)
	// Checkpoint writes one.
	Checkpoint(ctx context.Context) error
	// Restart has the node, a standby, begin anew for a plan; done is true when it already has.
	Restart(ctx context.Context, planID string) (done bool, err error)
	// Digest hashes the content as it is at exactly an LSN, for which it waits; store.ErrPast if that has gone by.
	Digest(ctx context.Context, atLSN uint64) (checkpoint.Digest, error)
}

// Peers reach other nodes.
type Peers interface {
	// At gives the operations of the node at an address.
	At(address string) Operations
	// Activity tells what runs on the node at an address; nil for nothing.
	Activity(ctx context.Context, address string) (*Activity, error)
	// Report tells the active at an address what this node has done.
	Report(ctx context.Context, address string, r Report) error
}

// Report is what a node tells the active.
type Report struct {
	// Node that did it.
	Node uuid.UUID
	// Recommended page size that a scan found, in bytes; 0 for none.
	Recommended int
	// StartupID is the request of a rewrite at the next start that was met; empty for none.
	StartupID string
}

// Activity is an operation that runs on a node.
type Activity struct {
	// Operation is "scan", "rewrite", "shrink", "backup", "verify-backup" or "drop-old".
	Operation string
	// Since when.
	Since time.Time
	// Progress so far.
	Progress checkpoint.Progress
	// PlanID of the plan that it is a step of; empty for none.
	PlanID string
}

// RewriteRequest asks for a rewrite.
type RewriteRequest struct {
	// PageSize in bytes; 0 keeps the present one (a compaction).
	PageSize int
	// DryRun: only find out what would be done.
	DryRun bool
	// PlanID names the plan that it is a step of. What was done for a plan is not done again.
	PlanID string
}

// RewriteResult tells what a rewrite did or would do.
type RewriteResult struct {
	// PageSizeBefore and PageSizeAfter in bytes.
	PageSizeBefore, PageSizeAfter int
	// FileBytesBefore and FileBytesAfter are the sizes of page.db.
	FileBytesBefore, FileBytesAfter uint64
	// NeededBytes is the space needed meanwhile, AvailableBytes what there is.
	NeededBytes, AvailableBytes uint64
	// Messages written.
	Messages uint64
	// Took this long; 0 when it had been done before.
	Took time.Duration
}

// ShrinkResult tells what a shrink gave back or would give back.
type ShrinkResult struct{ FileBytesBefore, FileBytesAfter uint64 }

// BackupRequest asks for a backup.
type BackupRequest struct {
	// Path of the directory of save-sets; empty means the setting.
	Path string
	// Keep so many save-sets; 0 means the setting.
	Keep int
	// BytesPerSecond limits it; 0 means no limit.
	BytesPerSecond int64
}
