// SPDX-License-Identifier: Apache-2.0

// Package auth authenticates the caller of each call, checks its rights, and reports calls to the audit log.
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

// Authenticator determines the caller from the connection and the metadata in a call's context. It returns nil if there
// are no credentials of its kind, and an error if they are invalid.
type Authenticator func(ctx context.Context) (*access.Identity, error)

// Call is one finished or refused call.
type Call struct {
	Identity *access.Identity
	Method   string // the full name, such as /lockstep.v1.QueueService/CreateQueue
	Request  any    // nil for a stream of requests, and for a call refused before its request was read
	Began    time.Time
	Err      error // nil or a status
}

// Options configures New.
type Options struct {
	Authenticators []Authenticator // tried in order; the first identity is used
	Rules          *access.Rules   // may be nil
	// Unauthenticated returns why a caller is refused a call between nodes. nil: such calls are not restricted.
	Unauthenticated func(ctx context.Context) error
	// Observe is called for audited calls and for refusals, unless nil. It must not block.
	Observe func(ctx context.Context, c Call)
}

// Interceptor is created by New. A nil Interceptor admits all calls.
type Interceptor struct{ o Options }

// New creates an interceptor.
func New(o Options) *Interceptor { return &Interceptor{o} }

// Enter is called before a call is executed. It returns the call's context and whether Left must be called, or the
// status that refuses the call.
func (g *Interceptor) Enter(ctx context.Context, method string) (context.Context, bool, error) {
	if g == nil {
		return ctx, false, nil
	}
	need, known := access.NeedOf(method)
	audited := need.Audited && g.o.Observe != nil
	ctx, err := g.authenticate(ctx)
	if err == nil {
		err = g.check(ctx, need, known, method)
	}
	if err == nil {
		return ctx, audited, nil
	}
	err = apierror.ToStatus(err)
	g.Left(ctx, method, nil, time.Now(), err)
	return ctx, false, err
}

func (g *Interceptor) authenticate(ctx context.Context) (context.Context, error) {
	for _, known := range g.o.Authenticators {
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

// Identify returns the identity of a request that is not a call, but has the same values in its context. It is never
// nil.
func (g *Interceptor) Identify(ctx context.Context) (*access.Identity, error) {
	ctx, err := g.authenticate(ctx)
	return access.FromContext(ctx), err
}

func (g *Interceptor) check(ctx context.Context, need access.Need, known bool, method string) error {
	switch {
	case !known:
		return fmt.Errorf("%w: %s is not in the table of rights", access.ErrDenied, method)
	case need.Unauthenticated:
		return nil
	case need.Right == access.Peer:
		if g.o.Unauthenticated == nil || access.FromContext(ctx).Peer {
			return nil
		}
		return g.o.Unauthenticated(ctx)
	case need.PerQueue || need.Right == 0:
		return g.o.Rules.Known(access.FromContext(ctx))
	}
	return g.o.Rules.Check(ctx, need.Right, "")
}

// Left is called after an audited or failed call. err is a status.
func (g *Interceptor) Left(ctx context.Context, method string, request any, start time.Time, err error) {
	if g == nil || g.o.Observe == nil {
		return
	}
	if need, _ := access.NeedOf(method); !need.Audited && !Refused(err) {
		return
	}
	g.o.Observe(ctx, Call{
		Identity: access.FromContext(ctx), Method: method, Request: request, Began: start, Err: err,
	})
}

// Refused reports whether a call was refused because of its caller.
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
