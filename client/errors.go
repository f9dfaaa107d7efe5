// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Errors of this side.
var (
	// ErrClosed is returned when the Client, Producer or Consumer was closed.
	ErrClosed = errors.New("closed")
	// ErrUnavailable is returned when the context ended before a node could do what was asked: none is active, none
	// can be reached, or the active cannot acknowledge at the moment. Nothing is wrong with the request.
	ErrUnavailable = errors.New("no node could serve the request")
	// ErrOutcomeUnknown is returned together with another error when the request may have been committed although it
	// was not answered, also when it was repeated then and the repetition was refused. An error without it means that
	// nothing was committed, and that nothing of that attempt ever will be.
	ErrOutcomeUnknown = errors.New("the outcome is unknown: it may or may not have been committed")
	// ErrOutcomeLost is returned together with ErrOutcomeUnknown when the outcome cannot be learned any more: the
	// request may have been committed, and the nodes have forgotten its producer (which takes 100,000 others since, or
	// 256 later requests). The client does not send it again; whether the messages are there can only be seen in the
	// queues.
	ErrOutcomeLost = errors.New("the outcome cannot be learned any more")
	// ErrSequenceReused is returned when a request that was sent for the first time has the sequence of an earlier one:
	// another producer used the same id and epoch. The message was NOT stored. Use a higher epoch. Together with
	// ErrOutcomeUnknown it means that a repetition is not what was sent first: a body was changed meanwhile.
	ErrSequenceReused = errors.New("producer id and epoch were used before")
)

// Errors of the server.
var (
	// ErrQueueNotFound is returned when there is no queue of that name.
	ErrQueueNotFound = errors.New("queue not found")
	// ErrSubscriptionNotFound is returned when the queue has no subscription of that name.
	ErrSubscriptionNotFound = errors.New("subscription not found")
	// ErrAlreadyExists is returned when a queue, subscription or token of that name is there already.
	ErrAlreadyExists = errors.New("already exists")
	// ErrNotEmpty is returned when a queue that was to be deleted only if empty holds messages.
	ErrNotEmpty = errors.New("queue not empty")
	// ErrLimit is returned when a limit of the queue, of the node or of this client would be exceeded.
	ErrLimit = errors.New("limit exceeded")
	// ErrInvalid is returned when the request can never work.
	ErrInvalid = errors.New("invalid request")
	// ErrFenced is returned when a producer with the same id and a higher epoch took over.
	ErrFenced = errors.New("producer fenced by a higher epoch")
	// ErrTooOld is returned when a retry is too old for the store to know whether it was committed.
	ErrTooOld = errors.New("retry too old to be answered")
	// ErrRefused is returned when the state of the pair or of the queue does not allow the request now.
	ErrRefused = errors.New("refused in the present state")
	// ErrProcessed is returned when a message that a transaction takes was acknowledged before, or is held by a prepared
	// transaction: it was processed elsewhere. Nothing of the transaction was stored.
	ErrProcessed = errors.New("a message was processed elsewhere")
	// ErrNoTransaction is returned when no transaction of that xid is prepared, and none is remembered.
	ErrNoTransaction = errors.New("no such prepared transaction")
	// ErrDecided is returned when a prepared transaction was decided the other way before, by its coordinator.
	ErrDecided = errors.New("the transaction was decided otherwise")
	// ErrHeuristic is returned when a prepared transaction was decided the other way before, by an operator or the
	// time-out txn.prepared-timeout. The text says how.
	ErrHeuristic = errors.New("the transaction was decided otherwise, without its coordinator")
	// ErrNoRule is returned when there is no such rule, role, token or quota.
	ErrNoRule = errors.New("no such rule, role, token or quota")
	// ErrDataLoss is returned when stored data is damaged.
	ErrDataLoss = errors.New("stored data is damaged")
	// ErrInternal is returned when a node failed in a way that it cannot explain, or does not know the request.
	ErrInternal = errors.New("node failed")
	// ErrDenied is returned when a node does not let this client do what it asked.
	ErrDenied = errors.New("not allowed")
	// ErrUnauthenticated is returned when a node does not believe what this client shows to say who it is: the token has
	// expired, was revoked or is wrong. The text says which check failed. With a TokenFile or TokenSource the client has
	// tried other tokens before, if there were any. Nothing was carried out.
	ErrUnauthenticated = errors.New("not authenticated")
)

// Errors of maintenance.
var (
	// ErrBusy is returned when a node or the pair is at work on another piece of maintenance already, or runs that job.
	ErrBusy = errors.New("other maintenance is under way")
	// ErrRoleChanged is returned when a rewrite was canceled by a role change of the node. The page file is unchanged.
	ErrRoleChanged = errors.New("rewrite canceled by a role change")
	// ErrCanceled is returned when a rewrite was cancelled, by another call or by an operator. The page file is as it
	// was.
	ErrCanceled = errors.New("the rewrite was cancelled")
	// ErrNoSpace is returned when there is not enough free space; the message has both figures. Nothing was changed.
	ErrNoSpace = errors.New("not enough free space")
	// ErrBackupNotFound is returned when a backup does not exist or is incomplete.
	ErrBackupNotFound = errors.New("backup not found")
	// ErrNoConnection is returned when a node has no connection of that number.
	ErrNoConnection = errors.New("no such connection")
	// ErrNoJob is returned when there is no job of that name.
	ErrNoJob = errors.New("no such job")
	// ErrNoPlan is returned when no plan is under way that could be cancelled.
	ErrNoPlan = errors.New("no plan is under way")
)

// Error is an answer of a node. It unwraps to one of the Err values of this package.
type Error struct {
	// Address of the node that answered, host:port.
	Address string
	// Code of the answer.
	Code codes.Code
	// Reason is the name of an ErrorReason of the API, such as QUEUE_NOT_FOUND; empty for an error that is not a
	// node's.
	Reason string
	// Message for people: what happened and what to do.
	Message string

	reason    pb.ErrorReason // of Reason
	kind      error          // the Err value; nil when it is to be retried
	settled   bool           // the refusal is kept in the log: it holds for every attempt with that sequence
	notActive *pb.NotActive  // the hint of a node that is not active
	submitted *pb.Submitted  // how far a publish stream came that ended with this; nil: the node does not say

	retryAfter time.Duration // what the node asks to wait before another attempt; 0: nothing

	unreached bool // there was no connection: Message says why, in words
	final     bool // … and another attempt can only end alike
	there     bool // a process is there, and the connection was ended all the same
}

// ended tells whether a process was there, and the connection ended before it answered.
func (e *Error) ended() bool {
	return e.there || !e.unreached && e.Code == codes.Unavailable && e.Reason == ""
}

// after is what a call that gives up tells: e, or the failure before it when e says only that an attempt's time was up.
func (e *Error) after(before error) error {
	if before != nil && !e.unreached && e.Reason == "" && e.Code == codes.DeadlineExceeded {
		return before
	}
	return e
}

// Error tells the message, and who sent it.
func (e *Error) Error() string {
	if !e.unreached && (e.kind == nil || errors.Is(e.kind, ErrInternal)) {
		return fmt.Sprintf("%s: %s: %s", e.Address, e.Code, e.Message)
	}
	return e.Address + ": " + e.Message
}

// Unwrap returns the Err value that the answer means.
func (e *Error) Unwrap() error {
	if e.kind == nil {
		return ErrUnavailable
	}
	return e.kind
}

// opError is what an operation returns when it gives up: what was tried, the last answer of a node, and why no more
// was tried.
type opError struct {
	op      string
	cause   error // why it gave up: the context's error or ErrClosed
	last    error // the last failure; may be nil
	unknown bool  // an attempt may have been carried out
}

func (e *opError) Error() string {
	s := fmt.Sprintf("%s: %v", e.op, e.cause)
	if e.last != nil && errors.Is(e.cause, errNobody) {
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
