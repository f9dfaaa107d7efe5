// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Errors of the client.
var (
	// ErrClosed is returned when the client, producer or consumer is closed.
	ErrClosed = errors.New("closed")
	// ErrUnavailable is returned when no node could serve the request before the context ended, or earlier with
	// [Options.FailFast]. A retry may succeed.
	ErrUnavailable = errors.New("no node could serve the request")
	// ErrOutcomeUnknown is returned together with another error when the request may have been committed: no response
	// arrived, and any retry was refused or had no response either.
	ErrOutcomeUnknown = errors.New("outcome is unknown: the request may or may not have been committed")
	// ErrOutcomeLost is returned together with ErrOutcomeUnknown when the outcome can no longer be determined. For
	// example, the nodes have evicted the state of the producer or the result, another site was promoted without a
	// planned switch, or another pair became the owner of the queue. Nodes retain the state of at most 100,000
	// producers, and at most 256 results of each. The client does not retry. To find out whether the messages were
	// stored, inspect the queues.
	ErrOutcomeLost = errors.New("outcome can no longer be determined")
	// ErrSequenceReused is returned when a first attempt has the sequence of an earlier request, because another
	// producer used the same ID and epoch. The message was not stored. Use a higher epoch. Together with
	// ErrOutcomeUnknown, it means that a retry differs from the first attempt, usually because a body was modified in
	// the meantime.
	ErrSequenceReused = errors.New("producer ID and epoch were used before")
)

// Errors of the server.
var (
	// ErrQueueNotFound is returned when a queue does not exist.
	ErrQueueNotFound = errors.New("queue not found")
	// ErrSubscriptionNotFound is returned when the queue has no subscription with the given name.
	ErrSubscriptionNotFound = errors.New("subscription not found")
	// ErrAlreadyExists is returned when a queue, subscription or token with the given name already exists, or when the
	// XID of a transaction to prepare is in use or was used recently.
	ErrAlreadyExists = errors.New("already exists")
	// ErrLimit is returned when the request exceeds a limit or a quota.
	ErrLimit = errors.New("limit exceeded")
	// ErrInvalid is returned when the request is invalid. It must be corrected before another attempt.
	ErrInvalid = errors.New("invalid request")
	// ErrFenced is returned when a producer with the same ID and a higher epoch has taken over.
	ErrFenced = errors.New("producer fenced by a higher epoch")
	// ErrTooOld is returned when the nodes no longer retain the result of a retried request, or have evicted the state
	// of its producer.
	ErrTooOld = errors.New("retry is too old")
	// ErrRefused is returned when a current state, such as that of the pair or of the queue, does not allow the
	// request.
	ErrRefused = errors.New("not allowed in the current state")
	// ErrProcessed is returned when a message of a transaction was processed elsewhere: the message is already
	// acknowledged, or belongs to a prepared transaction.
	ErrProcessed = errors.New("a message was processed elsewhere")
	// ErrDataLoss is returned when stored data is corrupt.
	ErrDataLoss = errors.New("stored data is corrupt")
	// ErrInternal is returned when a node failed with an unexpected error, or does not implement the request.
	ErrInternal = errors.New("node failed")
	// ErrDenied is returned when the client does not have the permission for the request.
	ErrDenied = errors.New("permission denied")
	// ErrUnauthenticated is returned when a node rejects the credentials of the client. With a TokenFile or
	// TokenSource, the client has already tried to obtain a newer token.
	ErrUnauthenticated = errors.New("not authenticated")
)

// Error is an error response from a node, or describes a failed connection. It unwraps to one of the Err variables of
// this package or of package client/admin, or to the error of a context that has ended.
type Error struct {
	// Address is the address of the node, host:port.
	Address string
	// Code is the gRPC status code.
	Code codes.Code
	// Reason is the name of an ErrorReason of the API, such as QUEUE_NOT_FOUND, or empty. If no connection could be
	// made, Reason is TLS_REQUIRED, TLS_UNSUPPORTED, BAD_CERTIFICATE, NOT_CLIENT_PORT or empty.
	Reason string
	// Message describes the error.
	Message string

	reason    pb.ErrorReason // numeric value of Reason
	kind      error          // the Err variable, or a context's error; nil if the request must be retried
	settled   bool           // the refusal is recorded in the log and applies to every attempt with that sequence
	notActive *pb.NotActive  // hint of a node that is not active
	notOwner  *pb.NotOwner   // owner of the queue, if the reason is NOT_OWNER
	// partitioned contains the number of partitions, if the reason is QUEUE_PARTITIONED.
	partitioned *pb.QueuePartitioned
	submitted   *pb.Submitted // progress of the publish stream that ended with this error; nil if not reported

	retryAfter time.Duration // retry delay requested by the node; 0 without a request

	unreached bool // no connection: Message contains the reason
	final     bool // unreached is set, and a retry would fail for the same reason
	accepted  bool // unreached is set, and a process accepted the connection
}

// Partitioned returns the name of the partitioned queue and the number of its partitions if Reason is
// QUEUE_PARTITIONED, otherwise "" and 0.
func (e *Error) Partitioned() (queue string, count int) {
	return e.partitioned.GetQueue(), int(e.partitioned.GetCount())
}

// removed reports whether the pair of the node was removed from its fleet as lost.
func (e *Error) removed() bool { return e.notActive.GetRole() == "REMOVED" }

// ended reports whether a process accepted the connection, but the connection ended without a response or cannot be
// used.
func (e *Error) ended() bool {
	return e.accepted || !e.unreached && e.Code == codes.Unavailable && e.Reason == ""
}

// after returns the error to report: e, or the previous failure if e is only the timeout of an attempt.
func (e *Error) after(before error) error {
	if before != nil && !e.unreached && e.Reason == "" && e.Code == codes.DeadlineExceeded {
		return before
	}
	return e
}

func (e *Error) Error() string {
	if !e.unreached && (e.kind == nil || errors.Is(e.kind, ErrInternal)) {
		return fmt.Sprintf("%s: %s: %s", e.Address, e.Code, e.Message)
	}
	return e.Address + ": " + e.Message
}

func (e *Error) Unwrap() error {
	if e.kind == nil {
		return ErrUnavailable
	}
	return e.kind
}

type opError struct {
	op      string
	cause   error // why the operation ended, such as the context's error or ErrClosed
	last    error // the last failure; may be nil
	unknown bool  // an attempt may have been committed
}

func (e *opError) Error() string {
	s := fmt.Sprintf("%s: %v", e.op, e.cause)
	if errors.Is(e.cause, context.DeadlineExceeded) {
		s = e.op + ": timed out"
	}
	if e.last != nil && errors.Is(e.cause, errUnreachable) {
		s += ": " + e.last.Error()
	} else if e.last != nil {
		s += fmt.Sprintf(" (last: %v)", e.last)
	}
	if e.unknown {
		s += "; " + ErrOutcomeUnknown.Error()
	}
	return s
}

func (e *opError) Unwrap() []error {
	errs := []error{e.cause}
	if !errors.Is(e.cause, ErrClosed) {
		errs = append(errs, ErrUnavailable)
	}
	if e.last != nil {
		errs = append(errs, e.last)
	}
	if e.unknown {
		errs = append(errs, ErrOutcomeUnknown)
	}
	return errs
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
