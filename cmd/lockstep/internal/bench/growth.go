package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// GrowthOptions say how large the stores are that are compared.
type GrowthOptions struct {
	EmbeddedOptions
	// Levels are the numbers of messages stored before the measurement, each in a store of its own.
	Levels []int
	// Messages to publish then, and Acks to make, each of a message chosen by chance.
	Messages, Acks int
}

// fillBatch is how many messages a transaction has that only fills the store.
const fillBatch = 1000

// Growth measures what publishing costs when so much is stored already, and acknowledging in random order. Two results for each level,
// "publish" and "ack random"; Ratio compares the rate with that of the first level.
func Growth(ctx context.Context, o GrowthOptions, report func(Result) error) error {
	var first [2]float64
	dir := o.Dir
	for i, level := range o.Levels {
		o.Dir = filepath.Join(dir, strconv.Itoa(i))
		err := growthLevel(ctx, o, level, func(phase int, r Result) error {
			if i == 0 {
				first[phase] = r.Rate
			}
			r.Ratio = r.Rate / first[phase]
			r.Note = joinNotes(r.Note, "ratio to the first level")
			return report(r)
		})
		if err != nil {
			return err
		}
		if err := os.RemoveAll(o.Dir); err != nil { // the levels together may not fit
			return fmt.Errorf("growth: %w", err)
		}
	}
	return nil
}

func growthLevel(ctx context.Context, o GrowthOptions, level int, report func(phase int, r Result) error) (err error) {
	e, err := openEmbedded(o.EmbeddedOptions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.createQueue("bench"); err != nil {
		return err
	}
	if err := e.fill(ctx, level); err != nil {
		return err
	}
	publish := e.result("growth", "publish")
	publish.Stored = level
	if err := e.measure(&publish, func(r *Result) error { return e.write(ctx, o.Messages, r) }); err != nil {
		return err
	}
	if err := report(0, publish); err != nil {
		return err
	}
	acks := e.result("growth", "ack random")
	acks.Stored = level + o.Messages
	order := randomOrder(level+o.Messages, min(o.Acks, level+o.Messages))
	if err := e.measure(&acks, func(r *Result) error { return e.ackAll(ctx, order, r) }); err != nil {
		return err
	}
	return report(1, acks)
}

// fill writes messages that are not measured, and a checkpoint.
func (e *embedded) fill(ctx context.Context, messages int) error {
	batch := e.Batch
	defer func() { e.Batch = batch }()
	e.Batch = fillBatch
	if err := e.write(ctx, messages, &Result{}); err != nil {
		return err
	}
	_, err := e.store.Checkpoint(ctx)
	return err
}

// ackAll acknowledges sequences of the first queue in the given order.
func (e *embedded) ackAll(ctx context.Context, order []uint64, out *Result) error {
	return e.transactions(ctx, len(order), out, func(_ int64, done, n int) {
		for _, seq := range order[done : done+n] {
			e.builder.Ack(firstQueue, firstSub, txn.Range{First: seq, Last: seq})
		}
	})
}

// randomOrder gives count different numbers from 1 to n in an order that is the same each time.
func randomOrder(n, count int) []uint64 {
	rng := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // an order, not a secret
	// Fisher and Yates, of which only what was moved is held.
	moved := make(map[int]int, 2*count)
	at := func(i int) int {
		if v, ok := moved[i]; ok {
			return v
		}
		return i
	}
	order := make([]uint64, count)
	for i := range order {
		j := i + rng.IntN(n-i)
		vi, vj := at(i), at(j)
		moved[j] = vi
		delete(moved, i)
		order[i] = uint64(vj) + 1
	}
	return order
}
