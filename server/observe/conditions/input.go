// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/repair"
)

// Input is the state of a node from which the rules derive its conditions. Nil fields do not apply, or are unknown.
type Input struct {
	Now  time.Time
	Self Node
	// Config contains the current settings of the node.
	Config *config.Config
	// Pair is the failover status. A standalone node has no conditions of a pair.
	Pair failover.Status

	// Primary and Follower are the status of the node's role.
	Primary  *replication.PrimaryStatus
	Follower *replication.FollowerStatus
	// Other is the last status of the other node.
	Other *Other

	// Room is the space on the disk. StandbyFull: the standby accepts no data for lack of space.
	Room        *store.Room
	StandbyFull bool
	// Damage is the corruption of the store, Difference the difference to the content of the other node.
	Damage         repair.Status
	Difference     string
	OldestPrepared *Prepared
	Full           []dispatch.FullError // full dead-letter queues

	// Archive is that of the node's log.
	Plan    *maintenance.Plan
	Jobs    []maintenance.JobInfo
	Archive *backup.ArchiveStatus

	// CacheOnly: the filesystem cannot bypass the page cache.
	CacheOnly                 bool
	MemoryUsed, MemoryAllowed int64 // bytes
	// AuditError describes a failure of the audit log, AuditLost is the number of its lost records.
	AuditError string
	AuditLost  uint64
	// AuthError describes rejected callers, KeysError unavailable keys of the token issuer.
	AuthError, KeysError string
	Unrestricted         bool // no access rules exist
	// Credentials could not be loaded.
	Certificates []Certificate
	Credentials  []Credential
}

// Prepared is a prepared transaction.
type Prepared struct {
	XID string
	At  time.Time
}

// Certificate is a certificate file used by a node.
type Certificate struct {
	// Use is "node", "etcd", "raft", "metrics", "console" or "witness".
	Use string
	// CA: the file contains CAs that verify others.
	File string
	CA   bool
	// Subject and Ends (the expiry) are those of the certificate that expires first.
	Subject string
	Ends    time.Time
}

// Credential is a certificate, key or secret that could not be loaded.
type Credential struct {
	Use string
	Err error
}

// Other is a status of the other node, as of At.
type Other struct {
	Node Node
	At   time.Time
	// Offset is the offset of its clock, Unsure the part of it that network delay may explain.
	Offset, Unsure time.Duration
	Reports        []Report
	// Older: its release does not report conditions. Reports are then its alarms, DiskFree its free space in bytes.
	Older    bool
	DiskFree uint64
}
