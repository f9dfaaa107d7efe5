// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// kindOf returns the Err variable of a reason, or nil if the request must be retried. known is false for a reason that
// this client does not know: one of a newer node, or none.
func kindOf(r pb.ErrorReason) (known bool, kind error) {
	switch r {
	case pb.ErrorReason_ERROR_REASON_UNSPECIFIED:
		return false, nil
	case pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, pb.ErrorReason_ERROR_REASON_NOT_ACTIVE,
		pb.ErrorReason_ERROR_REASON_BLOCKED, pb.ErrorReason_ERROR_REASON_PAUSED,
		pb.ErrorReason_ERROR_REASON_SHUTTING_DOWN, pb.ErrorReason_ERROR_REASON_STORE_FAILED,
		pb.ErrorReason_ERROR_REASON_CONSUMERS_CLOSED, pb.ErrorReason_ERROR_REASON_INDEX_CORRUPT,
		pb.ErrorReason_ERROR_REASON_UNREACHABLE, pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_MOVED,
		pb.ErrorReason_ERROR_REASON_DEADLINE, pb.ErrorReason_ERROR_REASON_CANCELED,
		pb.ErrorReason_ERROR_REASON_AUTH_UNAVAILABLE, pb.ErrorReason_ERROR_REASON_SPLIT:
		return true, nil
	case pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND:
		return true, ErrQueueNotFound
	case pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_NOT_FOUND:
		return true, ErrSubscriptionNotFound
	case pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS, pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_EXISTS,
		pb.ErrorReason_ERROR_REASON_XID_IN_USE, pb.ErrorReason_ERROR_REASON_TOKEN_EXISTS:
		return true, ErrAlreadyExists
	case pb.ErrorReason_ERROR_REASON_QUEUE_NOT_EMPTY:
		return true, link.ErrNotEmpty
	case pb.ErrorReason_ERROR_REASON_QUEUE_IN_USE:
		return true, ErrRefused
	case pb.ErrorReason_ERROR_REASON_QUEUE_FULL, pb.ErrorReason_ERROR_REASON_DISK_LOW,
		pb.ErrorReason_ERROR_REASON_TOO_MANY_QUEUES, pb.ErrorReason_ERROR_REASON_TOO_MANY_SUBSCRIPTIONS,
		pb.ErrorReason_ERROR_REASON_TOO_MANY_ENTRIES, pb.ErrorReason_ERROR_REASON_TOO_MANY_CONSUMERS,
		pb.ErrorReason_ERROR_REASON_TOO_MUCH_CREDIT, pb.ErrorReason_ERROR_REASON_RESPONSE_TOO_LARGE,
		pb.ErrorReason_ERROR_REASON_TOO_LARGE, pb.ErrorReason_ERROR_REASON_TOO_MANY_JOBS,
		pb.ErrorReason_ERROR_REASON_PAGE_FILE_FULL, pb.ErrorReason_ERROR_REASON_TOO_MANY_PREPARED:
		return true, ErrLimit
	case pb.ErrorReason_ERROR_REASON_INVALID_NAME, pb.ErrorReason_ERROR_REASON_INVALID_SEQUENCE,
		pb.ErrorReason_ERROR_REASON_TOO_MANY_RELEASED, pb.ErrorReason_ERROR_REASON_MIXED_OPERATIONS,
		pb.ErrorReason_ERROR_REASON_MALFORMED, pb.ErrorReason_ERROR_REASON_INVALID,
		pb.ErrorReason_ERROR_REASON_UNDECODABLE, pb.ErrorReason_ERROR_REASON_SETTING,
		pb.ErrorReason_ERROR_REASON_DEAD_LETTER_CYCLE, pb.ErrorReason_ERROR_REASON_NO_DEAD_LETTER,
		pb.ErrorReason_ERROR_REASON_INVALID_FILTER,
		pb.ErrorReason_ERROR_REASON_PRIORITIES_IMMUTABLE, pb.ErrorReason_ERROR_REASON_FORWARD_CHAIN:
		return true, ErrInvalid
	case pb.ErrorReason_ERROR_REASON_ALREADY_ACKNOWLEDGED, pb.ErrorReason_ERROR_REASON_MESSAGE_RESERVED:
		return true, ErrProcessed
	case pb.ErrorReason_ERROR_REASON_ACCESS_CHANGED, pb.ErrorReason_ERROR_REASON_ACCESS_IN_USE,
		pb.ErrorReason_ERROR_REASON_LOCK_OUT:
		return true, ErrRefused
	case pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED, pb.ErrorReason_ERROR_REASON_TOKEN_EXPIRED:
		return true, ErrUnauthenticated
	case pb.ErrorReason_ERROR_REASON_ACCESS_NOT_FOUND:
		return true, link.ErrNoRule
	case pb.ErrorReason_ERROR_REASON_QUOTA:
		return true, ErrLimit
	case pb.ErrorReason_ERROR_REASON_XID_NOT_FOUND:
		return true, link.ErrNoTransaction
	case pb.ErrorReason_ERROR_REASON_XID_DECIDED:
		return true, link.ErrDecided
	case pb.ErrorReason_ERROR_REASON_HEURISTIC_COMMIT, pb.ErrorReason_ERROR_REASON_HEURISTIC_ROLLBACK:
		return true, link.ErrHeuristic
	case pb.ErrorReason_ERROR_REASON_DENIED, pb.ErrorReason_ERROR_REASON_NOT_PEER:
		return true, ErrDenied
	case pb.ErrorReason_ERROR_REASON_SEQUENCE_REUSED:
		return true, ErrSequenceReused
	case pb.ErrorReason_ERROR_REASON_PRODUCER_FENCED:
		return true, ErrFenced
	case pb.ErrorReason_ERROR_REASON_TOO_OLD, pb.ErrorReason_ERROR_REASON_PRODUCER_UNKNOWN:
		return true, ErrTooOld
	case pb.ErrorReason_ERROR_REASON_DATA_LOSS, pb.ErrorReason_ERROR_REASON_PAGE_CORRUPT,
		pb.ErrorReason_ERROR_REASON_NODES_DIFFER:
		return true, ErrDataLoss
	case pb.ErrorReason_ERROR_REASON_NEWER_VERSION, pb.ErrorReason_ERROR_REASON_INTERNAL:
		return true, ErrInternal
	default:
		return operatorKindOf(r)
	}
}

// operatorKindOf is kindOf for the reasons of maintenance and administrative calls.
func operatorKindOf(r pb.ErrorReason) (known bool, kind error) {
	switch r {
	case pb.ErrorReason_ERROR_REASON_MAINTENANCE_BUSY, pb.ErrorReason_ERROR_REASON_PAGE_FILE_BUSY,
		pb.ErrorReason_ERROR_REASON_BACKUP_BUSY, pb.ErrorReason_ERROR_REASON_PLAN_RUNNING,
		pb.ErrorReason_ERROR_REASON_JOB_RUNNING:
		return true, link.ErrBusy
	case pb.ErrorReason_ERROR_REASON_ROLE_CHANGED:
		return true, link.ErrRoleChanged
	case pb.ErrorReason_ERROR_REASON_REWRITE_CANCELED:
		return true, link.ErrCanceled
	case pb.ErrorReason_ERROR_REASON_NO_SPACE, pb.ErrorReason_ERROR_REASON_BACKUP_NO_SPACE:
		return true, link.ErrNoSpace
	case pb.ErrorReason_ERROR_REASON_PLAN_NOT_FOUND:
		return true, link.ErrNoPlan
	case pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND:
		return true, link.ErrNoJob
	case pb.ErrorReason_ERROR_REASON_BACKUP_NOT_FOUND:
		return true, link.ErrBackupNotFound
	case pb.ErrorReason_ERROR_REASON_CONNECTION_NOT_FOUND:
		return true, link.ErrNoConnection
	case pb.ErrorReason_ERROR_REASON_ROLE, pb.ErrorReason_ERROR_REASON_NO_BACKUP_PATH,
		pb.ErrorReason_ERROR_REASON_NO_ARCHIVE, pb.ErrorReason_ERROR_REASON_NO_RECOMMENDATION,
		pb.ErrorReason_ERROR_REASON_OBJECT_STORE, pb.ErrorReason_ERROR_REASON_BACKUP_ENCRYPTED,
		pb.ErrorReason_ERROR_REASON_NO_PEER, pb.ErrorReason_ERROR_REASON_LSN_PASSED,
		pb.ErrorReason_ERROR_REASON_SWITCHOVER, pb.ErrorReason_ERROR_REASON_ADOPT,
		pb.ErrorReason_ERROR_REASON_PAUSE, pb.ErrorReason_ERROR_REASON_MIN_IN_SYNC,
		pb.ErrorReason_ERROR_REASON_FORCE, pb.ErrorReason_ERROR_REASON_FEATURE_MISSING:
		return true, ErrRefused
	default:
		return false, nil
	}
}

// kindOfCode is kindOf for an error without a known reason: from gRPC, a proxy, or a newer node.
func kindOfCode(code codes.Code) error {
	switch code {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return nil
	case codes.FailedPrecondition:
		return ErrRefused
	case codes.NotFound:
		return ErrQueueNotFound
	case codes.AlreadyExists:
		return ErrAlreadyExists
	case codes.ResourceExhausted:
		return ErrLimit
	case codes.InvalidArgument:
		return ErrInvalid
	case codes.Aborted:
		return ErrFenced
	case codes.OutOfRange:
		return ErrTooOld
	case codes.DataLoss:
		return ErrDataLoss
	case codes.PermissionDenied:
		return ErrDenied
	case codes.Unauthenticated:
		return ErrUnauthenticated
	case codes.OK, codes.Unknown, codes.Unimplemented, codes.Internal:
		return ErrInternal
	default:
		return ErrInternal
	}
}

// classify determines the Err variable; it is nil if the request must be retried.
func (e *Error) classify(ctx context.Context) {
	e.reason = reason.Parse(e.Reason)
	known, kind := kindOf(e.reason)
	switch {
	case e.notActive != nil:
		return
	case !known:
		kind = kindOfCode(e.Code)
	}
	if kind == nil && (e.Code == codes.Canceled || e.Code == codes.DeadlineExceeded) {
		kind = ctx.Err()
	}
	e.kind = kind
}

// retry reports whether the same request can succeed later or on the other node.
func (e *Error) retry() bool { return e.kind == nil }

// answered reports whether the error is a response of a node, which proves that this attempt was not committed. An
// error of gRPC or a proxy has no reason and proves nothing: the node may have committed the request.
func (e *Error) answered() bool {
	switch {
	case e.notActive != nil, e.reason == pb.ErrorReason_ERROR_REASON_NOT_ACTIVE, e.blocked(), e.unchecked():
		return true
	case e.kind == nil, errors.Is(e.kind, context.Canceled), errors.Is(e.kind, context.DeadlineExceeded):
		return false
	}
	switch e.Code {
	case codes.OK, codes.Unknown, codes.Internal, codes.ResourceExhausted, codes.Aborted, codes.DataLoss:
		return e.Reason != "" && e.reason != pb.ErrorReason_ERROR_REASON_INTERNAL
	default:
		return true
	}
}

// refused returns a copy of the error for a caller that does not wait until the state changes.
func (e *Error) refused() *Error {
	final := *e
	final.kind = ErrRefused
	return &final
}

// blocked reports whether the active may not acknowledge at the moment.
func (e *Error) blocked() bool { return e.reason == pb.ErrorReason_ERROR_REASON_BLOCKED }

// unchecked reports whether the node did not verify the credentials and did not execute the request.
func (e *Error) unchecked() bool { return e.reason == pb.ErrorReason_ERROR_REASON_AUTH_UNAVAILABLE }

// forgotten reports whether a node rejects a producer because it may have evicted its state. A request that was sent
// only once was certainly not committed.
func (e *Error) forgotten() bool { return e.reason == pb.ErrorReason_ERROR_REASON_PRODUCER_UNKNOWN }

// outcomeLost reports whether the outcome of an earlier attempt can no longer be determined: its producer was evicted
// or fenced, or the sequence is too old.
func (e *Error) outcomeLost() bool {
	return errors.Is(e.kind, ErrTooOld) || errors.Is(e.kind, ErrFenced)
}

// asError converts an error of gRPC into an Error. ctx is the caller's context of the operation: a cancellation with
// another origin means that the connection was lost.
func asError(ctx context.Context, address string, err error) *Error {
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	switch {
	case errors.Is(err, io.EOF):
		return &Error{Address: address, Code: codes.Unavailable, Message: "the node ended the stream"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &Error{Address: address, Code: codes.Canceled, Message: "the attempt was given up", kind: ctx.Err()}
	}
	st := status.Convert(err)
	e := &Error{Address: address, Code: st.Code(), Message: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *pb.NotActive:
			e.notActive = d
		case *pb.Submitted:
			e.submitted = d
		case *errdetails.RetryInfo:
			e.retryAfter = d.GetRetryDelay().AsDuration()
		case *errdetails.ErrorInfo:
			e.Reason, e.settled = d.GetReason(), d.GetMetadata()[reason.Settled] == "true"
		}
	}
	if st.Code() == codes.Unavailable {
		if o, ok := whyUnreachable(st.Message()); ok {
			e.Message, e.unreached, e.final, e.there = o.why, true, o.final, o.there
		}
	}
	e.classify(ctx)
	return e
}

// streamError converts the error of one request in a stream into an Error.
func streamError(ctx context.Context, address string, r *pb.RequestError) *Error {
	e := &Error{
		Address: address, Code: codes.Code(r.GetCode()), Reason: r.GetReason(), Message: r.GetMessage(),
		settled: r.GetSettled(),
	}
	e.classify(ctx)
	return e
}
