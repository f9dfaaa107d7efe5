// SPDX-License-Identifier: Apache-2.0

package replication

import "time"

// Defaults of Tuning.
const (
	DefaultHeartbeat         = 40 * time.Millisecond
	DefaultStandbyTimeout    = 1500 * time.Millisecond
	DefaultActiveTimeout     = 2 * time.Second
	DefaultAckTimeout        = 5 * time.Second
	DefaultDiskStallTimeout  = 5 * time.Second
	DefaultCommitNotify      = time.Millisecond
	DefaultBehindRetry       = time.Second
	DefaultWindowBytes       = 8 << 20
	DefaultTailBytes         = 16 << 20
	DefaultBatchBytes        = 1 << 20
	DefaultQueueBytes        = 64 << 20
	DefaultMaxTxnBytes       = 128 << 20
	DefaultSnapshotChunkSize = 1 << 20
)

// Tuning configures timeouts and sizes of replication. Zero fields use their defaults. The two nodes may use
// different values, but a standby rejects a batch of more than its MaxTxnBytes plus twice its BatchBytes.
type Tuning struct {
	// Heartbeat is the maximum time between messages, in both directions, unless the log disk is stalled.
	Heartbeat time.Duration
	// StandbyTimeout is the silence after which the active drops a standby. It should be shorter than ActiveTimeout, so
	// that a healthy active acts first in a partition.
	StandbyTimeout time.Duration
	// ActiveTimeout is the silence after which the standby reports the active as lost. It also limits each attempt to
	// connect.
	ActiveTimeout time.Duration
	// AckTimeout is the time without an ack, while records are in flight, after which a live standby is dropped as slow.
	AckTimeout time.Duration
	// DiskStallTimeout is the duration of a log write, including its sync, after which the node stops its heartbeats.
	DiskStallTimeout time.Duration
	// CommitNotice is the maximum delay before the active sends a new commit LSN to the standby, in a separate message
	// unless a batch includes it earlier. On the standby, it is the time for which committed records are collected
	// before they are applied.
	CommitNotice time.Duration
	// BehindRetry is the delay before a standby redials an active that lacks committed records in its log or its
	// checkpoint.
	BehindRetry time.Duration
	// CommitDelay is the maximum time for which the committer waits for more transactions before a write. The wait ends
	// when a batch is full. A delay causes fewer and larger writes. Default 0.
	CommitDelay time.Duration
	// WindowBytes limits the bytes sent to a standby and not yet acknowledged. The last batch, or a single record of any
	// size, may exceed the limit.
	WindowBytes int
	// TailBytes is the size of the newest part of the log that is kept in memory. A standby further behind is sent
	// records from the log files.
	TailBytes int
	// BatchBytes is the size at which a batch is closed; a single record may be larger. It also limits the bytes of
	// records in one message.
	BatchBytes int
	// QueueBytes limits the size of the pending transactions, including an overhead for each. Submit blocks at the
	// limit.
	QueueBytes         int64
	MaxTxnBytes        int
	SnapshotChunkBytes int
	// SnapshotBytesPerSecond, if not nil, returns the maximum rate at which a standby receives a snapshot; 0 means no
	// limit. It is called at the start of each transfer.
	SnapshotBytesPerSecond func() int64
}

func (t Tuning) withDefaults() Tuning {
	setDefault(&t.Heartbeat, DefaultHeartbeat)
	setDefault(&t.StandbyTimeout, DefaultStandbyTimeout)
	setDefault(&t.ActiveTimeout, DefaultActiveTimeout)
	setDefault(&t.AckTimeout, DefaultAckTimeout)
	setDefault(&t.DiskStallTimeout, DefaultDiskStallTimeout)
	setDefault(&t.CommitNotice, DefaultCommitNotify)
	setDefault(&t.BehindRetry, DefaultBehindRetry)
	setDefault(&t.WindowBytes, DefaultWindowBytes)
	setDefault(&t.TailBytes, DefaultTailBytes)
	setDefault(&t.BatchBytes, DefaultBatchBytes)
	setDefault(&t.QueueBytes, DefaultQueueBytes)
	setDefault(&t.MaxTxnBytes, DefaultMaxTxnBytes)
	setDefault(&t.SnapshotChunkBytes, DefaultSnapshotChunkSize)
	return t
}

func setDefault[T int | int64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}
