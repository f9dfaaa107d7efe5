// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// QueuesOptions configures the load on a store with many queues.
type QueuesOptions struct {
	EmbeddedOptions
	// Queues is the number of queues; each gets one message. Messages is the number of messages per slice, Slices the
	// number of slices.
	Queues, Messages, Slices int
}

// createAtOnce is the number of queues that are created with one sync.
const createAtOnce = 1000

// Queues compares a store with many queues to a store with one queue. It reports these phases:
//   - "create" creates the queues
//   - "one each" publishes one message to each queue
//   - "one queue" publishes Messages per slice to the store with one queue
//   - "round robin" publishes Messages per slice to the many queues in turn
//   - "start" reopens the store with many queues
//
// The slices of "one queue" and "round robin" alternate, and each includes a checkpoint. Ratio and CPURatio of "round
// robin" are relative to "one queue", as in Growth. QueueBytes of "round robin" and "start" is the heap per queue at
// the end of the phase.
func Queues(ctx context.Context, o QueuesOptions, report func(bench.Result) error) (err error) {
	if o.Queues < 1 || o.Slices < 1 {
		return errors.New("at least one queue and one slice are required")
	}
	stores := make([]*turner, 0, 2)
	defer func() {
		for _, s := range stores {
			err = errors.Join(err, s.e.close())
		}
	}()
	for _, name := range []string{"one", "many"} {
		e := o.EmbeddedOptions
		e.Dir = filepath.Join(o.Dir, name)
		opened, err := openEmbedded(e)
		if err != nil {
			return err
		}
		stores = append(stores, &turner{e: opened})
	}
	one, many := stores[0], stores[1]
	if err := one.e.createQueue("bench"); err != nil {
		return err
	}
	if err := one.e.reopen(ctx); err != nil {
		return err
	}
	empty := heapInUse()
	phase := func(name string, run func(*bench.Result) error) error {
		result := many.e.result("queues", name)
		if err := many.e.measure(&result, run); err != nil {
			return err
		}
		result.Queues = o.Queues
		return report(result)
	}
	if err := phase("create", func(r *bench.Result) error { return many.e.createQueues(ctx, o.Queues, r) }); err != nil {
		return err
	}
	err = phase("one each", func(r *bench.Result) error { return many.e.roundRobin(ctx, o.Queues, o.Queues, r) })
	if err != nil {
		return err
	}
	if err := publishInTurns(ctx, o, one, many, empty, report); err != nil {
		return err
	}
	return phase("start", func(r *bench.Result) error {
		if err := many.e.reopen(ctx); err != nil {
			return err
		}
		r.Seconds = many.e.opened.Seconds()
		r.StartMS = r.Seconds * 1000
		r.QueueBytes = (float64(heapInUse()) - float64(empty)) / float64(o.Queues)
		return nil
	})
}

// publishInTurns publishes slices to both stores in turn, and reports the results. It closes the store with one queue.
func publishInTurns(
	ctx context.Context, o QueuesOptions, one, many *turner, empty uint64, report func(bench.Result) error,
) error {
	err := takeTurns([]*turner{one, many}, "queues", "", o.Slices, func(t *turner, r *bench.Result) error {
		return t.e.withCheckpoint(ctx, o.Messages, r, func(r *bench.Result) error {
			if t == one {
				return t.e.write(ctx, o.Messages, r)
			}
			return t.e.roundRobin(ctx, o.Queues, o.Messages, r)
		})
	}, nil)
	if err != nil {
		return err
	}
	first := one.total(nil)
	first.Phase, first.Queues = "one queue", 1
	if err := report(first); err != nil {
		return err
	}
	round := many.total(one)
	round.Phase, round.Queues = "round robin", o.Queues
	round.Comment = joinNotes(round.Comment, "ratios to one queue")
	if err := one.e.close(); err != nil {
		return err
	}
	if heap := heapInUse(); heap > empty {
		round.QueueBytes = float64(heap-empty) / float64(o.Queues)
	}
	return report(round)
}

func (e *embedded) createQueues(ctx context.Context, n int, out *bench.Result) error {
	h, start := bench.NewHistogram(), time.Now()
	for done := 0; done < n; done += createAtOnce {
		if err := ctx.Err(); err != nil {
			return err
		}
		begin := time.Now()
		err := e.commitMany(min(createAtOnce, n-done), func(i int) {
			e.builder.CreateQueue(fmt.Sprintf("bench-%d", done+i), txn.Config{}, "default")
		})
		if err != nil {
			return err
		}
		bench.Record(h, time.Since(begin))
	}
	out.Duration(time.Since(start), n, h)
	return nil
}

func (e *embedded) roundRobin(ctx context.Context, queues, messages int, out *bench.Result) error {
	return e.transactions(ctx, messages, out, func(now int64, done, n int) {
		for i := range n {
			e.builder.BeginPublish(uint64((done+i)%queues) + firstQueue)
			e.builder.Message(now, nil, e.body)
			e.builder.EndPublish()
		}
	})
}

func (e *embedded) reopen(ctx context.Context) error {
	if _, err := e.store.Checkpoint(ctx); err != nil {
		return err
	}
	if err := e.close(); err != nil {
		return err
	}
	runtime.GC() // do not collect the closed store's memory while the new one is opened
	if err := e.open(); err != nil {
		return fmt.Errorf("open the store again: %w", err)
	}
	return nil
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // the second collection frees objects that had a finalizer
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
