// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
)

const (
	retryDelayMin = 5 * time.Millisecond
	retryDelayMax = 50 * time.Millisecond
)

type leaderFinder interface {
	// findLeader returns the leader's service and address; nil if no leader is known.
	findLeader(ctx context.Context) (service, string)
	// moved waits until a leader at another address than the given one is known, or ctx ends. An Admin waits only for the
	// end of ctx.
	moved(ctx context.Context, from string)
}

var _ leaderFinder = (*Voter)(nil)

func (v *Voter) findLeader(context.Context) (service, string) {
	switch l := v.leaders.Get(); {
	case l.address == "":
		return nil, ""
	case l.id == v.disk.id:
		return v, l.contact()
	case l.via != "":
		return &remote{peers: v.peers, address: l.via, forward: true}, l.via
	default:
		return v.peers.at(l.address), l.address
	}
}

func (v *Voter) moved(ctx context.Context, from string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for l := range v.leaders.Watch(ctx) {
		if l.address != "" && l.contact() != from {
			return
		}
	}
}

// atLeader calls do with the current leader's service. It retries until do succeeds, the request is rejected, or ctx
// ends. A try ends when the leader changes, or after limit, if limit is not 0. outcomeUnknown reports whether a try
// received no response and may have been applied.
func atLeader(
	ctx context.Context, g leaderFinder, limit time.Duration, do func(context.Context, service) error,
) (outcomeUnknown bool, err error) {
	last := ErrNoQuorum
	for pause := retryDelayMin; ctx.Err() == nil; pause = min(2*pause, retryDelayMax) {
		s, address := g.findLeader(ctx)
		if s == nil {
			last = ErrNoQuorum
		} else {
			err := once(ctx, g, limit, address, func(ctx context.Context) error { return do(ctx, s) })
			if err == nil || final(err) {
				return outcomeUnknown, err
			}
			outcomeUnknown = outcomeUnknown || !notApplied(err)
			last = err
		}
		limited, cancel := context.WithTimeout(ctx, pause)
		g.moved(limited, address)
		cancel()
	}
	return outcomeUnknown, fmt.Errorf("%w: %w", last, context.Cause(ctx))
}

func once(
	ctx context.Context, g leaderFinder, limit time.Duration, address string, do func(context.Context) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	if limit > 0 {
		defer time.AfterFunc(limit, cancel).Stop()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.moved(ctx, address)
		cancel()
	}()
	defer func() {
		cancel()
		<-done
	}()
	return do(ctx)
}

func final(err error) bool {
	return errors.Is(err, failover.ErrConflict) || errors.Is(err, failover.ErrRefused) ||
		errors.Is(err, ErrMembership) || errors.Is(err, ErrNotMember)
}

// notApplied reports whether the request certainly had no effect.
func notApplied(err error) bool {
	var op *net.OpError
	return errors.Is(err, errNotLeader) || errors.Is(err, errRefused) || errors.As(err, &op) && op.Op == "dial"
}
