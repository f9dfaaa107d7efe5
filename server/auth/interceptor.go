// SPDX-License-Identifier: Apache-2.0

// Package auth implements the interceptor that authenticates the caller of each call, checks the caller's rights,
// and reports calls to the audit log.
package auth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// Authenticator authenticates the caller by the connection and the metadata in the context of a call. It returns
// nil if the call has no credentials of its kind, and an error if they are invalid.
type Authenticator func(ctx context.Context) (*access.Identity, error)

// Call is a call that has finished or was denied.
type Call struct {
	Identity *access.Identity
	Method   string // full name, such as /lockstep.v1.QueueService/CreateQueue
	Request  any    // nil for a stream of requests, and for a call that was denied before its request was read
	Began    time.Time
	Err      error // nil or a gRPC status
}

// Options configures New.
type Options struct {
	Authenticators []Authenticator // called in order; the first identity is used
	Rules          *access.Rules   // may be nil
	// Unauthenticated returns the error for a call that is reserved for the other node, if the caller is not that
	// node. If Unauthenticated is nil, such calls are not restricted.
	Unauthenticated func(ctx context.Context) error
	// Observe, if not nil, is called for audited and denied calls. It must not block.
	Observe func(ctx context.Context, c Call)
}

// Interceptor checks each call before its execution, and reports audited and denied calls. A nil Interceptor
// permits all calls.
type Interceptor struct{ o Options }

// New creates an interceptor.
func New(o Options) *Interceptor { return &Interceptor{o} }

// Begin checks a call before its execution. It returns the context of the call with the caller's identity, and
// reports whether Finish must be called even if the call succeeds. If the call is denied, Begin reports it to
// Options.Observe, and the error is a gRPC status.
func (i *Interceptor) Begin(ctx context.Context, method string) (context.Context, bool, error) {
	if i == nil {
		return ctx, false, nil
	}
	need, known := access.NeedOf(method)
	audited := need.Audited && i.o.Observe != nil
	ctx, err := i.authenticate(ctx)
	if err == nil {
		err = i.check(ctx, need, known, method)
	}
	if err == nil {
		return ctx, audited, nil
	}
	err = apierror.ToStatus(err)
	i.Finish(ctx, method, nil, time.Now(), err)
	return ctx, false, err
}

func (i *Interceptor) authenticate(ctx context.Context) (context.Context, error) {
	for _, known := range i.o.Authenticators {
		id, err := known(ctx)
		if err != nil {
			return ctx, err
		}
		if id != nil {
			return access.NewContext(ctx, id), nil
		}
	}
	return ctx, nil
}

// Identify returns the identity of the sender of a request other than a gRPC call. ctx must contain the same
// values as that of a call. The identity is never nil.
func (i *Interceptor) Identify(ctx context.Context) (*access.Identity, error) {
	ctx, err := i.authenticate(ctx)
	return access.FromContext(ctx), err
}

func (i *Interceptor) check(ctx context.Context, need access.Need, known bool, method string) error {
	switch {
	case !known:
		return fmt.Errorf("%w: unknown method %s", access.ErrDenied, method)
	case need.Unauthenticated:
		return nil
	case access.FromContext(ctx).Site:
		if !need.Site {
			return fmt.Errorf("%w: method %s is not for nodes of another site", access.ErrDenied, method)
		}
		return nil
	case access.FromContext(ctx).Fleet:
		if !need.Fleet {
			return fmt.Errorf("%w: method %s is not for nodes of another pair", access.ErrDenied, method)
		}
		return nil
	case need.Right == access.Peer:
		if i.o.Unauthenticated == nil || access.FromContext(ctx).Peer {
			return nil
		}
		return i.o.Unauthenticated(ctx)
	case need.PerQueue || need.Right == 0:
		return i.o.Rules.HasAnyRight(access.FromContext(ctx))
	}
	return i.o.Rules.Check(ctx, need.Right, "")
}

// Finish reports an audited or denied call to Options.Observe. It must be called after each audited or failed call
// that Begin has permitted. err is nil or a gRPC status.
func (i *Interceptor) Finish(ctx context.Context, method string, request any, start time.Time, err error) {
	if i == nil || i.o.Observe == nil {
		return
	}
	if need, _ := access.NeedOf(method); !need.Audited && !Refused(err) {
		return
	}
	i.o.Observe(ctx, Call{
		Identity: access.FromContext(ctx), Method: method, Request: request, Began: start, Err: err,
	})
}

// Refused reports whether err means that authentication has failed or that the call was denied.
func Refused(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, access.ErrDenied) || errors.Is(err, access.ErrNotPeer) || errors.Is(err, access.ErrUnauthenticated) {
		return true
	}
	code := status.Code(err)
	return code == codes.PermissionDenied || code == codes.Unauthenticated
}
