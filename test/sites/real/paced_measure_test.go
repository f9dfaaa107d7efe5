// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep && measure

package real

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// duration returns the duration in an environment variable, or standard if the variable is unset.
func duration(t *testing.T, variable string, standard time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, variable)
	return d
}

// integer returns the integer in an environment variable, or standard if the variable is unset.
func integer(t *testing.T, variable string, standard int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

// perSecond returns the rate of paced publishes.
func perSecond(t *testing.T) int {
	t.Helper()
	return integer(t, "LOCKSTEP_RATE", 2000)
}

// pairClient returns a client with the addresses of one pair.
func pairClient(t *testing.T, p *harness.Pair) *client.Client {
	t.Helper()
	c, err := client.OpenWith(t.Context(), client.Options{Addresses: p.Addresses(), FixedAddresses: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// paced publishes at a constant rate. The latency of a publish is measured from its planned time to its receipt.
type paced struct {
	t     *testing.T
	stop  chan struct{}
	ended sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	latencies []time.Duration
	err       error
}

func startPaced(t *testing.T, c *client.Client, queue string, rate int) *paced {
	t.Helper()
	producer, err := c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	type sent struct {
		planned time.Time
		pending *client.Pending
	}
	p := &paced{t: t, stop: make(chan struct{})}
	ctx := t.Context()
	all := make(chan sent, 1<<16)
	p.ended.Go(func() {
		defer close(all)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		began := time.Now()
		for n := 0; ; {
			select {
			case <-tick.C:
			case <-p.stop:
				return
			case <-ctx.Done():
				return
			}
			for time.Since(began) >= time.Duration(n)*time.Second/time.Duration(rate) {
				planned := began.Add(time.Duration(n) * time.Second / time.Duration(rate))
				all <- sent{planned, producer.PublishAsync(ctx, queue, client.Message{Body: body(n, smallBody)})}
				n++
			}
		}
	})
	p.ended.Go(func() {
		for s := range all {
			_, err := s.pending.Wait(ctx)
			p.mu.Lock()
			p.latencies = append(p.latencies, time.Since(s.planned))
			if err != nil {
				p.err = err
			}
			p.mu.Unlock()
		}
		_ = producer.Close()
	})
	return p
}

// take returns the sorted latencies of the receipts since the last call.
func (p *paced) take() []time.Duration {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NoError(p.t, p.err)
	all := p.latencies
	p.latencies = nil
	slices.Sort(all)
	return all
}

// end stops the publishes, and returns the result of take.
func (p *paced) end() []time.Duration {
	p.t.Helper()
	close(p.stop)
	p.ended.Wait()
	return p.take()
}

// p99 returns the 99th percentile of sorted latencies.
func p99(sorted []time.Duration) time.Duration { return sorted[len(sorted)*99/100] }

// cpuTime returns the CPU time that the nodes of a pair have used. It requires Linux.
func cpuTime(t *testing.T, p *harness.Pair) (sum time.Duration) {
	t.Helper()
	const perTick = 10 * time.Millisecond
	for _, n := range p.Nodes {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.PID()))
		require.NoError(t, err)
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		for _, f := range fields[11:13] { // user and system time
			ticks, err := strconv.Atoi(f)
			require.NoError(t, err)
			sum += time.Duration(ticks) * perTick
		}
	}
	return sum
}

// caughtUp waits until the replica has applied the whole log of the primary, which is idle.
func (w *world) caughtUp(from *site) {
	w.t.Helper()
	eventually(w.t, "a replica without a lag", func(ctx context.Context) bool {
		_, primary := w.active(ctx, from)
		_, r := w.replication(ctx, w.other(from))
		return primary != nil && primary.GetApplied().GetLsn() == r.GetPrimaryEnd().GetLsn() && r.GetLagRecords() == 0
	})
}

func median[T interface{ ~int64 | ~float64 }](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
