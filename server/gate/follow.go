// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/access"
	"github.com/lockstep-mq/lockstep/server/wire"
)

const (
	// lookEvery is how often it is looked whether the identity of a running stream still holds.
	lookEvery = 500 * time.Millisecond
	// endLimit is how long the handler of a stream may take to end then. It says how far the stream has come; a client
	// that is not told must take what was not answered for uncertain.
	endLimit = 100 * time.Millisecond
)

// Follow runs the handler of a stream until it ends, or until its caller is not who it was any more, or may not do what
// the method asks any more. Streams that publish and consume look at the rules of their queues by themselves.
func (g *Gate) Follow(ctx context.Context, method string, handle func(context.Context) error) error {
	over := access.FromContext(ctx).Over
	ctx, lost, changed := g.rights(ctx, method)
	if over == nil && lost == nil {
		return handle(ctx)
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	// When this call returns without it, the stream's context ends, and with it the handler.
	go func() { done <- handle(inner) }()
	var ticks <-chan time.Time
	if over != nil {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		var why error
		next := changed()
		if lost != nil {
			why = lost()
		}
		if why == nil {
			select {
			case err := <-done:
				return err
			case <-next:
				continue
			case <-ticks:
				why = over()
			}
		}
		if why == nil {
			continue
		}
		cancel()
		select {
		case err := <-done:
			if err == nil && lost != nil { // its handler takes the end of its context for a client that is done
				return wire.ToStatus(why)
			}
			return ended(why, err)
		case <-time.After(endLimit):
			return wire.ToStatus(why)
		}
	}
}

// rights finds out how a stream may lose its right: lost tells why it has, and changed when to look again. lost is nil
// if it cannot, or sees to it by itself. A handler that finds out later which queue it is about adds that with
// access.WhileMay.
func (g *Gate) rights(ctx context.Context, method string) (
	_ context.Context, lost func() error, changed func() <-chan struct{},
) {
	never := func() <-chan struct{} { return nil }
	need, known := access.NeedOf(method)
	if g == nil || g.o.Rules == nil || !known || need.Anyone || need.Right == access.Peer ||
		need.PerQueue && need.Right != access.Browse {
		return ctx, nil, never
	}
	held := &access.Held{}
	return access.WithHeld(ctx, held), func() error {
		err := g.check(ctx, need, true, method)
		if err == nil {
			err = held.Check()
		}
		if err != nil {
			return fmt.Errorf("the rules were changed: %w", err)
		}
		return nil
	}, g.o.Rules.Changed
}

// ended is the status of a stream whose identity holds no longer: why, with what the handler says of how far it has
// come.
func ended(why, err error) error {
	if err == nil {
		return nil // the client was done
	}
	why = wire.ToStatus(why)
	for _, d := range status.Convert(err).Details() {
		if s, is := d.(*pb.Submitted); is {
			return wire.WithSubmitted(why, s.GetThrough())
		}
	}
	return why
}
