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
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/repair"
)

// Input is the state of a node from which the rules derive its conditions. A nil field does not apply or is
// unknown.
type Input struct {
	Now  time.Time
	Self Node
	// Config contains the current settings of the node.
	Config *config.Config
	// Pair is the failover status.
	Pair failover.Status

	// Primary is the status of the active role, and Follower that of the standby role.
	Primary  *replication.PrimaryStatus
	Follower *replication.FollowerStatus
	// Other is the last known status of the other node.
	Other *Other

	// Room is the available space of the store. StandbyFull reports whether this standby accepts no data for lack of
	// disk space.
	Room        *store.Room
	StandbyFull bool
	// Damage describes the corruption found in the store. Difference describes how the content of the store differs
	// from that of the other node or the other site.
	Damage         repair.Status
	Difference     string
	OldestPrepared *Prepared
	Full           []dispatch.FullError // queues with a full dead-letter queue
	PausedQueues   []string             // names of the paused queues
	Stuck          []StuckConsumer

	// Plan and Jobs are the plan and the jobs of the pair. Archive is the status of this node's log archive.
	Plan    *maintenance.Plan
	Jobs    []maintenance.JobInfo
	Archive *backup.ArchiveStatus

	FailedSchedules []FailedSchedule

	Site  *Site  // nil without site.name and without a role in a group of sites
	Fleet *Fleet // nil if the pair belongs to no fleet and fleet.pair is not set

	// CacheOnly reports whether the filesystem cannot bypass the page cache.
	CacheOnly                 bool
	MemoryUsed, MemoryAllowed int64 // in bytes
	// AuditError describes a failure of the audit log. AuditLost is the number of records that were not written.
	AuditError string
	AuditLost  uint64
	// AuthError describes authentication failures. KeysError describes why the keys of the token issuer are
	// unavailable.
	AuthError, KeysError string
	Unrestricted         bool // all clients have all rights: no access rule exists, and access.mode is open
	// Certificates contains the certificate files in use. Credentials contains the certificates, keys and secrets
	// that could not be loaded.
	Certificates []Certificate
	Credentials  []Credential
}

// FailedSchedule contains the name of a schedule and the error of its last occurrence.
type FailedSchedule struct{ Name, Error string }

// StuckConsumer is a consumer that has messages in flight and has settled or extended none of them for some time.
type StuckConsumer struct {
	Queue, Subscription, Address string
	// InFlight is the number of messages in flight. For is the time without a settlement or extension.
	InFlight int
	For      time.Duration
}

// ConsumerStuckAfter is the time without a settlement or extension after which a consumer is stuck.
const ConsumerStuckAfter = 10 * time.Minute

// Prepared is a prepared transaction that waits for a decision.
type Prepared struct {
	XID string
	At  time.Time
}

// Certificate is a certificate file used by a node.
type Certificate struct {
	// Use is "node", "etcd", "raft", "metrics", "console", "site" or "witness".
	Use string
	// File is the path of the file or, for the witness, its address. CA reports whether File contains CA certificates,
	// which verify certificates of other components.
	File string
	CA   bool
	// Subject and Ends are the subject and the expiry time of the certificate in File that expires first.
	Subject string
	Ends    time.Time
}

// Credential is a certificate, key or secret that could not be loaded.
type Credential struct {
	Use string
	Err error
}

// Other is the status of the other node at the time At.
type Other struct {
	Node Node
	At   time.Time
	// Offset is the offset of the other node's clock, positive if that clock is ahead. Unsure is the part of Offset that
	// network latency may have caused.
	Offset, Unsure time.Duration
	Reports        []Report
	// Older reports whether the release of the other node does not support conditions. If so, Reports contains its
	// alarms, and DiskFree contains its free disk space in bytes.
	Older    bool
	DiskFree uint64
}

// Site is the role of a pair in a group of two sites.
type Site struct {
	Name  string
	Role  queue.SiteRole
	Epoch uint64
	// Active reports whether the node is the active of its pair. The fields below are set only if it is.
	Active bool
	// Remote is the last known state of the other site; nil if unknown.
	Remote *RemoteSite
	// Superseded reports whether the other site was promoted after this site.
	Superseded bool
	// Err is the reason why the other site does not respond, or why the replica does not receive the log. Behind
	// reports whether the log of the primary no longer contains the position of the replica. Diverged reports whether
	// that log never contained it.
	Err              error
	Behind, Diverged bool
	// Replication describes the replication from the primary. It is zero unless the site is a replica.
	Replication SiteReplication
	// WritesHeld reports whether a primary blocks writes because WriteLag exceeds MaxLag. WriteLag is the age of the
	// oldest transaction that the replica has not confirmed.
	WritesHeld       bool
	WriteLag, MaxLag time.Duration
}

// RemoteSite is the state of the other site.
type RemoteSite struct {
	Name  string
	Role  queue.SiteRole
	Epoch uint64
}

// SiteReplication describes how far a replica is behind its primary.
type SiteReplication struct {
	Connected bool
	// HeardAt is the last time, by the primary's clock, at which the end of its log was known; zero if it is unknown.
	// The lag fields apply to that time.
	HeardAt              time.Time
	Lag                  time.Duration
	LagRecords, LagBytes uint64
	// ReceivedBytes and Connections count since the start of the node.
	ReceivedBytes, Connections uint64
}

// ServesClients reports whether the role of the site permits requests from clients.
func (s *Site) ServesClients() bool { return s.Role == queue.SiteNone || s.Role == queue.SitePrimary }
