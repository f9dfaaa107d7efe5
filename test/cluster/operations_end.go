// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// atEnd is the final state of the applications' queues.
type atEnd struct {
	left   []historycheck.Left // messages that SubWork has not acknowledged
	exists bool                // whether the queue that applications create and delete exists
}

// state returns a text that changes with any change of the applications' queues.
func (a *applications) state(ctx context.Context) (string, error) {
	var b strings.Builder
	for _, queue := range append(a.queues(), a.names.life) {
		q, err := admin.New(a.client).GetQueue(ctx, queue)
		if err != nil && (queue != a.names.life || !errors.Is(err, client.ErrQueueNotFound)) {
			return "", fmt.Errorf("applications: %w", err)
		}
		fmt.Fprint(&b, queue, " ", q.ID, " ", q.NextSequence)
		for _, s := range q.Subscriptions {
			fmt.Fprint(&b, " ", s.Name, " ", s.Backlog)
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// readEnd reads the final state of the applications, and calls read to read the contents of their queues. If an
// abandoned call is executed in the meantime, it repeats both.
func (a *applications) readEnd(ctx context.Context, read func(context.Context) ([]historycheck.Stored, error)) error {
	for {
		before, err := a.state(ctx)
		if err != nil {
			return err
		}
		var end atEnd
		whole := true
		for _, queue := range []string{a.names.in, a.names.purged} {
			left, all, err := a.receiveLeft(ctx, queue)
			if err != nil {
				return fmt.Errorf("read the rest of %s: %w", queue, err)
			}
			end.left = append(end.left, left...)
			whole = whole && all
		}
		_, err = admin.New(a.client).GetQueue(ctx, a.names.life)
		if end.exists = err == nil; err != nil && !errors.Is(err, client.ErrQueueNotFound) {
			return fmt.Errorf("applications: %w", err)
		}
		final, err := read(ctx)
		if err != nil {
			return err
		}
		after, err := a.state(ctx)
		if err != nil {
			return err
		}
		if whole && before == after {
			a.w.history.Edit(func(h *historycheck.History) {
				h.Left, h.Exists[a.names.life] = end.left, end.exists
				h.Final = append(h.Final, final...)
			})
			return nil
		}
		a.w.history.Edit(func(h *historycheck.History) { h.Calls[readAgain]++ })
	}
}

// readAgain is the name of the counter of final reads that were repeated because of a pending operation.
const readAgain = "final state read again"

// receiveLeft receives all messages of a queue that SubWork has not acknowledged. whole reports whether all of them
// were received.
func (a *applications) receiveLeft(
	ctx context.Context, queue string,
) (left []historycheck.Left, whole bool, err error) {
	q, err := admin.New(a.client).GetQueue(ctx, queue)
	if err != nil {
		return nil, false, err
	}
	i := slices.IndexFunc(q.Subscriptions, func(s admin.Subscription) bool { return s.Name == SubWork })
	want := q.Subscriptions[i].Backlog
	if want == 0 {
		return nil, true, nil
	}
	consumer, err := a.client.Consume(ctx, queue, client.ConsumerOptions{Subscription: SubWork, Prefetch: int(want)})
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = consumer.Close() }()
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for uint64(len(left)) < want {
		d, err := consumer.Receive(limited)
		if err != nil {
			return left, false, ctx.Err() // nil if fewer messages than expected arrived in time
		}
		left = append(left, historycheck.Left{Queue: queue, Sequence: d.Sequence})
	}
	return left, true, nil
}
