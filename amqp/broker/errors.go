// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// failure is an error of a call to the node's services.
type failure struct {
	code    codes.Code
	reason  string // name of an ErrorReason; empty for a transport error, after which the outcome is unknown
	text    string
	settled bool // no attempt of the request was or will be executed
	through *uint64
	owner   *pb.NotOwner // set with the reason NOT_OWNER
}

func (f *failure) Error() string { return f.text }

func failed(err error) failure {
	if known, ok := errors.AsType[*failure](err); ok {
		return *known
	}
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	f := failure{code: s.Code(), text: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == reason.Domain {
				f.reason, f.settled = d.GetReason(), d.GetMetadata()["settled"] == "true"
			}
		case *pb.Submitted:
			f.through = new(d.GetThrough())
		case *pb.NotOwner:
			f.owner = d
		}
	}
	return f
}

func ofRequest(e *pb.RequestError) failure {
	return failure{
		code: codes.Code(e.GetCode()), reason: e.GetReason(), text: e.GetMessage(), settled: e.GetSettled(),
		owner: e.GetNotOwner(),
	}
}

// concernsOwner reports whether another pair owns the queue, or the owner is unknown.
func (f *failure) concernsOwner() bool { return f.owner != nil || f.reason == "DIRECTORY_UNAVAILABLE" }

// notActive reports whether the node is not active, or its site is not the primary: the attempt was not executed.
func (f *failure) notActive() bool { return f.reason == "NOT_ACTIVE" || f.reason == "REPLICA" }

func (f *failure) again() bool {
	if f.code == codes.Unavailable || f.code == codes.Canceled || f.code == codes.DeadlineExceeded {
		return true
	}
	return f.reason == "AUTH_UNAVAILABLE" || f.notActive()
}

// unapplied reports whether an error that permits another attempt proves that this attempt was not applied.
func (f *failure) unapplied() bool {
	return f.reason == "BLOCKED" || f.reason == "SITE_LAG" || f.reason == "AUTH_UNAVAILABLE" ||
		f.reason == "DIRECTORY_UNAVAILABLE"
}

// conditions maps reasons to conditions. Other reasons have the condition of their status code.
var conditions = map[string]wire.Symbol{ //nolint:gochecknoglobals // a table
	"QUEUE_FULL":             session.ResourceLimitExceeded,
	"TOO_LARGE":              session.LinkMessageSizeExceeded,
	"INVALID_NAME":           session.InvalidField,
	"INVALID_FILTER":         session.InvalidField,
	"QUEUE_IN_USE":           session.ResourceLocked,
	"QUEUE_PAUSED":           session.ResourceLocked,
	"ALREADY_ACKNOWLEDGED":   session.PreconditionFailed,
	"MESSAGE_RESERVED":       session.ResourceLocked,
	"FEATURE_MISSING":        session.NotImplemented,
	"NOT_ACTIVE":             session.ConnectionForced,
	"REPLICA":                session.ConnectionForced,
	"SUBSCRIPTION_MOVED":     session.LinkDetachForced,
	"TOO_MANY_CONSUMERS":     session.ResourceLimitExceeded,
	"SUBSCRIPTION_EXISTS":    session.ResourceLocked,
	"SUBSCRIPTION_NOT_FOUND": session.NotFound,
	"TOO_MANY_QUEUES":        session.ResourceLimitExceeded,
	"TOO_MANY_SUBSCRIPTIONS": session.ResourceLimitExceeded,
	"CONSUMERS_CLOSED":       session.LinkDetachForced,
	"PRODUCER_UNKNOWN":       session.IllegalState,
	"TOO_OLD":                session.IllegalState,
	"TOKEN_EXPIRED":          session.UnauthorizedAccess,
	"DIRECTORY_UNAVAILABLE":  session.ResourceLocked,
}

func (f *failure) condition() wire.Symbol {
	if c, ok := conditions[f.reason]; ok {
		return c
	}
	switch f.code {
	case codes.NotFound:
		return session.NotFound
	case codes.PermissionDenied, codes.Unauthenticated:
		return session.UnauthorizedAccess
	case codes.ResourceExhausted:
		return session.ResourceLimitExceeded
	case codes.InvalidArgument:
		return session.InvalidField
	case codes.FailedPrecondition, codes.Aborted, codes.AlreadyExists, codes.OutOfRange:
		return session.PreconditionFailed
	case codes.Unimplemented:
		return session.NotImplemented
	default:
		return session.InternalError
	}
}

func (f *failure) toAMQP() *wire.Error {
	e := &wire.Error{Condition: f.condition(), Description: f.text}
	if f.reason != "" {
		e.Info = wire.Fields{{Key: wire.Symbol("lockstep:reason"), Value: f.reason}}
	}
	return e
}

// refusal returns the AMQP error of a failed call.
func refusal(err error) *wire.Error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	if errors.Is(err, context.Canceled) {
		return session.Errorf(session.ConnectionForced, "connection is closing")
	}
	f := failed(err)
	return f.toAMQP()
}
