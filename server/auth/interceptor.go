// SPDX-License-Identifier: Apache-2.0

// Package auth implements the interceptor that authenticates the caller of each call, checks its rights, and reports
// calls to the audit log.
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

// Authenticator authenticates the caller by the connection and the metadata in a call's context. It returns nil without
// credentials of its kind, and an error if they are invalid.
type Authenticator func(ctx context.Context) (*access.Identity, error)

// Call is one finished or denied call.
type Call struct {
	Identity *access.Identity
	Method   string // the full name, such as /lockstep.v1.QueueService/CreateQueue
	Request  any    // nil for a stream of requests, and for a call denied before its request was read
	Began    time.Time
	Err      error // nil or a status
}

// Options configures New.
type Options struct {
	Authenticators []Authenticator // tried in order; the first identity is used
	Rules          *access.Rules   // may be nil
	// Unauthenticated returns the error for a call that is reserved for the other node. If nil, such calls are not
	// restricted.
	Unauthenticated func(ctx context.Context) error
	// Observe, unless nil, is called for audited and denied calls. It must not block.
	Observe func(ctx context.Context, c Call)
}

// Interceptor checks each call before and after its execution. A nil Interceptor allows all calls.
type Interceptor struct{ o Options }

// New creates an interceptor.
func New(o Options) *Interceptor { return &Interceptor{o} }

// Begin checks a call before its execution. It returns the call's context with the caller's identity, and whether
// Finish must be called even after success. The error is the status of a denied call.
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

// Identify returns the identity for a request other than a gRPC call, with the same values in its context. The
// identity is never nil.
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

// Finish is called after an audited or failed call. err is a status.
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

// Refused reports whether a call failed authentication or was denied.
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
