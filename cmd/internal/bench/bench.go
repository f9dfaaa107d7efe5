// SPDX-License-Identifier: Apache-2.0

// Package bench measures Lockstep: rates, latencies, and what they cost.
//
// result.go is what a measurement tells, meter.go reads the processes. publish.go, consume.go, fanout.go, mixed.go,
// expire.go, pagesize.go, knobs.go and failover.go load a running node or pair through the client; bound.go relays that
// store nothing; store.go, queues.go and growth.go the embedded store alone, in one goroutine. peer.go runs another
// product's benchmark, and compare.go puts both side by side.
package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// Target is what is loaded, and who it is.
type Target struct {
	// Client of the node or pair.
	Client *client.Client
	// Setup is "pair", "standalone" or "remote".
	Setup string
	// Sync is the sync mode, if it is known.
	Sync string
	// Processes to measure, by name; this one, "client", is added.
	Processes map[string]int
	// Dir with their data, to measure its disk; may be empty.
	Dir string
	// Pair that was started for it; nil when it ran already.
	Pair *harness.Pair
}

// latencies are recorded in microseconds, from 1 µs to 5 minutes, with 3 digits.
const maxLatency = 5 * time.Minute

// NewHistogram returns an empty histogram of latencies.
func NewHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, maxLatency.Microseconds(), 3)
}

// Record adds a latency to a histogram.
func Record(h *hdrhistogram.Histogram, d time.Duration) {
	// Within these bounds it cannot fail.
	_ = h.RecordValue(min(max(d.Microseconds(), 1), maxLatency.Microseconds()))
}

// Body makes a message that does not compress.
func Body(sizeBytes int) []byte {
	b := make([]byte, sizeBytes)
	_, _ = rand.Read(b) // never fails: it would end the process
	return b
}

// QueueNames are the queues of one run.
func QueueNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("bench-%d", i)
	}
	return out
}

// WithQueues is withConfigured for plain queues.
func WithQueues(ctx context.Context, c *client.Client, names []string, fn func() error) error {
	return withConfigured(ctx, c, names, client.QueueConfig{}, fn)
}

// withConfigured runs fn with fresh queues, which are deleted after it.
func withConfigured(ctx context.Context, c *client.Client, names []string, config client.QueueConfig,
	fn func() error,
) (err error) {
	for _, name := range names {
		if _, err := c.DeleteQueue(ctx, name, false); err != nil && !IsNotFound(err) {
			return err
		}
		if _, _, err := c.CreateQueue(ctx, name, client.CreateQueueOptions{Config: config}); err != nil {
			return err
		}
	}
	defer func() {
		for _, name := range names {
			if _, derr := c.DeleteQueue(ctx, name, false); derr != nil && err == nil {
				err = derr
			}
		}
	}()
	return fn()
}
