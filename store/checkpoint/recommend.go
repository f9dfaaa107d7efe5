// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/units"
)

// recommend selects the page size that results in the smallest file, among the sizes up to MaxPageSize that require
// at most 1 % more reads. This file must be more than 1 % smaller than the result of a compact, and not larger than
// the current page.db. If no size meets these conditions, recommend selects the current size, even if it exceeds
// MaxPageSize.
func (r *ScanResult) recommend() {
	current := r.candidate(r.PageSize)
	if r.Messages+r.DamagedMessages == 0 {
		r.recommendEmpty(current)
		return
	}
	var best, smallest *Candidate
	for i := range r.Candidates {
		c := &r.Candidates[i]
		if c.PageSize > r.MaxPageSize || c == current {
			continue
		}
		if smallest == nil || c.FileBytes < smallest.FileBytes {
			smallest = c
		}
		if c.Extents <= current.Extents+current.Extents/100 && (best == nil || c.FileBytes < best.FileBytes) {
			best = c
		}
	}
	keep := best == nil || best.FileBytes+current.FileBytes/100 >= current.FileBytes || best.FileBytes > r.FileBytes
	switch {
	case !keep:
		r.choose(best, fmt.Sprintf("a resize to %d shrinks page.db to %s, a compact with the current page size to %s",
			best.PageSize, units.Bytes(best.FileBytes), units.Bytes(current.FileBytes)))
	case r.PageSize > r.MaxPageSize:
		r.choose(current, fmt.Sprintf("the current page size is kept, although it exceeds the limit of %d: %s; "+
			"to resize anyway: lockstep store resize --page-size", r.MaxPageSize, current.against(smallest)))
	case smallest != nil && smallest.FileBytes+current.FileBytes/100 < current.FileBytes:
		r.choose(current, "the current page size is kept: "+current.against(smallest))
	default:
		r.choose(current, "another page size has no advantage")
	}
	if c := r.candidate(r.Recommended); c == current && r.GainBytes > int64(r.FileBytes/100) {
		r.Note += fmt.Sprintf("; a compact shrinks page.db to %s from %s", units.Bytes(c.FileBytes),
			units.Bytes(r.FileBytes))
	}
}

// recommendEmpty recommends a page size for a file without messages: another one only if the current one exceeds the
// limit.
func (r *ScanResult) recommendEmpty(current *Candidate) {
	if r.PageSize <= r.MaxPageSize {
		r.choose(current, "no messages are stored: the current page size is kept")
		return
	}
	largest := current
	for i := range r.Candidates {
		if c := &r.Candidates[i]; c.PageSize <= r.MaxPageSize {
			largest = c
		}
	}
	r.choose(largest, "no messages are stored, and the current page size exceeds the limit")
}

func (r *ScanResult) candidate(pageSize int) *Candidate {
	i := slices.IndexFunc(r.Candidates, func(c Candidate) bool { return c.PageSize == pageSize })
	return &r.Candidates[i]
}

func (r *ScanResult) choose(c *Candidate, why string) {
	r.Recommended, r.Note = c.PageSize, why
	r.GainBytes = int64(r.FileBytes) - int64(c.FileBytes)
}

func (c *Candidate) against(other *Candidate) string {
	return fmt.Sprintf("the smallest allowed page.db, with page size %d, has %s and requires %d reads; with "+
		"page size %d it has %s and requires %d reads",
		other.PageSize, units.Bytes(other.FileBytes), other.Extents, c.PageSize, units.Bytes(c.FileBytes), c.Extents)
}
