// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
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

// Follow runs the handler of a stream for as long as the identity in ctx holds, and ends the stream when it does not
// any more. Streams of identities that cannot end cost nothing.
func (g *Gate) Follow(ctx context.Context, handle func(context.Context) error) error {
	over := access.FromContext(ctx).Over
	if over == nil {
		return handle(ctx)
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	// When this call returns without it, the stream's context ends, and with it the handler.
	go func() { done <- handle(inner) }()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-ticker.C:
		}
		why := over()
		if why == nil {
			continue
		}
		cancel()
		select {
		case err := <-done:
			return ended(why, err)
		case <-time.After(endLimit):
			return wire.ToStatus(why)
		}
	}
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
