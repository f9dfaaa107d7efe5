// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math"
	"time"
)

// Indexes of the values of an interval.
const (
	published = iota // messages per second, like the next two values
	delivered
	acknowledged
	messages // at the end of the interval, like the next two values
	size     // in bytes
	age      // in seconds
	valueCount
)

const (
	// Interval is the sampling interval. It is also the resolution of points that are not older than Recent.
	Interval = 10 * time.Second
	// Recent is the maximum age of points with the resolution Interval.
	Recent = time.Hour
	// DayInterval is the resolution of older points.
	DayInterval = time.Minute
	// Day is the maximum age of a point.
	Day = 24 * time.Hour

	chunkSlots    = 64 // so that a chunk fits a size class of the allocator
	recentChunks  = 6  // at least Recent
	dayChunks     = 23 // at least Day
	slotsInMinute = int64(DayInterval / Interval)
)

// values contains the values of an interval. NaN means unknown.
type values [valueCount]float32

func unknown() values {
	nan := float32(math.NaN())
	return values{nan, nan, nan, nan, nan, nan}
}

// known reports whether the interval has values.
func (v *values) known() bool { return !isNaN(v[messages]) }

func isNaN(f float32) bool { return f != f }

// ring contains the values of the newest intervals. An interval is identified by its slot: the number of
// intervals from the Unix epoch to its end. A chunk is allocated when one of its slots is first set.
type ring struct {
	chunks []*[chunkSlots]values
	newest int64 // slot of the newest interval; 0 if the ring is empty
}

func newRing(chunks int) ring { return ring{chunks: make([]*[chunkSlots]values, chunks)} }

func (r *ring) slots() int64 { return int64(len(r.chunks)) * chunkSlots }

// set sets the values of a slot. If the slot is later than the newest slot, the slots between them become unknown. A
// slot that is too old for the ring clears the ring.
func (r *ring) set(slot int64, v values) {
	switch n := r.slots(); {
	case r.newest == 0 || slot >= r.newest+n || slot <= r.newest-n:
		clear(r.chunks)
		r.newest = slot
	case slot > r.newest:
		for s := r.newest + 1; s < slot; s++ {
			if chunk, at := r.locate(s); r.chunks[chunk] != nil {
				r.chunks[chunk][at] = unknown()
			}
		}
		r.newest = slot
	}
	chunk, at := r.locate(slot)
	if r.chunks[chunk] == nil {
		r.chunks[chunk] = new([chunkSlots]values)
		for i := range r.chunks[chunk] {
			r.chunks[chunk][i] = unknown()
		}
	}
	r.chunks[chunk][at] = v
}

func (r *ring) locate(slot int64) (chunk, at int64) {
	i := slot % r.slots()
	return i / chunkSlots, i % chunkSlots
}

func (r *ring) get(slot int64) values {
	if r.newest == 0 || slot > r.newest || slot <= r.newest-r.slots() {
		return unknown()
	}
	chunk, at := r.locate(slot)
	if r.chunks[chunk] == nil {
		return unknown()
	}
	return r.chunks[chunk][at]
}

// copyFrom returns the values from the given slot on. It omits leading and trailing unknown slots.
func (r *ring) copyFrom(slot int64) (out Range) {
	if r.newest == 0 {
		return out
	}
	for s := max(slot, r.newest-r.slots()+1); s <= r.newest; s++ {
		v := r.get(s)
		if len(out.Values) == 0 {
			if !v.known() {
				continue
			}
			out.First = s
		}
		out.Values = append(out.Values, v[:]...)
	}
	return out
}

// paste sets the known values of a range. It ignores invalid ranges.
func (r *ring) paste(from Range) {
	n := int64(len(from.Values) / valueCount)
	if from.First <= 0 || n > r.slots() || from.First > math.MaxInt64-n {
		return
	}
	for i := range n {
		if v := values(from.Values[i*valueCount : (i+1)*valueCount]); v.known() {
			r.set(from.First+i, v)
		}
	}
}

// slotAt returns the slot with the end that is nearest to t.
func slotAt(t time.Time) int64 {
	return (t.UnixMilli() + Interval.Milliseconds()/2) / Interval.Milliseconds()
}
