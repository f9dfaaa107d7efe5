// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// GrowthOptions configures the sizes of the compared stores.
type GrowthOptions struct {
	EmbeddedOptions
	// Levels are the numbers of messages stored before the measurement, each in its own store. All stores are open.
	Levels []int
	// Messages and Acks are the numbers per slice. The acknowledged messages are chosen randomly. A slice includes a
	// checkpoint at its end.
	Messages, Acks int
	// Slices is the number of slices per level; the levels take turns.
	Slices int
}

// fillBatch is the number of messages per transaction while the store is filled.
const fillBatch = 1000

// Growth measures publishing, and acknowledging in random order, with different numbers of stored messages. The
// levels alternate slice by slice, so that they have the same disk conditions. After a slice of publishing, as many
// of the oldest messages are acknowledged. Growth reports two results for each level, "publish" and "ack random".
// Rate is the median of the slices; CPU and bytes are over all slices. Ratio is the median, over the turns, of the
// rate relative to the first level in the same turn. CPURatio is the CPU time per message relative to the first
// level.
func Growth(ctx context.Context, o GrowthOptions, report func(bench.Result) error) (err error) {
	levels, turns := make([]*growthLevel, len(o.Levels)), make([]*turner, len(o.Levels))
	defer func() {
		for _, l := range levels {
			if l != nil {
				err = errors.Join(err, l.e.close())
			}
		}
	}()
	of := func(t *turner) *growthLevel { return levels[slices.Index(turns, t)] }
	for i, stored := range o.Levels {
		l := o.EmbeddedOptions
		l.Dir = filepath.Join(o.Dir, strconv.Itoa(i))
		if levels[i], err = newGrowthLevel(ctx, l, stored); err != nil {
			return err
		}
		turns[i] = &levels[i].turner
	}
	for _, phase := range []struct {
		name  string
		slice func(*growthLevel, *bench.Result) error
		tidy  func(*growthLevel) error
	}{
		{
			"publish", func(l *growthLevel, r *bench.Result) error { return l.publish(ctx, o.Messages, r) },
			func(l *growthLevel) error { return l.drop(ctx, o.Messages) },
		},
		{
			"ack random", func(l *growthLevel, r *bench.Result) error { return l.ackRandom(ctx, o.Acks, o.Slices, r) },
			func(*growthLevel) error { return nil },
		},
	} {
		err := takeTurns(turns, "growth", phase.name, o.Slices,
			func(t *turner, r *bench.Result) error { return phase.slice(of(t), r) },
			func(t *turner) error { return phase.tidy(of(t)) })
		if err != nil {
			return err
		}
		for _, l := range levels {
			r := l.total(turns[0])
			r.Stored, r.Comment = l.stored, joinNotes(r.Comment, fmt.Sprintf("ratios to %d stored", levels[0].stored))
			if err := report(r); err != nil {
				return err
			}
		}
	}
	return nil
}

type growthLevel struct {
	turner
	stored      int
	first, next uint64   // range of the stored messages
	order       []uint64 // sequences in the order of their acknowledgement
}

func newGrowthLevel(ctx context.Context, o EmbeddedOptions, stored int) (*growthLevel, error) {
	e, err := openEmbedded(o)
	if err != nil {
		return nil, err
	}
	l := &growthLevel{turner: turner{e: e}, stored: stored, first: 1, next: uint64(stored) + 1}
	if err := errors.Join(e.createQueue("bench"), e.fill(ctx, stored)); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return l, nil
}

func (l *growthLevel) publish(ctx context.Context, messages int, out *bench.Result) error {
	l.next += uint64(messages)
	return l.e.withCheckpoint(ctx, messages, out, func(r *bench.Result) error { return l.e.write(ctx, messages, r) })
}

func (l *growthLevel) drop(ctx context.Context, messages int) error {
	last := l.first + uint64(messages) - 1
	if err := l.e.commit(func() {
		l.e.builder.Ack(firstQueue, firstSub,
			txn.Range{First: l.first, Last: last})
	}); err != nil {
		return err
	}
	l.first = last + 1
	_, err := l.e.store.Checkpoint(ctx)
	return err
}

func (l *growthLevel) ackRandom(ctx context.Context, acks, slices int, out *bench.Result) error {
	if l.order == nil {
		n := int(l.next - l.first)
		l.order = randomOrder(n, min(acks, n/slices)*slices)
	}
	n := len(l.order) / (slices - len(l.slices)) // evenly over the remaining slices
	order := l.order[:n]
	l.order = l.order[n:]
	return l.e.withCheckpoint(ctx, n, out, func(r *bench.Result) error {
		return l.e.transactions(ctx, n, r, func(_ int64, done, n int) {
			for _, i := range order[done : done+n] {
				seq := l.first + i - 1
				l.e.builder.Ack(firstQueue, firstSub, txn.Range{First: seq, Last: seq})
			}
		})
	})
}

// fill writes messages and a checkpoint outside the measurement.
func (e *embedded) fill(ctx context.Context, messages int) error {
	batch := e.Batch
	defer func() { e.Batch = batch }()
	e.Batch = fillBatch
	if err := e.write(ctx, messages, &bench.Result{}); err != nil {
		return err
	}
	_, err := e.store.Checkpoint(ctx)
	return err
}

// randomOrder returns count distinct numbers from 1 to n in a deterministic random order.
func randomOrder(n, count int) []uint64 {
	rng := rand.New(rand.NewPCG(3, 4))
	// Fisher–Yates shuffle that stores only the moved elements.
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
