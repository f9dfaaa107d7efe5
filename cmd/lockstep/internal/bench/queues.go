package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// QueuesOptions say how to load a store with many queues.
type QueuesOptions struct {
	EmbeddedOptions
	// Queues to make; each gets one message, and then Messages go round all of them.
	Queues, Messages int
}

// createAtOnce is how many queues are made with one sync.
const createAtOnce = 1000

// Queues compares a store with one queue with one that has many. Results: "one queue" publishes Messages to the only queue; "create"
// makes the queues; "one each" publishes one message to each; "round robin" publishes Messages, each to the next queue, and Ratio
// compares it with "one queue"; "start" opens the store again, with the heap that each queue takes then.
func Queues(ctx context.Context, o QueuesOptions, report func(Result) error) error {
	if o.Queues < 1 {
		return errors.New("at least one queue is needed")
	}
	dir := o.Dir
	var one Result
	o.Dir = filepath.Join(dir, "one")
	empty, err := queuesOfOne(ctx, o, &one)
	if err != nil {
		return err
	}
	if err := report(one); err != nil {
		return err
	}
	o.Dir = filepath.Join(dir, "many")
	return queuesOfMany(ctx, o, &one, empty, report)
}

// queuesOfOne measures one queue, and the heap of a store that has nothing but it.
func queuesOfOne(ctx context.Context, o QueuesOptions, out *Result) (heap uint64, err error) {
	e, err := openEmbedded(o.EmbeddedOptions)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.createQueue("bench"); err != nil {
		return 0, err
	}
	if err := e.reopen(ctx); err != nil {
		return 0, err
	}
	heap = heapInUse()
	*out = e.result("queues", "one queue")
	out.Queues = 1
	return heap, e.measure(out, func(r *Result) error { return e.write(ctx, o.Messages, r) })
}

func queuesOfMany(ctx context.Context, o QueuesOptions, one *Result, empty uint64, report func(Result) error) (err error) {
	e, err := openEmbedded(o.EmbeddedOptions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	for _, phase := range []struct {
		name string
		run  func(*Result) error
	}{
		{"create", func(r *Result) error { return e.createQueues(ctx, o.Queues, r) }},
		{"one each", func(r *Result) error { return e.roundRobin(ctx, o.Queues, o.Queues, r) }},
		{"round robin", func(r *Result) error {
			err := e.roundRobin(ctx, o.Queues, o.Messages, r)
			r.Ratio, r.Note = r.Rate/one.Rate, joinNotes(e.note, "ratio to one queue")
			return err
		}},
		{"start", func(r *Result) error {
			if err := e.reopen(ctx); err != nil {
				return err
			}
			r.Seconds = e.opened.Seconds()
			r.StartMS = r.Seconds * 1000
			r.QueueBytes = (float64(heapInUse()) - float64(empty)) / float64(o.Queues)
			return nil
		}},
	} {
		result := e.result("queues", phase.name)
		result.Queues = o.Queues
		if err := e.measure(&result, phase.run); err != nil {
			return err
		}
		if err := report(result); err != nil {
			return err
		}
	}
	return nil
}

// createQueues makes queues 1 to n, each in a transaction of its own.
func (e *embedded) createQueues(ctx context.Context, n int, out *Result) error {
	h, start := newHistogram(), time.Now()
	for done := 0; done < n; done += createAtOnce {
		if err := ctx.Err(); err != nil {
			return err //nolint:wrapcheck // Ctrl-C
		}
		begin := time.Now()
		err := e.commitMany(min(createAtOnce, n-done), func(i int) {
			e.builder.CreateQueue(fmt.Sprintf("bench-%d", done+i), txn.Config{}, "default")
		})
		if err != nil {
			return err
		}
		record(h, time.Since(begin))
	}
	out.took(time.Since(start), n, h)
	return nil
}

// roundRobin publishes message after message, each to the next of the queues.
func (e *embedded) roundRobin(ctx context.Context, queues, messages int, out *Result) error {
	return e.transactions(ctx, messages, out, func(now int64, done, n int) {
		for i := range n {
			e.builder.BeginPublish(uint64((done+i)%queues) + firstQueue)
			e.builder.Message(now, nil, e.body)
			e.builder.EndPublish()
		}
	})
}

// reopen closes the store with a checkpoint, and opens it again.
func (e *embedded) reopen(ctx context.Context) error {
	if _, err := e.store.Checkpoint(ctx); err != nil {
		return err
	}
	if err := e.close(); err != nil {
		return err
	}
	runtime.GC() // what the closed one had is not to be collected while the new one is opened
	if err := e.open(); err != nil {
		return fmt.Errorf("open the store again: %w", err)
	}
	return nil
}

// heapInUse returns the bytes of the objects that are in use.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // what had a finalizer goes with the second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
