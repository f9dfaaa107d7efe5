// SPDX-License-Identifier: Apache-2.0

// Package gate stands before every call of a node: it finds out who calls, refuses what the caller has no right to, and
// tells the audit.
package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/server/access"
	"github.com/lockstep-mq/lockstep/server/wire"
)

// Authenticator finds out who calls from what the call's context has of the connection and its metadata. nil means that
// nothing of its kind was shown; an error, that what was shown is not true.
type Authenticator func(ctx context.Context) (*access.Identity, error)

// Call is one call that has ended, or that was refused.
type Call struct {
	// Identity of the caller.
	Identity *access.Identity
	// Method is its full name, such as /lockstep.v1.QueueService/CreateQueue.
	Method string
	// Request is nil for a stream of requests, and for a call that was refused before it was read.
	Request any
	// Began is when it came.
	Began time.Time
	// Err is how it ended: nil, or a status.
	Err error
}

// Options of a Gate.
type Options struct {
	// Authenticators are asked in turn; the first that knows the caller counts.
	Authenticators []Authenticator
	// Rules say who may do what; nil: there are none.
	Rules *access.Rules
	// Stranger says why a caller that no authenticator knows as the other node is refused what is between the nodes.
	// Nil: everyone may call that.
	Stranger func(ctx context.Context) error
	// Observe is told of calls that are audited and of refusals; nil for none. It must not block.
	Observe func(ctx context.Context, c Call)
}

// Gate is made by New. A nil Gate lets everything pass.
type Gate struct{ o Options }

// New makes a gate.
func New(o Options) *Gate { return &Gate{o} }

// Enter is called before a call is carried out. It returns the context to carry it out with, and whether Left is to be
// called; or the status to refuse it with.
func (g *Gate) Enter(ctx context.Context, method string) (context.Context, bool, error) {
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
	err = wire.ToStatus(err)
	g.Left(ctx, method, nil, time.Now(), err)
	return ctx, false, err
}

func (g *Gate) authenticate(ctx context.Context) (context.Context, error) {
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

// Identify finds out who has made a request that is no call: its context has what a call's has. The identity is never
// nil.
func (g *Gate) Identify(ctx context.Context) (*access.Identity, error) {
	ctx, err := g.authenticate(ctx)
	return access.FromContext(ctx), err
}

func (g *Gate) check(ctx context.Context, need access.Need, known bool, method string) error {
	switch {
	case !known:
		return fmt.Errorf("%w: %s is not in the table of rights", access.ErrDenied, method)
	case need.Anyone:
		return nil
	case need.Right == access.Peer:
		if g.o.Stranger == nil || access.FromContext(ctx).Peer {
			return nil
		}
		return g.o.Stranger(ctx)
	case need.PerQueue || need.Right == 0:
		return g.o.Rules.Known(access.FromContext(ctx))
	}
	return g.o.Rules.Check(ctx, need.Right, "")
}

// Left is called after a call was carried out that is audited, or that ended with an error. err is a status.
func (g *Gate) Left(ctx context.Context, method string, request any, began time.Time, err error) {
	if g == nil || g.o.Observe == nil {
		return
	}
	if need, _ := access.NeedOf(method); !need.Audited && !Refused(err) {
		return
	}
	g.o.Observe(ctx, Call{
		Identity: access.FromContext(ctx), Method: method, Request: request, Began: began, Err: err,
	})
}

// Refused tells whether a call ended because of who called.
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
