// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

// turner is a store that is measured in slices. The slices of all stores alternate, so that the stores have the
// same disk and machine conditions.
type turner struct {
	e      *embedded
	slices []bench.Result
}

// takeTurns measures one slice of each store per turn. The first store of a turn is the last one in the next turn. If
// tidy is not nil, it is called after each slice, and not measured.
func takeTurns(
	stores []*turner, workload, phase string, turns int, slice func(*turner, *bench.Result) error,
	tidy func(*turner) error,
) error {
	for _, t := range stores {
		t.slices = nil
	}
	for turn := range turns {
		for i := range stores {
			t := stores[(i+turn)%len(stores)]
			r := t.e.result(workload, phase)
			if err := t.e.measure(&r, func(r *bench.Result) error { return slice(t, r) }); err != nil {
				return err
			}
			t.slices = append(t.slices, r)
			if tidy == nil {
				continue
			}
			if err := tidy(t); err != nil {
				return err
			}
		}
	}
	return nil
}

// total combines the slices: Rate is the median, CPU the total, and ReadBytes and WrittenBytes are per message over all
// slices. Ratio is the median of the ratios to the slices of first in the same turn. CPURatio is the ratio of the CPU
// time per message to that of first.
func (t *turner) total(first *turner) bench.Result {
	out := bench.Median(t.slices)
	out.Median = false // Median is set only for medians of rounds
	out.Messages, out.Seconds, out.CPU, out.DiskWritten, out.Processes = 0, 0, 0, 0, nil
	var read, written float64
	for _, r := range t.slices {
		out.Messages += r.Messages
		out.Seconds += r.Seconds
		out.CPU += r.CPU
		out.DiskWritten += r.DiskWritten
		out.PeakRSS = max(out.PeakRSS, r.PeakRSS)
		for _, u := range r.Processes {
			read, written = read+u.Read, written+u.Written
		}
	}
	if n := float64(out.Messages); n > 0 {
		out.ReadBytes, out.WrittenBytes = read*1e6/n, written*1e6/n
	}
	if first == nil {
		return out
	}
	ratios := make([]float64, len(t.slices))
	for i := range ratios {
		ratios[i] = t.slices[i].Rate / first.slices[i].Rate
	}
	slices.Sort(ratios)
	out.Ratio = ratios[(len(ratios)-1)/2]
	if f := first.total(nil); f.CPU > 0 && f.Messages > 0 {
		out.CPURatio = out.CPUPerMessage() / f.CPUPerMessage()
	}
	return out
}

// withCheckpoint measures fn, which processes count items, together with a checkpoint after it.
func (e *embedded) withCheckpoint(
	ctx context.Context, count int, out *bench.Result, fn func(*bench.Result) error,
) error {
	start := time.Now()
	if err := fn(out); err != nil {
		return err
	}
	if _, err := e.store.Checkpoint(ctx); err != nil {
		return err
	}
	out.Seconds = time.Since(start).Seconds()
	out.Rate = float64(count) / out.Seconds
	out.MB = out.Rate * float64(e.SizeBytes) / 1e6
	return nil
}
