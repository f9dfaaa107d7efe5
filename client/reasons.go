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

// kinds maps the kinds of errors.proto to Err variables. nil means that the request must be retried.
var kinds = map[pb.ErrorKind]error{ //nolint:gochecknoglobals // a constant
	pb.ErrorKind_ERROR_KIND_RETRY:                  nil,
	pb.ErrorKind_ERROR_KIND_QUEUE_NOT_FOUND:        ErrQueueNotFound,
	pb.ErrorKind_ERROR_KIND_SUBSCRIPTION_NOT_FOUND: ErrSubscriptionNotFound,
	pb.ErrorKind_ERROR_KIND_ALREADY_EXISTS:         ErrAlreadyExists,
	pb.ErrorKind_ERROR_KIND_NOT_EMPTY:              link.ErrNotEmpty,
	pb.ErrorKind_ERROR_KIND_LIMIT:                  ErrLimit,
	pb.ErrorKind_ERROR_KIND_INVALID:                ErrInvalid,
	pb.ErrorKind_ERROR_KIND_FENCED:                 ErrFenced,
	pb.ErrorKind_ERROR_KIND_TOO_OLD:                ErrTooOld,
	pb.ErrorKind_ERROR_KIND_REFUSED:                ErrRefused,
	pb.ErrorKind_ERROR_KIND_PROCESSED:              ErrProcessed,
	pb.ErrorKind_ERROR_KIND_NO_TRANSACTION:         link.ErrNoTransaction,
	pb.ErrorKind_ERROR_KIND_DECIDED:                link.ErrDecided,
	pb.ErrorKind_ERROR_KIND_HEURISTIC:              link.ErrHeuristic,
	pb.ErrorKind_ERROR_KIND_NO_RULE:                link.ErrNoRule,
	pb.ErrorKind_ERROR_KIND_DATA_LOSS:              ErrDataLoss,
	pb.ErrorKind_ERROR_KIND_INTERNAL:               ErrInternal,
	pb.ErrorKind_ERROR_KIND_DENIED:                 ErrDenied,
	pb.ErrorKind_ERROR_KIND_UNAUTHENTICATED:        ErrUnauthenticated,
	pb.ErrorKind_ERROR_KIND_SEQUENCE_REUSED:        ErrSequenceReused,
	pb.ErrorKind_ERROR_KIND_BUSY:                   link.ErrBusy,
	pb.ErrorKind_ERROR_KIND_ROLE_CHANGED:           link.ErrRoleChanged,
	pb.ErrorKind_ERROR_KIND_CANCELED:               link.ErrCanceled,
	pb.ErrorKind_ERROR_KIND_NO_SPACE:               link.ErrNoSpace,
	pb.ErrorKind_ERROR_KIND_NO_PLAN:                link.ErrNoPlan,
	pb.ErrorKind_ERROR_KIND_NO_JOB:                 link.ErrNoJob,
	pb.ErrorKind_ERROR_KIND_NO_POLICY:              link.ErrNoPolicy,
	pb.ErrorKind_ERROR_KIND_BACKUP_NOT_FOUND:       link.ErrBackupNotFound,
	pb.ErrorKind_ERROR_KIND_NO_CONNECTION:          link.ErrNoConnection,
	pb.ErrorKind_ERROR_KIND_NO_SCHEDULE:            link.ErrNoSchedule,
}

// kindOf returns the Err variable of a reason, or nil if the request must be retried. known is false without a
// reason, and for a reason of a newer release.
func kindOf(r pb.ErrorReason) (known bool, kind error) {
	kind, known = kinds[reason.Kind(r)]
	return known, kind
}

// kindOfCode is like kindOf, for an error without a known reason: from gRPC, a proxy, or a newer node.
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

// answered reports whether the error is a response from a node, which proves that this attempt was not committed. gRPC
// and proxies also return some of the codes: these prove it only with a reason.
func (e *Error) answered() bool {
	switch {
	case e.notActive != nil, e.reason == pb.ErrorReason_ERROR_REASON_NOT_ACTIVE,
		e.reason == pb.ErrorReason_ERROR_REASON_REPLICA, e.blocked(), e.unchecked(),
		e.reason == pb.ErrorReason_ERROR_REASON_NOT_OWNER, e.undirected():
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

// refused returns a copy of a temporary error that is not retried and matches ErrRefused.
func (e *Error) refused() *Error {
	final := *e
	final.kind = ErrRefused
	return &final
}

// isReplica reports whether the request was refused because only the other site executes it.
func (e *Error) isReplica() bool { return e.reason == pb.ErrorReason_ERROR_REASON_REPLICA }

// blocked reports whether the request failed because the active cannot acknowledge at the moment.
func (e *Error) blocked() bool {
	return e.reason == pb.ErrorReason_ERROR_REASON_BLOCKED || e.reason == pb.ErrorReason_ERROR_REASON_SITE_LAG
}

// undirected reports whether the node does not know the owner of the queue, because the directory of the fleet is
// unavailable.
func (e *Error) undirected() bool {
	return e.reason == pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE
}

// concernsOwner reports whether a retryable error concerns only the owner of one queue.
func (e *Error) concernsOwner() bool { return e.notOwner != nil || e.undirected() }

// unchecked reports whether the node did not verify the credentials and did not execute the request.
func (e *Error) unchecked() bool { return e.reason == pb.ErrorReason_ERROR_REASON_AUTH_UNAVAILABLE }

// forgotten reports whether a node rejects a producer because it may have evicted the state of the producer. A request
// that was sent only once was certainly not committed.
func (e *Error) forgotten() bool { return e.reason == pb.ErrorReason_ERROR_REASON_PRODUCER_UNKNOWN }

// outcomeLost reports whether the outcome of an earlier attempt can no longer be determined.
func (e *Error) outcomeLost() bool {
	return errors.Is(e.kind, ErrTooOld) || errors.Is(e.kind, ErrFenced) ||
		e.reason == pb.ErrorReason_ERROR_REASON_SITE_EPOCH
}

// asError converts a gRPC error into an Error. ctx is the caller's context of the operation: a cancellation with
// another origin means that the connection was lost.
func asError(ctx context.Context, address string, err error) *Error {
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	switch {
	case errors.Is(err, io.EOF):
		return &Error{Address: address, Code: codes.Unavailable, Message: "the node closed the stream"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &Error{Address: address, Code: codes.Canceled, Message: "the attempt was abandoned", kind: ctx.Err()}
	}
	st := status.Convert(err)
	e := &Error{Address: address, Code: st.Code(), Message: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *pb.NotActive:
			e.notActive = d
		case *pb.NotOwner:
			e.notOwner = d
		case *pb.QueuePartitioned:
			e.partitioned = d
		case *pb.Submitted:
			e.submitted = d
		case *errdetails.RetryInfo:
			e.retryAfter = d.GetRetryDelay().AsDuration()
		case *errdetails.ErrorInfo:
			e.Reason, e.settled = d.GetReason(), d.GetMetadata()[reason.Settled] == "true"
		}
	}
	if st.Code() == codes.Unavailable {
		if o, ok := dialErrorOf(st.Message()); ok {
			e.Message, e.Reason, e.unreached, e.final, e.accepted = o.why, o.reason, true, o.final, o.accepted
		}
	}
	e.classify(ctx)
	return e
}

func streamError(ctx context.Context, address string, r *pb.RequestError) *Error {
	e := &Error{
		Address: address, Code: codes.Code(r.GetCode()), Reason: r.GetReason(), Message: r.GetMessage(),
		settled: r.GetSettled(), notOwner: r.GetNotOwner(), partitioned: r.GetPartitioned(),
	}
	e.classify(ctx)
	return e
}
