// SPDX-License-Identifier: Apache-2.0

// Package apierror defines the errors of the API, and converts errors to gRPC statuses and back.
package apierror

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
)

var (
	// ErrInvalid is returned for a request with an invalid, missing or contradictory value.
	ErrInvalid = errors.New("invalid request")
	// ErrSequenceReused is returned if the sequence of a producer was already used for a different request. The new
	// request was not executed.
	ErrSequenceReused = errors.New("producer sequence already used")
	// ErrDiskLow is returned for a request that stores messages while disk space is low (see disk.low-watermark).
	ErrDiskLow = errors.New("disk of the active node is nearly full; see condition publishes-refused")
	// ErrTooManyBrowsers is returned if a Browse call cannot reserve memory in time.
	ErrTooManyBrowsers = errors.New("too many concurrent browsers")
	// ErrResponseTooLarge is returned if a single message exceeds the maximum response size that the client has set.
	ErrResponseTooLarge = errors.New("message is larger than the consumer can receive")
	// ErrFeature is returned for a request that requires a feature which a node of the pair does not support.
	ErrFeature = errors.New("feature requires an upgrade of a node of the pair")
	// ErrSplit ends a publish stream at a request with several publishes of the client that may have different outcomes.
	// The client must send these publishes separately.
	ErrSplit = errors.New("publishes of the request may have different outcomes; send them separately")
	// ErrNoSchedule is returned for a schedule that does not exist.
	ErrNoSchedule = errors.New("schedule not found")
	// ErrTooManySchedules is returned when the pair has the maximum number of schedules.
	ErrTooManySchedules = errors.New("too many schedules: delete some first")
	// ErrReplica is returned while the pair is a replica of another site or a stopped primary.
	ErrReplica = errors.New("pair is a replica of another site")
	// ErrSiteRole is returned if the role of a site does not permit an operation.
	ErrSiteRole = errors.New("not possible in the role of this site")
	// ErrSiteSwitch is returned if a planned switch of the primary site has failed.
	ErrSiteSwitch = errors.New("switch of the primary site failed")
	// ErrSitePrimaryAnswers is returned if a promotion is refused because the primary site responds.
	ErrSitePrimaryAnswers = errors.New("primary site responds")
	// ErrSiteDiverged is returned if a site has transactions that the primary lacks.
	ErrSiteDiverged = errors.New("site has transactions that the primary lacks")
	// ErrSiteBehind is returned if the log of the primary no longer contains the position of a replica.
	ErrSiteBehind = errors.New("log of the primary no longer contains the position of the replica")
	// ErrSiteEpoch is returned if a request refers to deliveries of an earlier epoch. A site that was promoted after
	// that epoch may lack the messages.
	ErrSiteEpoch = errors.New("another site was promoted since the delivery and may lack the messages")
	// ErrSiteLag is returned if the lag of the replica at the other site exceeds site.max-lag. It also matches
	// replication.ErrBlocked.
	ErrSiteLag = fmt.Errorf("%w: replica at the other site exceeds site.max-lag; see condition site-lag",
		replication.ErrBlocked)
	// ErrSiteUnreachable is returned if no node of the other site responds.
	ErrSiteUnreachable = errors.New("other site does not respond")
	// ErrSiteNotCompared is returned if the two sites could not be compared.
	ErrSiteNotCompared = errors.New("sites could not be compared")
	// ErrNotOwner is returned for a queue of another pair of the fleet.
	ErrNotOwner = errors.New("another pair of the fleet owns the queue")
	// ErrCrossPair is returned for a request with queues of different pairs of the fleet.
	ErrCrossPair = errors.New("queues belong to different pairs: use queues of one placement group")
	// ErrPartitioned is returned for a request that names a partitioned queue. Messages are stored only in its
	// partitions.
	ErrPartitioned = errors.New("queue is partitioned")
	// ErrFleetState is returned for a request that the state of the fleet does not permit.
	ErrFleetState = errors.New("not possible in the state of the fleet")
	// ErrPaused is returned for a read of messages while the node cannot confirm that it is still active.
	ErrPaused = errors.New("deliveries are paused on this node")
)

// NotActiveError is returned if the node does not serve clients. It matches replication.ErrNotActive.
type NotActiveError struct {
	ActiveAddress string        // host:port; empty if unknown
	ActiveNode    string        // UUID; empty if unknown
	Role          string        // role of the node that responded
	Reason        string        // why the node has this role; may be empty
	RetryAfter    time.Duration // delay before a retry if no node is active
	// Replica reports whether the pair is a replica of another site or a stopped primary. PrimaryAddresses contains
	// the known addresses of the other site.
	Replica          bool
	PrimaryAddresses []string
}

func (e *NotActiveError) Error() string {
	why := e.Role
	if e.Reason != "" {
		why += ": " + e.Reason
	}
	if e.Replica {
		return fmt.Sprintf("node is not active (%s); the primary site has the addresses %s", why,
			strings.Join(e.PrimaryAddresses, ", "))
	}
	if e.ActiveAddress == "" {
		return fmt.Sprintf("node is not active (%s), and the active node is unknown; try the other "+
			"node, or retry later", why)
	}
	return fmt.Sprintf("node is not active (%s); the active node is %s", why, e.ActiveAddress)
}

// Is reports whether target is replication.ErrNotActive or, if e.Replica is set, ErrReplica.
func (e *NotActiveError) Is(target error) bool {
	return target == replication.ErrNotActive || e.Replica && target == ErrReplica
}

// NotOwnerError is returned for a queue of another pair of the fleet. It matches ErrNotOwner.
type NotOwnerError struct {
	Queue, Pair string
	Addresses   []string // of the nodes of Pair, host:port
	Epoch       uint64   // ownership epoch
}

func (e *NotOwnerError) Error() string {
	return fmt.Sprintf("queue %q belongs to pair %s, with the addresses %s", e.Queue, e.Pair,
		strings.Join(e.Addresses, ", "))
}

// Is reports whether target is ErrNotOwner.
func (e *NotOwnerError) Is(target error) bool { return target == ErrNotOwner }

// PartitionedError is returned for a partitioned queue. It matches ErrPartitioned.
type PartitionedError struct {
	Queue string
	Count int // number of partitions
}

func (e *PartitionedError) Error() string {
	first, last := txn.Partition{Queue: e.Queue, Count: e.Count}, txn.Partition{Queue: e.Queue, Count: e.Count}
	last.Index = e.Count - 1
	return fmt.Sprintf("queue %q has %d partitions, which are the queues %s to %s: use them, or a client that supports "+
		"partitioned queues", e.Queue, e.Count, first.Name(), last.Name())
}

// Is reports whether target is ErrPartitioned.
func (e *PartitionedError) Is(target error) bool { return target == ErrPartitioned }

// partitionsOf returns the detail of an error that wraps a PartitionedError, otherwise nil.
func partitionsOf(err error) *pb.QueuePartitioned {
	e, ok := errors.AsType[*PartitionedError](err)
	if !ok {
		return nil
	}
	return &pb.QueuePartitioned{Queue: e.Queue, Count: uint32(e.Count)}
}

// ConcernsOwner reports whether an error means that this pair does not own a queue, or that the owner is unknown.
func ConcernsOwner(err error) bool {
	if err == nil {
		return false
	}
	r := lookup(err).reason
	return r == pb.ErrorReason_ERROR_REASON_NOT_OWNER || r == pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE
}

// ownerOf returns the detail of an error that wraps a NotOwnerError, otherwise nil.
func ownerOf(err error) *pb.NotOwner {
	e, ok := errors.AsType[*NotOwnerError](err)
	if !ok {
		return nil
	}
	return &pb.NotOwner{Queue: e.Queue, Pair: e.Pair, Addresses: e.Addresses, Epoch: e.Epoch}
}

// LostError is returned by a former primary that has transactions which the promoted site lacks. It matches
// ErrSiteDiverged.
type LostError struct {
	// Origin is the position of the last record of this site that the promoted site has, as text.
	Origin string
	// Transactions is the number of transactions after Origin that are still in the log.
	Transactions uint64
	// Incomplete is the reason why further transactions may be missing from the log. It is empty if none are
	// missing.
	Incomplete string
	// File is the path of the file on this node that contains the records, in the format of a log segment. First and
	// Last are the LSNs of its first and last record.
	File        string
	First, Last uint64
	// Err is the reason why File could not be written. File is then empty.
	Err error
}

func (e *LostError) Error() string {
	text := fmt.Sprintf("%v: %d transactions after record %s", ErrSiteDiverged, e.Transactions, e.Origin)
	if e.Incomplete != "" {
		text += fmt.Sprintf(" (%s)", e.Incomplete)
	}
	if e.File == "" {
		return fmt.Sprintf("%s, which cannot be saved to a file: %v", text, e.Err)
	}
	return fmt.Sprintf("%s, saved as records %d to %d in %s. `lockstep store dump-log FILE --messages` shows them. "+
		"Copy the file to another machine, then set up this site again (docs/how-to/fail-over-to-another-site.md)",
		text, e.First, e.Last, e.File)
}

// Is reports whether target is ErrSiteDiverged.
func (e *LostError) Is(target error) bool { return target == ErrSiteDiverged }

func (e *LostError) metadata() map[string]string {
	return map[string]string{
		reason.LostTransactions: strconv.FormatUint(e.Transactions, 10), reason.LostFile: e.File,
		reason.LostFirst: strconv.FormatUint(e.First, 10), reason.LostLast: strconv.FormatUint(e.Last, 10),
	}
}

// settledError is a refusal that is logged with the producer's sequence. A later attempt with the same sequence is
// not executed.
type settledError struct{ error }

func (e *settledError) Unwrap() error { return e.error }

// Refusal returns the error of a transaction that was refused when it was applied. It returns nil if the transaction
// was not refused. kept reports whether the result is retained.
func Refusal(r *txn.Result, kept bool) error { return RefusalWith(r, kept, nil) }

// RefusalWith is like Refusal. If because is not nil, it replaces the error of the refused transaction.
func RefusalWith(r *txn.Result, kept bool, because error) error {
	err := r.Err()
	if err != nil && because != nil {
		err = because
	}
	switch r.Code { //nolint:exhaustive // the other codes are logged with the producer
	case txn.OK, txn.ErrMalformed, txn.ErrNewerVersion, txn.ErrFenced, txn.ErrTooOld, txn.ErrProducerForgotten,
		txn.ErrReplica, txn.ErrSitePosition, txn.ErrSiteChange:
		return err
	}
	if !kept {
		return err
	}
	return &settledError{err}
}

func isSettled(err error) bool {
	_, settled := errors.AsType[*settledError](err)
	return settled
}

// mapping is an entry of errorTable. The reason determines the gRPC code, as defined in errors.proto.
type mapping struct {
	err    error
	reason pb.ErrorReason
}

func (m mapping) code() codes.Code { return reason.Code(m.reason) }

// errorTable maps errors to reasons, and reasons to errors. Lookups use the first match.
var errorTable = []mapping{
	{ErrSplit, pb.ErrorReason_ERROR_REASON_SPLIT}, // precedes the reason for the refusal
	// ErrOutcomeUnknown precedes the errors that it may wrap. Their reasons NOT_ACTIVE and BLOCKED mean that nothing
	// was executed.
	{replication.ErrOutcomeUnknown, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN},
	{failover.ErrUnknownOutcome, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN},
	{ErrReplica, pb.ErrorReason_ERROR_REASON_REPLICA},
	{replication.ErrNotActive, pb.ErrorReason_ERROR_REASON_NOT_ACTIVE},
	{ErrSiteLag, pb.ErrorReason_ERROR_REASON_SITE_LAG},
	{replication.ErrBlocked, pb.ErrorReason_ERROR_REASON_BLOCKED},
	{txn.ErrReplica, pb.ErrorReason_ERROR_REASON_REPLICA},
	{ErrPaused, pb.ErrorReason_ERROR_REASON_PAUSED},
	// The reason for a cancellation precedes the error of the cancellation.
	{maintenance.ErrRoleChanged, pb.ErrorReason_ERROR_REASON_ROLE_CHANGED},
	{maintenance.ErrBusy, pb.ErrorReason_ERROR_REASON_MAINTENANCE_BUSY},
	{rewrite.ErrMaintenance, pb.ErrorReason_ERROR_REASON_PAGE_FILE_BUSY},
	{backup.ErrBusy, pb.ErrorReason_ERROR_REASON_BACKUP_BUSY},
	{maintenance.ErrRole, pb.ErrorReason_ERROR_REASON_ROLE},
	{maintenance.ErrNoBackupPath, pb.ErrorReason_ERROR_REASON_NO_BACKUP_PATH},
	{maintenance.ErrNoArchive, pb.ErrorReason_ERROR_REASON_NO_ARCHIVE},
	{maintenance.ErrNoRecommendation, pb.ErrorReason_ERROR_REASON_NO_RECOMMENDATION},
	{maintenance.ErrSetting, pb.ErrorReason_ERROR_REASON_SETTING},
	{maintenance.ErrPlanRuns, pb.ErrorReason_ERROR_REASON_PLAN_RUNNING},
	{maintenance.ErrNoPlan, pb.ErrorReason_ERROR_REASON_PLAN_NOT_FOUND},
	{maintenance.ErrNoJob, pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND},
	{maintenance.ErrJobRuns, pb.ErrorReason_ERROR_REASON_JOB_RUNNING},
	{maintenance.ErrTooManyJobs, pb.ErrorReason_ERROR_REASON_TOO_MANY_JOBS},
	{maintenance.ErrUnreachable, pb.ErrorReason_ERROR_REASON_UNREACHABLE},
	{rewrite.ErrNoSpace, pb.ErrorReason_ERROR_REASON_NO_SPACE},
	{page.ErrFull, pb.ErrorReason_ERROR_REASON_PAGE_FILE_FULL},
	{backup.ErrNoSpace, pb.ErrorReason_ERROR_REASON_BACKUP_NO_SPACE},
	{backup.ErrRemote, pb.ErrorReason_ERROR_REASON_OBJECT_STORE},
	{backup.ErrNotFound, pb.ErrorReason_ERROR_REASON_BACKUP_NOT_FOUND},
	{backup.ErrEncrypted, pb.ErrorReason_ERROR_REASON_BACKUP_ENCRYPTED},
	{maintenance.ErrDiffer, pb.ErrorReason_ERROR_REASON_NODES_DIFFER},
	{maintenance.ErrNoPartner, pb.ErrorReason_ERROR_REASON_NO_PEER},
	{index.ErrCorrupt, pb.ErrorReason_ERROR_REASON_INDEX_CORRUPT},
	{store.ErrPast, pb.ErrorReason_ERROR_REASON_LSN_PASSED},
	{index.ErrDataLoss, pb.ErrorReason_ERROR_REASON_DATA_LOSS},
	{page.ErrCorrupt, pb.ErrorReason_ERROR_REASON_PAGE_CORRUPT},
	{store.ErrFailed, pb.ErrorReason_ERROR_REASON_STORE_FAILED},
	{store.ErrClosed, pb.ErrorReason_ERROR_REASON_SHUTTING_DOWN},
	{dispatch.ErrMoved, pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_MOVED},
	{dispatch.ErrClosed, pb.ErrorReason_ERROR_REASON_CONSUMERS_CLOSED},
	{txn.ErrQueueNotFound, pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND},
	{txn.ErrSubscriptionNotFound, pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_NOT_FOUND},
	{store.ErrNoQueue, pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND},
	{txn.ErrQueueExists, pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS},
	{txn.ErrSubscriptionExists, pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_EXISTS},
	{txn.ErrQueueInUse, pb.ErrorReason_ERROR_REASON_QUEUE_IN_USE},
	{txn.ErrPreparedInUse, pb.ErrorReason_ERROR_REASON_QUEUE_IN_USE},
	{txn.ErrQueueNotEmpty, pb.ErrorReason_ERROR_REASON_QUEUE_NOT_EMPTY},
	{txn.ErrAlreadyAcknowledged, pb.ErrorReason_ERROR_REASON_ALREADY_ACKNOWLEDGED},
	{txn.ErrReserved, pb.ErrorReason_ERROR_REASON_MESSAGE_RESERVED},
	{txn.ErrXIDInUse, pb.ErrorReason_ERROR_REASON_XID_IN_USE},
	{txn.ErrXIDNotFound, pb.ErrorReason_ERROR_REASON_XID_NOT_FOUND},
	{txn.ErrTooManyPrepared, pb.ErrorReason_ERROR_REASON_TOO_MANY_PREPARED},
	{txn.ErrCommitted, pb.ErrorReason_ERROR_REASON_XID_DECIDED},
	{txn.ErrRolledBack, pb.ErrorReason_ERROR_REASON_XID_DECIDED},
	{txn.ErrHeuristicCommit, pb.ErrorReason_ERROR_REASON_HEURISTIC_COMMIT},
	{txn.ErrHeuristicRollback, pb.ErrorReason_ERROR_REASON_HEURISTIC_ROLLBACK},
	{txn.ErrQueueFull, pb.ErrorReason_ERROR_REASON_QUEUE_FULL},
	{ErrNoSchedule, pb.ErrorReason_ERROR_REASON_SCHEDULE_NOT_FOUND},
	{txn.ErrMetaChanged, pb.ErrorReason_ERROR_REASON_SCHEDULE_CHANGED},
	{ErrTooManySchedules, pb.ErrorReason_ERROR_REASON_TOO_MANY_SCHEDULES},
	{txn.ErrQueuePaused, pb.ErrorReason_ERROR_REASON_QUEUE_PAUSED},
	{txn.ErrPolicyNotFound, pb.ErrorReason_ERROR_REASON_POLICY_NOT_FOUND},
	{txn.ErrTooManyPolicies, pb.ErrorReason_ERROR_REASON_TOO_MANY_ENTRIES},
	{txn.ErrTooManyQueues, pb.ErrorReason_ERROR_REASON_TOO_MANY_QUEUES},
	{txn.ErrTooManySubscriptions, pb.ErrorReason_ERROR_REASON_TOO_MANY_SUBSCRIPTIONS},
	{txn.ErrTooManyMeta, pb.ErrorReason_ERROR_REASON_TOO_MANY_ENTRIES},
	{txn.ErrAccessChanged, pb.ErrorReason_ERROR_REASON_ACCESS_CHANGED},
	{txn.ErrTooManyAccess, pb.ErrorReason_ERROR_REASON_TOO_MANY_ENTRIES},
	{admission.ErrNoConnection, pb.ErrorReason_ERROR_REASON_CONNECTION_NOT_FOUND},
	{dispatch.ErrTooManyConsumers, pb.ErrorReason_ERROR_REASON_TOO_MANY_CONSUMERS},
	{ErrTooManyBrowsers, pb.ErrorReason_ERROR_REASON_TOO_MANY_CONSUMERS},
	{dispatch.ErrTooMuchCredit, pb.ErrorReason_ERROR_REASON_TOO_MUCH_CREDIT},
	{ErrDiskLow, pb.ErrorReason_ERROR_REASON_DISK_LOW},
	{ErrResponseTooLarge, pb.ErrorReason_ERROR_REASON_RESPONSE_TOO_LARGE},
	{txn.ErrTooLarge, pb.ErrorReason_ERROR_REASON_TOO_LARGE},
	{replication.ErrTooLarge, pb.ErrorReason_ERROR_REASON_TOO_LARGE},
	{txn.ErrInvalidName, pb.ErrorReason_ERROR_REASON_INVALID_NAME},
	{txn.ErrBeyondEnd, pb.ErrorReason_ERROR_REASON_INVALID_SEQUENCE},
	{dispatch.ErrNotDelivered, pb.ErrorReason_ERROR_REASON_INVALID_SEQUENCE},
	{txn.ErrTooManyReleased, pb.ErrorReason_ERROR_REASON_TOO_MANY_RELEASED},
	{txn.ErrMixed, pb.ErrorReason_ERROR_REASON_MIXED_OPERATIONS},
	{txn.ErrMalformed, pb.ErrorReason_ERROR_REASON_MALFORMED},
	{txn.ErrNoDeadLetter, pb.ErrorReason_ERROR_REASON_NO_DEAD_LETTER},
	{filter.ErrInvalid, pb.ErrorReason_ERROR_REASON_INVALID_FILTER},
	{txn.ErrForwardChain, pb.ErrorReason_ERROR_REASON_FORWARD_CHAIN},
	{txn.ErrForwardTwice, pb.ErrorReason_ERROR_REASON_FORWARD_CHAIN},
	{txn.ErrDeadLetterCycle, pb.ErrorReason_ERROR_REASON_DEAD_LETTER_CYCLE},
	{txn.ErrPrioritiesFixed, pb.ErrorReason_ERROR_REASON_PRIORITIES_IMMUTABLE},
	{ErrSequenceReused, pb.ErrorReason_ERROR_REASON_SEQUENCE_REUSED},
	{ErrInvalid, pb.ErrorReason_ERROR_REASON_INVALID},
	{txn.ErrInvalidMessage, pb.ErrorReason_ERROR_REASON_INVALID},
	{txn.ErrFenced, pb.ErrorReason_ERROR_REASON_PRODUCER_FENCED},
	{txn.ErrTooOld, pb.ErrorReason_ERROR_REASON_TOO_OLD},
	{txn.ErrProducerForgotten, pb.ErrorReason_ERROR_REASON_PRODUCER_UNKNOWN},
	{failover.ErrSwitchover, pb.ErrorReason_ERROR_REASON_SWITCHOVER},
	{failover.ErrAdopt, pb.ErrorReason_ERROR_REASON_ADOPT},
	{failover.ErrPause, pb.ErrorReason_ERROR_REASON_PAUSE},
	{failover.ErrMinInSync, pb.ErrorReason_ERROR_REASON_MIN_IN_SYNC},
	{ErrFeature, pb.ErrorReason_ERROR_REASON_FEATURE_MISSING},
	{ErrSiteRole, pb.ErrorReason_ERROR_REASON_SITE_ROLE},
	{ErrSiteSwitch, pb.ErrorReason_ERROR_REASON_SITE_SWITCH},
	{ErrSitePrimaryAnswers, pb.ErrorReason_ERROR_REASON_SITE_PRIMARY_ANSWERS},
	{ErrSiteDiverged, pb.ErrorReason_ERROR_REASON_SITE_DIVERGED},
	{ErrSiteBehind, pb.ErrorReason_ERROR_REASON_SITE_BEHIND},
	{ErrSiteEpoch, pb.ErrorReason_ERROR_REASON_SITE_EPOCH},
	{ErrSiteUnreachable, pb.ErrorReason_ERROR_REASON_SITE_UNREACHABLE},
	{ErrSiteNotCompared, pb.ErrorReason_ERROR_REASON_SITE_NOT_COMPARED},
	{ErrNotOwner, pb.ErrorReason_ERROR_REASON_NOT_OWNER},
	{ErrCrossPair, pb.ErrorReason_ERROR_REASON_CROSS_PAIR},
	{ErrPartitioned, pb.ErrorReason_ERROR_REASON_QUEUE_PARTITIONED},
	{txn.ErrPartitionsDiffer, pb.ErrorReason_ERROR_REASON_PARTITIONS_DIFFER},
	{fleet.ErrPartitions, pb.ErrorReason_ERROR_REASON_PARTITIONS_DIFFER},
	{ErrFleetState, pb.ErrorReason_ERROR_REASON_FLEET_STATE},
	{fleet.ErrUnavailable, pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE},
	{fleet.ErrLost, pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE},
	{fleet.ErrRestored, pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE},
	{fleet.ErrRebuilding, pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE},
	{fleet.ErrNotMember, pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE},
	{fleet.ErrNoPair, pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE},
	{fleet.ErrContention, pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE},
	{fleet.ErrNotActive, pb.ErrorReason_ERROR_REASON_BLOCKED}, // the role of this node is changing
	{fleet.ErrInvalid, pb.ErrorReason_ERROR_REASON_INVALID},
	{fleet.ErrMoving, pb.ErrorReason_ERROR_REASON_FLEET_STATE},
	{txn.ErrMoved, pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE},
	{txn.ErrMoveChanged, pb.ErrorReason_ERROR_REASON_FLEET_STATE},
	{txn.ErrMoveIncomplete, pb.ErrorReason_ERROR_REASON_FLEET_STATE},
	{txn.ErrTooManyMoves, pb.ErrorReason_ERROR_REASON_FLEET_STATE},
	{store.ErrNotFenced, pb.ErrorReason_ERROR_REASON_FLEET_STATE},
	{txn.ErrNotOwned, pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE},
	{txn.ErrFleetChanged, pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE},
	{failover.ErrForce, pb.ErrorReason_ERROR_REASON_FORCE},
	{failover.ErrStopped, pb.ErrorReason_ERROR_REASON_SHUTTING_DOWN},
	{txn.ErrSiteChange, pb.ErrorReason_ERROR_REASON_SITE_ROLE},
	{txn.ErrSitePosition, pb.ErrorReason_ERROR_REASON_SITE_ROLE},
	{txn.ErrNewerVersion, pb.ErrorReason_ERROR_REASON_NEWER_VERSION},
	{access.ErrNotPeer, pb.ErrorReason_ERROR_REASON_NOT_PEER},
	{access.ErrNotFound, pb.ErrorReason_ERROR_REASON_ACCESS_NOT_FOUND},
	{access.ErrInUse, pb.ErrorReason_ERROR_REASON_ACCESS_IN_USE},
	{access.ErrTokenExists, pb.ErrorReason_ERROR_REASON_TOKEN_EXISTS},
	{access.ErrLockOut, pb.ErrorReason_ERROR_REASON_LOCK_OUT},
	{access.ErrQuota, pb.ErrorReason_ERROR_REASON_QUOTA},
	{access.ErrDenied, pb.ErrorReason_ERROR_REASON_DENIED},
	{access.ErrUnauthenticated, pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED},
	{access.ErrInvalid, pb.ErrorReason_ERROR_REASON_INVALID},
	{context.DeadlineExceeded, pb.ErrorReason_ERROR_REASON_DEADLINE},
	{context.Canceled, pb.ErrorReason_ERROR_REASON_CANCELED},
	{rewrite.ErrCanceled, pb.ErrorReason_ERROR_REASON_REWRITE_CANCELED},
}

func lookup(err error) mapping {
	for _, m := range errorTable {
		if errors.Is(err, m.err) {
			return m
		}
	}
	if _, malformed := errors.AsType[*fleet.ValueError](err); malformed {
		return mapping{err: err, reason: pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE}
	}
	return mapping{err: err, reason: pb.ErrorReason_ERROR_REASON_INTERNAL}
}

// WithRedirect replaces an error that matches replication.ErrNotActive with the result of redirect, which contains
// the address of the active node. It returns all other errors unchanged, and also errors with an unknown outcome and
// errors that already contain a NotActiveError.
func WithRedirect(err error, redirect func() *NotActiveError) error {
	if _, has := errors.AsType[*NotActiveError](err); has || !errors.Is(err, replication.ErrNotActive) ||
		errors.Is(err, replication.ErrOutcomeUnknown) {
		return err
	}
	return redirect()
}

// ToStatus converts an error to a gRPC status with the reason in an ErrorInfo. The status also has the details of
// specific errors, such as NotActive and NotOwner. ToStatus returns nil and gRPC statuses unchanged, except for a
// status of etcd that fleet.ErrUnavailable wraps.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, is := status.FromError(err); is && !errors.Is(err, fleet.ErrUnavailable) { // which may wrap a status of etcd
		return err
	}
	m := lookup(err)
	info := errorInfo(m.reason)
	if isSettled(err) {
		info.Metadata = map[string]string{reason.Settled: "true"}
	}
	details := []protoadapt.MessageV1{info}
	if denied, ok := errors.AsType[*access.DeniedError](err); ok {
		addDenied(info, denied)
	}
	if lost, ok := errors.AsType[*LostError](err); ok {
		info.Metadata = lost.metadata()
	}
	if quota, ok := errors.AsType[*access.QuotaError](err); ok {
		details = append(details, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject:     "queues:" + quota.Pattern,
			Description: fmt.Sprintf("%s: limit is %d, used %d", quota.Quota, quota.Limit, quota.Used),
		}}})
	}
	if notActive, ok := errors.AsType[*NotActiveError](err); ok {
		details = append(details, &pb.NotActive{
			ActiveAddress: notActive.ActiveAddress, ActiveNode: notActive.ActiveNode, Role: notActive.Role,
			RetryAfter: durationpb.New(notActive.RetryAfter), PrimaryAddresses: notActive.PrimaryAddresses,
		})
	}
	if owner := ownerOf(err); owner != nil {
		details = append(details, owner)
	}
	if parts := partitionsOf(err); parts != nil {
		details = append(details, parts)
	}
	return withDetails(status.New(m.code(), err.Error()), details...)
}

// addDenied adds the principal, the missing right and the queue to the metadata of info.
func addDenied(info *errdetails.ErrorInfo, denied *access.DeniedError) {
	if info.Metadata == nil {
		info.Metadata = make(map[string]string)
	}
	info.Metadata["principal"] = denied.Principal
	if denied.Right != 0 {
		info.Metadata["right"] = denied.Right.String()
	}
	if denied.Queue != "" {
		info.Metadata["queue"] = denied.Queue
	}
}

func withDetails(st *status.Status, details ...protoadapt.MessageV1) error {
	with, err := st.WithDetails(details...)
	if err != nil { // unreachable, because the code is not OK and the details are known message types
		return st.Err()
	}
	return with.Err()
}

// WithSubmitted adds the progress of a publish stream to err, the final status of the stream. It returns nil and
// other errors unchanged.
func WithSubmitted(err error, through uint64) error {
	st, is := status.FromError(err)
	if err == nil || !is {
		return err
	}
	return withDetails(st, &pb.Submitted{Through: through})
}

func errorInfo(r pb.ErrorReason) *errdetails.ErrorInfo {
	return &errdetails.ErrorInfo{Reason: reason.Name(r), Domain: reason.Domain}
}

// Undecodable returns the status for a request that cannot be decoded as a protobuf message of the named type.
func Undecodable(name string) error {
	return withDetails(status.Newf(codes.InvalidArgument, "request cannot be decoded as %s", name),
		errorInfo(pb.ErrorReason_ERROR_REASON_UNDECODABLE))
}

// ToRequestError converts an error to the error response for one request of a stream.
func ToRequestError(err error) *pb.RequestError {
	m := lookup(err)
	return &pb.RequestError{
		Code: uint32(m.code()), Message: err.Error(), Reason: reason.Name(m.reason), Settled: isSettled(err),
		NotOwner: ownerOf(err), Partitioned: partitionsOf(err),
	}
}

// Code returns the gRPC code for the reason of an error, or codes.Internal for an error without a reason.
func Code(err error) codes.Code { return lookup(err).code() }

// ConcernsNode reports whether an error concerns the node and not only one request. Such an error ends a stream. An
// unknown owner concerns only the requests for one queue.
func ConcernsNode(err error) bool {
	m := lookup(err)
	if m.reason == pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE {
		return false
	}
	switch m.code() {
	case codes.Unavailable, codes.Internal, codes.Canceled, codes.DeadlineExceeded:
		return true
	default:
		return m.reason == pb.ErrorReason_ERROR_REASON_NOT_ACTIVE
	}
}

// Invalid returns an error that matches ErrInvalid. Its text is that of err, without a prefix.
func Invalid(err error) error { return &textError{kind: ErrInvalid, text: err.Error()} }

// FromStatus converts a gRPC status received from another node to an error that matches the sentinel errors. It
// returns other errors and statuses unchanged.
func FromStatus(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	why := pb.ErrorReason_ERROR_REASON_UNSPECIFIED
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *pb.NotActive:
			return &NotActiveError{
				ActiveAddress: d.GetActiveAddress(), ActiveNode: d.GetActiveNode(), Role: d.GetRole(),
				RetryAfter: d.GetRetryAfter().AsDuration(), PrimaryAddresses: d.GetPrimaryAddresses(),
				Replica: why == pb.ErrorReason_ERROR_REASON_REPLICA, // ToStatus adds the reason before NotActive
			}
		case *errdetails.ErrorInfo:
			if d.GetDomain() == reason.Domain {
				why = reason.Parse(d.GetReason())
			}
		}
	}
	for _, m := range errorTable {
		if m.reason == why {
			return &textError{kind: m.err, text: st.Message()}
		}
	}
	return err
}

// textError matches the sentinel error kind, but omits its text.
type textError struct {
	kind error
	text string
}

func (e *textError) Error() string { return e.text }
func (e *textError) Unwrap() error { return e.kind }
