package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	// ErrAlreadyExists is returned when a queue or subscription of that name is there already.
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
	// ErrDataLoss is returned when stored data is damaged.
	ErrDataLoss = errors.New("stored data is damaged")
	// ErrInternal is returned when a node failed in a way that it cannot explain, or does not know the request.
	ErrInternal = errors.New("node failed")
	// ErrDenied is returned when a node does not let this client do what it asked.
	ErrDenied = errors.New("not allowed")
)

// Error is an answer of a node. It unwraps to one of the Err values of this package.
type Error struct {
	// Address of the node that answered, host:port.
	Address string
	// Code of the answer.
	Code codes.Code
	// Reason in machine-readable form, such as QUEUE_NOT_FOUND; may be empty.
	Reason string
	// Message for people: what happened and what to do.
	Message string

	kind      error         // the Err value; nil when it is to be retried
	settled   bool          // the refusal is kept in the log: it holds for every attempt with that sequence
	notActive *pb.NotActive // the hint of a node that is not active

	unreached bool // there was no connection: Message says why, in words
	final     bool // … and another attempt can only end alike
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

// retry tells whether the same request can succeed later or on the other node.
func (e *Error) retry() bool { return e.kind == nil }

// answered tells whether the error is a node's answer, which proves that this attempt was not carried out. What gRPC,
// or something between, may say of a request that a node has carried out proves nothing: it comes without a reason.
func (e *Error) answered() bool {
	switch {
	case e.notActive != nil:
		return true
	case e.kind == nil:
		return e.Reason == reasonBlocked
	case errors.Is(e.kind, context.Canceled), errors.Is(e.kind, context.DeadlineExceeded):
		return false
	}
	switch e.Code { //nolint:exhaustive // the others are given by nodes only, or before a request is sent
	case codes.OK, codes.Unknown, codes.Internal, codes.ResourceExhausted, codes.Aborted, codes.DataLoss:
		return e.Reason != "" && e.Reason != reasonInternal
	default:
		return true
	}
}

// Reasons of google.rpc.ErrorInfo that decide between errors of the same code.
const (
	reasonNotActive            = "NOT_ACTIVE"
	reasonSubscriptionNotFound = "SUBSCRIPTION_NOT_FOUND"
	reasonQueueNotEmpty        = "QUEUE_NOT_EMPTY"
	reasonTooLarge             = "TOO_LARGE"
	reasonProducerForgotten    = "PRODUCER_FORGOTTEN"
	reasonSequenceReused       = "SEQUENCE_REUSED"
	reasonBlocked              = "BLOCKED"  // nothing was logged
	reasonInternal             = "INTERNAL" // nobody foresaw it, so it proves nothing
)

// metadataSettled is set in google.rpc.ErrorInfo when the log keeps the refusal.
const metadataSettled = "settled"

// asError turns what gRPC returned into an Error. ctx is the caller's context of the attempt's operation: a
// cancellation that does not come from it means that the connection went away.
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
		case *errdetails.ErrorInfo:
			e.Reason, e.settled = d.GetReason(), d.GetMetadata()[metadataSettled] == "true"
		}
	}
	if st.Code() == codes.Unavailable {
		if why, final, ok := whyUnreachable(st.Message()); ok {
			e.Message, e.unreached, e.final = why, true, final
		}
	}
	e.classify(ctx)
	return e
}

// streamError turns the error of one request in a stream into an Error.
func streamError(ctx context.Context, address string, r *pb.RequestError) *Error {
	e := &Error{
		Address: address, Code: codes.Code(r.GetCode()), Reason: r.GetReason(), Message: r.GetMessage(),
		settled: r.GetSettled(),
	}
	if e.Code == codes.FailedPrecondition && e.Reason == reasonNotActive {
		e.notActive = &pb.NotActive{}
	}
	e.classify(ctx)
	return e
}

// forgotten tells whether a node refuses a producer because it does not know any more whether it knew it. A request
// that was sent once only was certainly not committed.
func (e *Error) forgotten() bool { return e.Reason == reasonProducerForgotten }

// outcomeLost tells whether a node says that it cannot know any more what became of an earlier attempt: its producer is
// forgotten, or fenced, or the sequence is too old.
func (e *Error) outcomeLost() bool {
	return errors.Is(e.kind, ErrTooOld) || errors.Is(e.kind, ErrFenced)
}

// classify finds the Err value by code and reason; none for what is to be retried.
func (e *Error) classify(ctx context.Context) {
	switch e.Code {
	case codes.Unavailable:
	case codes.Canceled, codes.DeadlineExceeded:
		if ctx.Err() != nil {
			e.kind = ctx.Err()
		}
	case codes.FailedPrecondition:
		switch {
		case e.notActive != nil:
		case e.Reason == reasonQueueNotEmpty:
			e.kind = ErrNotEmpty
		default:
			e.kind = ErrRefused
		}
	case codes.NotFound:
		e.kind = ErrQueueNotFound
		if e.Reason == reasonSubscriptionNotFound {
			e.kind = ErrSubscriptionNotFound
		}
	case codes.AlreadyExists:
		e.kind = ErrAlreadyExists
	case codes.ResourceExhausted:
		e.kind = ErrLimit
	case codes.InvalidArgument:
		e.kind = ErrInvalid
		switch e.Reason {
		case reasonTooLarge:
			e.kind = ErrLimit
		case reasonSequenceReused:
			e.kind = ErrSequenceReused
		}
	case codes.Aborted:
		e.kind = ErrFenced
	case codes.OutOfRange:
		e.kind = ErrTooOld
	case codes.DataLoss:
		e.kind = ErrDataLoss
	case codes.PermissionDenied, codes.Unauthenticated:
		e.kind = ErrDenied
	case codes.OK, codes.Unknown, codes.Unimplemented, codes.Internal:
		e.kind = ErrInternal
	default:
		e.kind = ErrInternal
	}
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
