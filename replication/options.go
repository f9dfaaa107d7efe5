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
	DefaultCommitNotice      = time.Millisecond
	DefaultBehindRetry       = time.Second
	DefaultWindowBytes       = 8 << 20
	DefaultTailBytes         = 16 << 20
	DefaultBatchBytes        = 1 << 20
	DefaultQueueBytes        = 64 << 20
	DefaultMaxTxnBytes       = 128 << 20
	DefaultSnapshotChunkSize = 1 << 20
)

// Tuning has the times and sizes of replication. The zero value of a field means its default. Both nodes may differ.
type Tuning struct {
	// Heartbeat is the longest time without a message, in both directions.
	Heartbeat time.Duration
	// StandbyTimeout is the silence after which the active drops a standby. It should be shorter than ActiveTimeout, so
	// that in a partition the healthy active is the one to act first.
	StandbyTimeout time.Duration
	// ActiveTimeout is the silence after which the standby reports the active as lost.
	ActiveTimeout time.Duration
	// AckTimeout is how long a standby that lives may leave records without an ack before it is dropped as slow.
	AckTimeout time.Duration
	// DiskStallTimeout is how long a write or sync of the log may take before the node stops its heartbeats.
	DiskStallTimeout time.Duration
	// CommitNotice is how long a new commit LSN waits for a batch to travel with before it is sent alone.
	CommitNotice time.Duration
	// BehindRetry is after how long a standby asks an active again that lacks committed records: nothing changes by
	// itself.
	BehindRetry time.Duration
	// CommitDelay is how long the committer waits for more transactions before it writes; zero (the default) is not at
	// all. It trades latency for fewer, larger writes.
	CommitDelay time.Duration
	// WindowBytes bounds what is sent to a standby and not yet acknowledged; one larger record may always be under way.
	WindowBytes int
	// TailBytes is how much of the newest log is kept in memory for sending. A standby further behind reads the log
	// files.
	TailBytes int
	// BatchBytes closes a batch; one record may be larger. It is also the largest piece that is sent in one message.
	BatchBytes int
	// QueueBytes bounds the transactions that are accepted and not yet answered. Each counts its size and a few bytes
	// more, so that their number is bounded, too. More wait in Submit.
	QueueBytes int64
	// MaxTxnBytes bounds one transaction.
	MaxTxnBytes int
	// SnapshotChunkBytes is the size of the pieces that a snapshot travels in.
	SnapshotChunkBytes int
	// SnapshotBytesPerSecond bounds how fast a standby takes a snapshot in; 0 is as fast as it comes. Both nodes' logs
	// may share a disk or a network with it, and a disk that is given more than it can take makes every commit wait.
	SnapshotBytesPerSecond func() int64
}

// withDefaults fills in the defaults.
func (t Tuning) withDefaults() Tuning {
	setDefault(&t.Heartbeat, DefaultHeartbeat)
	setDefault(&t.StandbyTimeout, DefaultStandbyTimeout)
	setDefault(&t.ActiveTimeout, DefaultActiveTimeout)
	setDefault(&t.AckTimeout, DefaultAckTimeout)
	setDefault(&t.DiskStallTimeout, DefaultDiskStallTimeout)
	setDefault(&t.CommitNotice, DefaultCommitNotice)
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
