// SPDX-License-Identifier: Apache-2.0

// Package bench measures Lockstep: rates, latencies and resource usage.
//
// result.go defines the results, and meter.go reads process usage. publish.go, consume.go and failover.go load a
// running node or pair through the client.
package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// Target is the system under test.
type Target struct {
	Client *client.Client
	// Setup is "pair", "standalone" or "remote".
	Setup string
	// Sync is the sync mode, if it is known.
	Sync string
	// Processes maps names to the IDs of the processes to measure. The current process is added as "client".
	Processes map[string]int
	// Dir contains the data of the processes. The disk that contains Dir is measured; if Dir is empty, no disk is.
	Dir string
	// Pair is the pair that was started for the measurement; nil if the nodes were already running.
	Pair *harness.Pair
}

// Latencies are recorded in microseconds, from 1 µs to maxLatency, with 3 significant digits.
const maxLatency = 5 * time.Minute

// NewHistogram returns an empty histogram of latencies.
func NewHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, maxLatency.Microseconds(), 3)
}

// Record adds the latency d to h, clamped to the range of h.
func Record(h *hdrhistogram.Histogram, d time.Duration) {
	// RecordValue does not fail within the range.
	_ = h.RecordValue(min(max(d.Microseconds(), 1), maxLatency.Microseconds()))
}

// Body returns an incompressible message body.
func Body(sizeBytes int) []byte {
	b := make([]byte, sizeBytes)
	_, _ = rand.Read(b) // returns no error: a failure ends the process
	return b
}

// QueueNames returns the names of the n queues of a benchmark.
func QueueNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("bench-%d", i)
	}
	return out
}

// WithQueues creates queues with the default configuration, runs fn, and deletes the queues. It first deletes existing
// queues with these names.
func WithQueues(ctx context.Context, c *client.Client, names []string, fn func() error) error {
	return withConfigured(ctx, c, names, admin.QueueConfig{}, fn)
}

// withConfigured is WithQueues with a configuration for the queues.
func withConfigured(ctx context.Context, c *client.Client, names []string, config admin.QueueConfig,
	fn func() error,
) (err error) {
	for _, name := range names {
		if _, err := admin.New(c).DeleteQueue(ctx, name, false); err != nil && !IsNotFound(err) {
			return err
		}
		if _, _, err := admin.New(c).CreateQueue(ctx, name, admin.CreateQueueOptions{Config: config}); err != nil {
			return err
		}
	}
	defer func() {
		for _, name := range names {
			if _, derr := admin.New(c).DeleteQueue(ctx, name, false); derr != nil && err == nil {
				err = derr
			}
		}
	}()
	return fn()
}
