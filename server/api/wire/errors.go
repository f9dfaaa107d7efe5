// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/failover"
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
	// ErrInvalid is returned when a request can never succeed.
	ErrInvalid = errors.New("invalid request")
	// ErrSequenceReused is returned for a request with a producer's sequence that was used for another request. Nothing
	// of it was stored.
	ErrSequenceReused = errors.New("producer sequence already used")
	// ErrDiskLow is returned for a publish while the free space is below disk.low-watermark.
	ErrDiskLow = errors.New("disk of the active node is nearly full; see condition publishes-refused")
	// ErrTooManyBrowsers is returned when Browse calls with slow clients use all of the memory reserved for them.
	ErrTooManyBrowsers = errors.New("too many concurrent browsers")
	// ErrResponseTooLarge is returned when one message exceeds the maximum size that the consumer can receive.
	ErrResponseTooLarge = errors.New("message is larger than the consumer can receive")
	// ErrFeature is returned for a request that requires a feature unsupported by a node of the pair.
	ErrFeature = errors.New("feature requires an upgrade of a node of the pair")
	// ErrSplit ends a publish stream before a request that its client must split.
	ErrSplit = errors.New("publishes of the request may have different outcomes: send them separately")
	// ErrPaused is returned for a read while the node cannot know whether it is still the active one.
	ErrPaused = errors.New("deliveries are paused on this node")
)

// NotActiveError is returned when the node does not serve clients now. It matches replication.ErrNotActive.
type NotActiveError struct {
	// ActiveAddress of the active, host:port, as known to this node; empty if unknown.
	ActiveAddress string
	// ActiveNode is its UUID; empty if unknown.
	ActiveNode string
	// Role of the node that responded.
	Role string
	// Reason for the role, as text; may be empty. It is only part of the message.
	Reason string
	// RetryAfter is the suggested delay when no node is active.
	RetryAfter time.Duration
}

// Error includes the address of the active node.
func (e *NotActiveError) Error() string {
	why := e.Role
	if e.Reason != "" {
		why += ": " + e.Reason
	}
	if e.ActiveAddress == "" {
		return fmt.Sprintf("node is not active (%s), and the active node is unknown; try the other "+
			"node, or retry later", why)
	}
	return fmt.Sprintf("node is not active (%s); the active node is %s", why, e.ActiveAddress)
}

// Is makes errors.Is(err, replication.ErrNotActive) true.
func (e *NotActiveError) Is(target error) bool { return target == replication.ErrNotActive }

// settledError is a refusal that the log keeps under its producer's sequence: no earlier or later attempt with that
// sequence is executed.
type settledError struct{ error }

func (e *settledError) Unwrap() error { return e.error }

// Refusal returns the error of a transaction that was refused when it was applied; kept reports whether it has a
// producer.
func Refusal(r *txn.Result, kept bool) error {
	err := r.Err()
	switch r.Code { //nolint:exhaustive // the others are kept with the producer
	case txn.OK, txn.ErrMalformed, txn.ErrNewerVersion, txn.ErrFenced, txn.ErrTooOld, txn.ErrProducerForgotten:
		return err
	}
	if !kept {
		return err
	}
	return &settledError{err}
}

// isSettled reports whether the log keeps the refusal.
func isSettled(err error) bool {
	var settled *settledError
	return errors.As(err, &settled)
}

// mapping is one entry of the table.
type mapping struct {
	err    error
	code   codes.Code
	reason pb.ErrorReason
}

// errorTable lists all errors visible to clients, for both directions: err → code and reason, and reason → err. The
// first matching entry is used, so more specific errors come first.
var errorTable = []mapping{
	// This node cannot serve now. An unknown outcome precedes its reason: NOT_ACTIVE and BLOCKED mean that nothing was
	// executed.
	{ErrSplit, codes.Unavailable, pb.ErrorReason_ERROR_REASON_SPLIT}, // before the reason for a refusal
	{replication.ErrOutcomeUnknown, codes.Unavailable, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN},
	{replication.ErrNotActive, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_NOT_ACTIVE},
	{replication.ErrBlocked, codes.Unavailable, pb.ErrorReason_ERROR_REASON_BLOCKED},
	{ErrPaused, codes.Unavailable, pb.ErrorReason_ERROR_REASON_PAUSED},
	// Maintenance. The reason for a cancellation precedes the cancellation.
	{maintenance.ErrRoleChanged, codes.Aborted, pb.ErrorReason_ERROR_REASON_ROLE_CHANGED},
	{maintenance.ErrBusy, codes.AlreadyExists, pb.ErrorReason_ERROR_REASON_MAINTENANCE_BUSY},
	{rewrite.ErrMaintenance, codes.AlreadyExists, pb.ErrorReason_ERROR_REASON_PAGE_FILE_BUSY},
	{backup.ErrBusy, codes.AlreadyExists, pb.ErrorReason_ERROR_REASON_BACKUP_BUSY},
	{maintenance.ErrRole, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_ROLE},
	{maintenance.ErrNoBackupPath, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_NO_BACKUP_PATH},
	{maintenance.ErrNoArchive, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_NO_ARCHIVE},
	{maintenance.ErrNoRecommendation, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_NO_RECOMMENDATION},
	{maintenance.ErrSetting, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_SETTING},
	{maintenance.ErrPlanRuns, codes.AlreadyExists, pb.ErrorReason_ERROR_REASON_PLAN_RUNNING},
	{maintenance.ErrNoPlan, codes.NotFound, pb.ErrorReason_ERROR_REASON_PLAN_NOT_FOUND},
	{maintenance.ErrNoJob, codes.NotFound, pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND},
	{maintenance.ErrJobRuns, codes.AlreadyExists, pb.ErrorReason_ERROR_REASON_JOB_RUNNING},
	{maintenance.ErrTooManyJobs, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_TOO_MANY_JOBS},
	{maintenance.ErrUnreachable, codes.Unavailable, pb.ErrorReason_ERROR_REASON_UNREACHABLE},
	{rewrite.ErrNoSpace, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_NO_SPACE},
	{page.ErrFull, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_PAGE_FILE_FULL},
	{backup.ErrNoSpace, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_BACKUP_NO_SPACE},
	{backup.ErrRemote, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_OBJECT_STORE},
	{backup.ErrNoSet, codes.NotFound, pb.ErrorReason_ERROR_REASON_BACKUP_NOT_FOUND},
	{backup.ErrEncrypted, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_BACKUP_ENCRYPTED},
	{maintenance.ErrDiffer, codes.DataLoss, pb.ErrorReason_ERROR_REASON_NODES_DIFFER},
	{maintenance.ErrNoPartner, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_NO_PEER},
	{index.ErrDamaged, codes.Unavailable, pb.ErrorReason_ERROR_REASON_INDEX_CORRUPT},
	{store.ErrPast, codes.OutOfRange, pb.ErrorReason_ERROR_REASON_LSN_PASSED},
	{index.ErrDataLoss, codes.DataLoss, pb.ErrorReason_ERROR_REASON_DATA_LOSS},
	{page.ErrDamaged, codes.DataLoss, pb.ErrorReason_ERROR_REASON_PAGE_CORRUPT},
	{store.ErrFailed, codes.Unavailable, pb.ErrorReason_ERROR_REASON_STORE_FAILED},
	{store.ErrClosed, codes.Unavailable, pb.ErrorReason_ERROR_REASON_SHUTTING_DOWN},
	{dispatch.ErrMoved, codes.Unavailable, pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_MOVED},
	{dispatch.ErrClosed, codes.Unavailable, pb.ErrorReason_ERROR_REASON_CONSUMERS_CLOSED},
	// The queue or subscription.
	{txn.ErrQueueNotFound, codes.NotFound, pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND},
	{txn.ErrSubscriptionNotFound, codes.NotFound, pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_NOT_FOUND},
	{store.ErrNoQueue, codes.NotFound, pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND},
	{txn.ErrQueueExists, codes.AlreadyExists, pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS},
	{txn.ErrSubscriptionExists, codes.AlreadyExists, pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_EXISTS},
	{txn.ErrQueueInUse, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_QUEUE_IN_USE},
	{txn.ErrPreparedInUse, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_QUEUE_IN_USE},
	{txn.ErrQueueNotEmpty, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_QUEUE_NOT_EMPTY},
	// Prepared transactions, and messages that were processed elsewhere.
	{txn.ErrAlreadyAcknowledged, codes.Aborted, pb.ErrorReason_ERROR_REASON_ALREADY_ACKNOWLEDGED},
	{txn.ErrReserved, codes.Aborted, pb.ErrorReason_ERROR_REASON_MESSAGE_RESERVED},
	{txn.ErrXIDInUse, codes.AlreadyExists, pb.ErrorReason_ERROR_REASON_XID_IN_USE},
	{txn.ErrXIDNotFound, codes.NotFound, pb.ErrorReason_ERROR_REASON_XID_NOT_FOUND},
	{txn.ErrTooManyPrepared, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_TOO_MANY_PREPARED},
	{txn.ErrCommitted, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_XID_DECIDED},
	{txn.ErrRolledBack, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_XID_DECIDED},
	{txn.ErrHeuristicCommit, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_HEURISTIC_COMMIT},
	{txn.ErrHeuristicRollback, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_HEURISTIC_ROLLBACK},
	// Temporary limits.
	{txn.ErrQueueFull, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_QUEUE_FULL},
	{txn.ErrTooManyQueues, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_TOO_MANY_QUEUES},
	{txn.ErrTooManySubscriptions, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_TOO_MANY_SUBSCRIPTIONS},
	{txn.ErrTooManyMeta, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_TOO_MANY_ENTRIES},
	{txn.ErrAccessChanged, codes.Aborted, pb.ErrorReason_ERROR_REASON_ACCESS_CHANGED},
	{txn.ErrTooManyAccess, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_TOO_MANY_ENTRIES},
	{admission.ErrNoConnection, codes.NotFound, pb.ErrorReason_ERROR_REASON_CONNECTION_NOT_FOUND},
	{dispatch.ErrTooManyConsumers, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_TOO_MANY_CONSUMERS},
	{ErrTooManyBrowsers, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_TOO_MANY_CONSUMERS},
	{dispatch.ErrTooMuchCredit, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_TOO_MUCH_CREDIT},
	{ErrDiskLow, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_DISK_LOW},
	{ErrResponseTooLarge, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_RESPONSE_TOO_LARGE},
	// Requests that can never succeed.
	{txn.ErrTooLarge, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_TOO_LARGE},
	{replication.ErrTooLarge, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_TOO_LARGE},
	{txn.ErrInvalidName, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_INVALID_NAME},
	{txn.ErrBeyondEnd, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_INVALID_SEQUENCE},
	{dispatch.ErrNotDelivered, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_INVALID_SEQUENCE},
	{txn.ErrTooManyReleased, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_TOO_MANY_RELEASED},
	{txn.ErrMixed, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_MIXED_OPERATIONS},
	{txn.ErrMalformed, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_MALFORMED},
	{txn.ErrNoDeadLetter, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_NO_DEAD_LETTER},
	{filter.ErrInvalid, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_INVALID_FILTER},
	{txn.ErrForwardChain, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_FORWARD_CHAIN},
	{txn.ErrForwardTwice, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_FORWARD_CHAIN},
	{txn.ErrDeadLetterCycle, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_DEAD_LETTER_CYCLE},
	{txn.ErrPrioritiesFixed, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_PRIORITIES_IMMUTABLE},
	{ErrSequenceReused, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_SEQUENCE_REUSED},
	{ErrInvalid, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_INVALID},
	// Producers.
	{txn.ErrFenced, codes.Aborted, pb.ErrorReason_ERROR_REASON_PRODUCER_FENCED},
	{txn.ErrTooOld, codes.OutOfRange, pb.ErrorReason_ERROR_REASON_TOO_OLD},
	{txn.ErrProducerForgotten, codes.OutOfRange, pb.ErrorReason_ERROR_REASON_PRODUCER_UNKNOWN},
	// Operators.
	{failover.ErrSwitchover, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_SWITCHOVER},
	{failover.ErrAdopt, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_ADOPT},
	{failover.ErrPause, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_PAUSE},
	{failover.ErrMinInSync, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_MIN_IN_SYNC},
	{ErrFeature, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_FEATURE_MISSING},
	{failover.ErrForce, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_FORCE},
	{failover.ErrStopped, codes.Unavailable, pb.ErrorReason_ERROR_REASON_SHUTTING_DOWN},
	{txn.ErrNewerVersion, codes.Internal, pb.ErrorReason_ERROR_REASON_NEWER_VERSION},
	// Authentication and access.
	{access.ErrNotPeer, codes.PermissionDenied, pb.ErrorReason_ERROR_REASON_NOT_PEER},
	{access.ErrNotFound, codes.NotFound, pb.ErrorReason_ERROR_REASON_ACCESS_NOT_FOUND},
	{access.ErrInUse, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_ACCESS_IN_USE},
	{access.ErrTokenExists, codes.AlreadyExists, pb.ErrorReason_ERROR_REASON_TOKEN_EXISTS},
	{access.ErrLockOut, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_LOCK_OUT},
	{access.ErrQuota, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_QUOTA},
	{access.ErrDenied, codes.PermissionDenied, pb.ErrorReason_ERROR_REASON_DENIED},
	{access.ErrUnauthenticated, codes.Unauthenticated, pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED},
	{access.ErrInvalid, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_INVALID},
	// The caller.
	{context.DeadlineExceeded, codes.DeadlineExceeded, pb.ErrorReason_ERROR_REASON_DEADLINE},
	{context.Canceled, codes.Canceled, pb.ErrorReason_ERROR_REASON_CANCELED},
	{rewrite.ErrCanceled, codes.Aborted, pb.ErrorReason_ERROR_REASON_REWRITE_CANCELED},
}

// lookup returns the entry for err; errors without an entry are INTERNAL.
func lookup(err error) mapping {
	for i := range errorTable {
		if m := errorTable[i]; errors.Is(err, m.err) {
			return m
		}
	}
	return mapping{err: err, code: codes.Internal, reason: pb.ErrorReason_ERROR_REASON_INTERNAL}
}

// ToStatus converts an error to the status returned by a gRPC handler. The reason is in an ErrorInfo; if the node is
// not active, the status has a NotActive detail. nil and statuses are returned unchanged.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, is := status.FromError(err); is {
		return err
	}
	m := lookup(err)
	info := errorInfo(m.reason)
	if isSettled(err) {
		info.Metadata = map[string]string{reason.Settled: "true"}
	}
	addAccess(err, info)
	st, detailErr := status.New(m.code, err.Error()).WithDetails(info)
	if detailErr != nil { // unreachable: the code is not OK and the detail is a known message
		return status.Error(m.code, err.Error())
	}
	st = withQuota(st, err)
	var notActive *NotActiveError
	if errors.As(err, &notActive) {
		with, detailErr := st.WithDetails(&pb.NotActive{
			ActiveAddress: notActive.ActiveAddress, ActiveNode: notActive.ActiveNode, Role: notActive.Role,
			RetryAfter: durationpb.New(notActive.RetryAfter),
		})
		if detailErr == nil {
			st = with
		}
	}
	return st.Err()
}

// WithSubmitted adds the progress of a publish stream to its final status. nil stays nil.
func WithSubmitted(err error, through uint64) error {
	st, is := status.FromError(err)
	if err == nil || !is {
		return err
	}
	with, detailErr := st.WithDetails(&pb.Submitted{Through: through})
	if detailErr != nil { // unreachable: the code is not OK and the detail is a known message
		return err
	}
	return with.Err()
}

// errorInfo returns the detail that each status has.
func errorInfo(r pb.ErrorReason) *errdetails.ErrorInfo {
	return &errdetails.ErrorInfo{Reason: reason.Name(r), Domain: reason.Domain}
}

// Undecodable returns the status for a request that is not valid protobuf of its type.
func Undecodable(name string) error {
	st, err := status.Newf(codes.InvalidArgument, "request cannot be decoded as %s", name).
		WithDetails(errorInfo(pb.ErrorReason_ERROR_REASON_UNDECODABLE))
	if err != nil { // unreachable: the code is not OK and the detail is a known message
		return status.Errorf(codes.InvalidArgument, "request cannot be decoded as %s", name)
	}
	return st.Err()
}

// ToRequestError converts an error to the response to one request of a stream.
func ToRequestError(err error) *pb.RequestError {
	m := lookup(err)
	return &pb.RequestError{
		Code: uint32(m.code), Message: err.Error(), Reason: reason.Name(m.reason), Settled: isSettled(err),
	}
}

// Code returns the gRPC code of an error.
func Code(err error) codes.Code { return lookup(err).code }

// ConcernsNode reports whether an error is about the node, not about one request; such an error ends a stream.
func ConcernsNode(err error) bool {
	switch m := lookup(err); m.code {
	case codes.Unavailable, codes.Internal, codes.Canceled, codes.DeadlineExceeded:
		return true
	default:
		return m.reason == pb.ErrorReason_ERROR_REASON_NOT_ACTIVE
	}
}

// FromStatus converts a status of another node to an error that matches the sentinel errors. Statuses of other origin
// are returned unchanged.
func FromStatus(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	why := ""
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *pb.NotActive:
			return &NotActiveError{
				ActiveAddress: d.GetActiveAddress(), ActiveNode: d.GetActiveNode(), Role: d.GetRole(),
				RetryAfter: d.GetRetryAfter().AsDuration(),
			}
		case *errdetails.ErrorInfo:
			if d.GetDomain() == reason.Domain {
				why = d.GetReason()
			}
		}
	}
	return fromReason(err, why, st.Message())
}

// FromRequestError converts the error of one request of a stream to an error that matches the sentinel errors.
func FromRequestError(e *pb.RequestError) error {
	return fromReason(status.Error(codes.Code(e.GetCode()), e.GetMessage()), e.GetReason(), e.GetMessage())
}

func fromReason(fallback error, name, message string) error {
	why := reason.Parse(name)
	for i := range errorTable {
		if m := errorTable[i]; m.reason == why {
			return &remoteError{kind: m.err, message: message}
		}
	}
	return fallback
}

// remoteError is an error of another node: its message, and the matching sentinel error.
type remoteError struct {
	kind    error
	message string
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.kind }
