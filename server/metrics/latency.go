// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-mq/lockstep/replication"
)

// nativeFactor is how much wider each bucket of a native histogram is than the one before: 1.1 tells a time to about 5
// %.
const nativeFactor = 1.1

// Latencies are histograms of how long things take. They are native histograms for a Prometheus that asks for these,
// with classic buckets for others. An observation takes some 100 ns and allocates nothing; there is one for each batch,
// not for each message.
type Latencies struct {
	commit, replicate, write prometheus.Histogram
}

var _ replication.Meter = (*Latencies)(nil)

// histogram is one of them.
type histogram struct {
	Metric

	buckets []float64
}

func histograms() []histogram {
	// From 50 µs, what a write to the system's cache takes, to 13 s, when a disk or a network hangs.
	buckets := prometheus.ExponentialBuckets(0.00005, 2, 19)
	describe := func(name, when, help string) histogram {
		return histogram{Metric{Name: namespace + "_" + name, Type: Histogram, When: when, Help: help}, buckets}
	}
	return []histogram{
		describe("commit_duration_seconds", whenActive,
			"From when the first transaction of a batch was accepted until the batch was committed on every node "+
				"that must have it."),
		describe("replication_ack_duration_seconds", whenStandby,
			"From when a batch was sent to the standby until the standby has acknowledged it."),
		describe("log_write_duration_seconds", "",
			"Time to write to this node's log what waited, and to sync it with sync=always; on either node."),
	}
}

// NewLatencies makes empty histograms.
func NewLatencies() *Latencies {
	var made []prometheus.Histogram
	for _, h := range histograms() {
		made = append(made, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: h.Name, Help: h.Help, Buckets: h.buckets,
			NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: 160,
			NativeHistogramMinResetDuration: time.Hour,
		}))
	}
	return &Latencies{commit: made[0], replicate: made[1], write: made[2]}
}

// Committed implements replication.Meter, as do the others.
func (l *Latencies) Committed(d time.Duration) { l.commit.Observe(d.Seconds()) }

// Acknowledged is how long a batch took to the standby and back.
func (l *Latencies) Acknowledged(d time.Duration) { l.replicate.Observe(d.Seconds()) }

// Written is how long a write to the log took.
func (l *Latencies) Written(d time.Duration) { l.write.Observe(d.Seconds()) }

func (l *Latencies) register(r *prometheus.Registry) { r.MustRegister(l.commit, l.replicate, l.write) }
