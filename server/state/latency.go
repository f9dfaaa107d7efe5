// SPDX-License-Identifier: Apache-2.0

package state

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets of a histogram: each power of two of microseconds is cut into so many. Up to 2^36 µs are told apart, which is
// 19 hours.
const (
	latencyStepsBits = 3
	latencySteps     = 1 << latencyStepsBits
	latencyBits      = 36
	latencyBuckets   = (latencyBits - latencyStepsBits + 1) * latencySteps
)

// Latencies count how long something took, to an eighth. Observe takes some 10 ns and allocates nothing. The zero value
// is empty. Safe for concurrent use.
type Latencies struct {
	counts [latencyBuckets]atomic.Uint64
}

// LatencyBucket is how many took as long as that.
type LatencyBucket struct {
	// UpTo is the upper end of the bucket.
	UpTo  time.Duration
	Count uint64
}

// Observe counts one.
func (l *Latencies) Observe(d time.Duration) { l.counts[latencyBucket(d)].Add(1) }

// Buckets are those that have counted anything, the shortest first.
func (l *Latencies) Buckets() []LatencyBucket {
	var out []LatencyBucket
	for i := range l.counts {
		if n := l.counts[i].Load(); n > 0 {
			out = append(out, LatencyBucket{UpTo: latencyUpTo(i), Count: n})
		}
	}
	return out
}

// latencyBucket is where a time is counted: below 8 µs each microsecond has its own bucket.
func latencyBucket(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 0))
	if us < latencySteps {
		return int(us)
	}
	shift := bits.Len64(us) - latencyStepsBits - 1
	return min((shift+1)*latencySteps+int(us>>shift)-latencySteps, latencyBuckets-1)
}

// latencyUpTo is the upper end of a bucket.
func latencyUpTo(bucket int) time.Duration {
	if bucket < latencySteps {
		return time.Duration(bucket+1) * time.Microsecond
	}
	shift := bucket/latencySteps - 1
	return time.Duration(bucket%latencySteps+latencySteps+1) << shift * time.Microsecond
}
