// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"
	"sync"

	"github.com/lockstep-mq/lockstep/store/index"
)

// SurveyResult is the result of Survey.
type SurveyResult struct {
	// Messages counts needed messages. DeadMessages counts messages that are stored but not needed.
	Messages, MessageBytes  uint64
	DeadMessages, DeadBytes uint64
	Candidates              []Candidate
}

// survey simulates rewrites with several page sizes in one pass.
type survey struct {
	c         *Checkpoint
	live      Liveness
	meter     *Meter
	tolerant  bool // corruption is counted; otherwise it ends the survey
	indexOnly bool // message sizes are estimated from the index
	sims      []*simulation
	histogram histogram
	found     SurveyResult
	alive     AliveSet

	damagedMessages uint64
	mu              sync.Mutex // guards problems
	problems        []string
}

// Survey computes the results of rewrites with the given page sizes. It does not read messages that are alone in their
// extent. It returns index.ErrDataLoss if a message that it must read is corrupt.
func (c *Checkpoint) Survey(ctx context.Context, live Liveness, sizes []int, m *Meter) (SurveyResult, error) {
	v := survey{c: c, live: live, meter: m}
	err := v.run(ctx, sizes)
	return v.found, err
}

// Estimate is Survey without reading messages. It assumes that all messages of an extent have the same size. The
// numbers of messages are exact.
func (c *Checkpoint) Estimate(ctx context.Context, live Liveness, sizes []int, m *Meter) (SurveyResult, error) {
	v := survey{c: c, live: live, meter: m, indexOnly: true}
	err := v.run(ctx, sizes)
	return v.found, err
}

func (v *survey) run(ctx context.Context, sizes []int) error {
	for _, size := range sizes {
		v.sims = append(v.sims, newSimulation(size, v.c.meta.Checkpoint+1))
	}
	if err := v.feed(ctx, nil, []byte{index.Letter}); err != nil {
		return err
	}
	o := WalkOptions{IndexOnly: v.indexOnly}
	if v.tolerant {
		o.Broken = func(id uint64, err error) { v.problem("index of queue %d: %v", id, err) }
	} else {
		o.Skip = func(e *index.Entry) bool { _, ok := e.RecordSize(); return ok }
	}
	if err := v.c.Extents(ctx, o, v.count); err != nil {
		return err
	}
	for _, s := range v.sims {
		if err := s.endExtent(); err != nil {
			return err
		}
	}
	if err := v.feed(ctx, []byte{index.Letter + 1}, nil); err != nil {
		return err
	}
	for _, s := range v.sims {
		c, err := s.candidate()
		if err != nil {
			return err
		}
		v.found.Candidates = append(v.found.Candidates, c)
	}
	return nil
}

// feed adds the tree entries outside the message index to the simulated trees.
func (v *survey) feed(ctx context.Context, from, to []byte) error {
	return v.c.CopyTree(ctx, from, to, func(key, value []byte) error {
		for _, s := range v.sims {
			if err := s.index.Bulk.Put(key, value); err != nil {
				return err
			}
		}
		return v.c.pace.Did(ctx, len(key)+len(value))
	})
}

// CopyTree calls put for each tree entry in [from, to); nil means unbounded.
func (c *Checkpoint) CopyTree(ctx context.Context, from, to []byte, put func(key, value []byte) error) error {
	it := c.view.Scan(from, to)
	for it.Next() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("copy tree: %w", err)
		}
		if err := put(it.Key(), it.Value()); err != nil {
			return fmt.Errorf("copy tree: %w", err)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("copy tree: %w", err)
	}
	return nil
}

func (v *survey) problem(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.problems) < maxProblems {
		v.problems = append(v.problems, fmt.Sprintf(format, args...))
	}
}

func (v *survey) count(e *index.Entry, payload []byte, err error) error {
	if lerr := v.live.Of(e, &v.alive); lerr != nil {
		if !v.tolerant {
			return lerr
		}
		v.problem("%v", lerr)
		return nil
	}
	before, found := v.found.MessageBytes, uint64(0)
	switch size, single := e.RecordSize(); {
	case err == nil && payload == nil && single:
		err = v.message(e, e.First, size)
	case err == nil && v.indexOnly:
		v.found.DeadMessages += e.Count - min(v.alive.n, e.Count) // the copy detects a wrong entry
		err = v.meanSizes(e, func(seq uint64, size int) error { return v.message(e, seq, size) })
	case err == nil:
		err = index.RecordSizes(payload, func(seq uint64, size int) error {
			if v.alive.Has(seq) {
				found++
			}
			return v.message(e, seq, size)
		})
		if err == nil && found != v.alive.n {
			err = fmt.Errorf("%w: expected %d messages, found %d", index.ErrDataLoss, v.alive.n, found)
		}
	}
	if err != nil {
		if err := v.damaged(e, err, found); err != nil {
			return err
		}
	}
	v.meter.Did(uint64(e.Extent.Pages), v.alive.n, v.found.MessageBytes-before)
	return nil
}

// damaged records an extent with unreadable messages; found is the number of its needed messages that were read. If
// found is 0, damaged adds the needed messages to the simulations with their mean size according to the index entry.
// If the survey is not tolerant, damaged returns an error.
func (v *survey) damaged(e *index.Entry, err error, found uint64) error {
	err = fmt.Errorf("%w: queue %d, sequences %d to %d: %w", index.ErrDataLoss, e.Queue, e.First, e.Last(), err)
	if !v.tolerant {
		return err
	}
	v.problem("%v", err)
	v.damagedMessages += v.alive.n - found
	if found > 0 {
		return nil
	}
	return v.meanSizes(e, func(seq uint64, size int) error {
		for _, s := range v.sims {
			if err := s.message(e.Queue, seq, size); err != nil {
				return err
			}
		}
		return nil
	})
}

// meanSizes calls fn for each needed message of an extent, with the mean size according to the index entry.
func (v *survey) meanSizes(e *index.Entry, fn func(seq uint64, size int) error) error {
	size := int((e.Bytes+e.Count-1)/e.Count) - 1 // without the sequence of the record, which has one byte or more
	for i := range e.Span {
		if seq := e.First + i; v.alive.Has(seq) {
			if err := fn(seq, size); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *survey) message(e *index.Entry, seq uint64, size int) error {
	if !v.alive.Has(seq) {
		v.found.DeadMessages++
		v.found.DeadBytes += uint64(size)
		return nil
	}
	v.found.Messages++
	v.found.MessageBytes += uint64(size)
	v.histogram.add(size)
	for _, s := range v.sims {
		if err := s.message(e.Queue, seq, size); err != nil {
			return err
		}
	}
	return nil
}
