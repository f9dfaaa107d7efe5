// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// The range between two consecutive powers of two, in microseconds, has latencySteps buckets. The last bucket
// ends at 2^36 µs (19 hours).
const (
	latencyStepsBits = 3
	latencySteps     = 1 << latencyStepsBits
	latencyBits      = 36
	latencyBuckets   = (latencyBits - latencyStepsBits + 1) * latencySteps
)

// Latencies is a histogram of durations with a relative error of at most one eighth. The zero value is an empty
// histogram. Latencies is safe for concurrent use.
type Latencies struct {
	counts [latencyBuckets]atomic.Uint64
}

// LatencyBucket counts the durations that are below UpTo and in no lower bucket.
type LatencyBucket struct {
	UpTo  time.Duration
	Count uint64
}

// Observe counts a duration.
func (l *Latencies) Observe(d time.Duration) { l.counts[latencyBucket(d)].Add(1) }

// Buckets returns the non-empty buckets in ascending order.
func (l *Latencies) Buckets() []LatencyBucket {
	var out []LatencyBucket
	for i := range l.counts {
		if n := l.counts[i].Load(); n > 0 {
			out = append(out, LatencyBucket{UpTo: latencyUpTo(i), Count: n})
		}
	}
	return out
}

// latencyBucket returns the index of the bucket for d. Below 16 µs, there is one bucket per microsecond.
func latencyBucket(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 0))
	if us < latencySteps {
		return int(us)
	}
	shift := bits.Len64(us) - latencyStepsBits - 1
	return min((shift+1)*latencySteps+int(us>>shift)-latencySteps, latencyBuckets-1)
}

func latencyUpTo(bucket int) time.Duration {
	if bucket < latencySteps {
		return time.Duration(bucket+1) * time.Microsecond
	}
	shift := bucket/latencySteps - 1
	return time.Duration(bucket%latencySteps+latencySteps+1) << shift * time.Microsecond
}
