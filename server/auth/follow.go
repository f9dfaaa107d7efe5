// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
)

const (
	checkInterval = 500 * time.Millisecond // interval of checks of the identity of a running stream
	// endLimit is the time in which the handler of an ended stream can return the progress of the stream.
	endLimit = 100 * time.Millisecond
)

// RunStream runs the handler of a stream. It ends the stream when the caller's identity becomes invalid, or when the
// caller loses the right that the method requires, unless the handler itself checks that right.
func (i *Interceptor) RunStream(ctx context.Context, method string, handle func(context.Context) error) error {
	over := access.FromContext(ctx).Expired
	ctx, lost := i.rights(ctx, method)
	if over == nil && lost == nil {
		return handle(ctx)
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	// If RunStream returns first, the context of the stream ends.
	go func() { done <- handle(inner) }()
	var ticks <-chan time.Time
	if over != nil {
		ticker := time.NewTicker(checkInterval)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		var reason error
		var next <-chan struct{}
		if lost != nil {
			next = i.o.Rules.Changed() // read before the check
			reason = lost()
		}
		if reason == nil {
			select {
			case err := <-done:
				return err
			case <-next:
				continue
			case <-ticks:
				reason = over()
			}
		}
		if reason == nil {
			continue
		}
		cancel()
		select {
		case err := <-done:
			if err == nil && lost != nil { // the handler treats the end of its context like the end of the client's requests
				return apierror.ToStatus(reason)
			}
			return ended(reason, err)
		case <-time.After(endLimit):
			return apierror.ToStatus(reason)
		}
	}
}

// rights returns a check that fails when the caller has lost the right that the stream requires. lost is nil if no
// right can be lost, or if the handler itself checks the right.
func (i *Interceptor) rights(ctx context.Context, method string) (_ context.Context, lost func() error) {
	need, known := access.NeedOf(method)
	if i == nil || i.o.Rules == nil || !known || need.Unauthenticated || need.Right == access.Peer ||
		need.PerQueue && need.Right != access.Browse {
		return ctx, nil
	}
	held := &access.StreamCheck{}
	return access.WithStreamCheck(ctx, held), func() error {
		err := i.check(ctx, need, true, method)
		if err == nil {
			err = held.Check()
		}
		if err != nil {
			return fmt.Errorf("access rules changed: %w", err)
		}
		return nil
	}
}

// ended returns the status of a stream that RunStream ended for the given reason. The status contains the progress
// in err, which the handler has returned.
func ended(reason, err error) error {
	if err == nil {
		return nil // the client had already finished
	}
	reason = apierror.ToStatus(reason)
	for _, d := range status.Convert(err).Details() {
		if s, is := d.(*pb.Submitted); is {
			return apierror.WithSubmitted(reason, s.GetThrough())
		}
	}
	return reason
}
