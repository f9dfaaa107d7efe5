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

// Operation of the coordinator.
type Operation string

// The operations of a coordinator that are measured.
const (
	// LoadRecord reads the pair's record, SwapRecord replaces it.
	LoadRecord Operation = "load"
	SwapRecord Operation = "swap"
	// LoadMark reads how far the pair has committed, WriteMark raises it.
	LoadMark  Operation = "load-mark"
	WriteMark Operation = "write-mark"
)

// operations are all of them.
func operations() []Operation { return []Operation{LoadRecord, SwapRecord, LoadMark, WriteMark} }

// Latencies are histograms of how long things take. They are native histograms for a Prometheus that asks for these,
// with classic buckets for others. An observation takes some 100 ns and allocates nothing; there is one for each batch,
// not for each message.
type Latencies struct {
	commit, replicate, write prometheus.Observer
	coordinator              map[Operation]prometheus.Observer
	failed                   map[Operation]prometheus.Counter
	collectors               []prometheus.Collector
}

var _ replication.Meter = (*Latencies)(nil)

// histogram is one of them.
type histogram struct {
	Metric

	buckets []float64
}

// vector makes the histogram.
func (h *histogram) vector() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: h.Name, Help: h.Help, Buckets: h.buckets,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: 160,
		NativeHistogramMinResetDuration: time.Hour,
	}, h.Labels)
}

func describeHistogram(name, when, help string, labels ...string) histogram {
	// From 50 µs, what a write to the system's cache takes, to 13 s, when a disk or a network hangs.
	return histogram{
		Metric{Name: namespace + "_" + name, Type: Histogram, Labels: labels, When: when, Help: help},
		prometheus.ExponentialBuckets(0.00005, 2, 19),
	}
}

// batchHistograms have one observation for each batch.
func batchHistograms() []histogram {
	return []histogram{
		describeHistogram("commit_duration_seconds", whenActive,
			"From when the first transaction of a batch was accepted until the batch was committed on every node "+
				"that must have it."),
		describeHistogram("replication_ack_duration_seconds", whenStandby,
			"From when a batch was sent to the standby until the standby has acknowledged it."),
		describeHistogram("log_write_duration_seconds", "",
			"Time to write to this node's log what waited, and to sync it with sync=always; on either node."),
	}
}

// coordinatorHistogram has one for each request to the coordinator.
func coordinatorHistogram() histogram {
	return describeHistogram("coordinator_request_duration_seconds", "",
		"Time that the coordinator took to answer a request of this node, refusals included.", "operation")
}

// coordinatorFailures describes the requests without an answer.
func coordinatorFailures() Metric {
	return Metric{
		Name: namespace + "_coordinator_requests_failed_total", Type: Counter, Labels: []string{"operation"},
		Help: "Requests of this node that the coordinator did not answer, or refused; one that another node was " +
			"faster with is none of them.",
	}
}

// kept is what Latencies describe.
func kept() []Metric {
	var out []Metric
	for _, h := range append(batchHistograms(), coordinatorHistogram()) {
		out = append(out, h.Metric)
	}
	return append(out, coordinatorFailures())
}

// NewLatencies makes empty histograms.
func NewLatencies() *Latencies {
	l := &Latencies{
		coordinator: make(map[Operation]prometheus.Observer), failed: make(map[Operation]prometheus.Counter),
	}
	var batches []prometheus.Observer
	for _, h := range batchHistograms() {
		v := h.vector()
		batches, l.collectors = append(batches, v.WithLabelValues()), append(l.collectors, v)
	}
	l.commit, l.replicate, l.write = batches[0], batches[1], batches[2]
	h, f := coordinatorHistogram(), coordinatorFailures()
	requests := h.vector()
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Name, Help: f.Help}, f.Labels)
	for _, op := range operations() {
		l.coordinator[op] = requests.WithLabelValues(string(op))
		l.failed[op] = failures.WithLabelValues(string(op))
	}
	l.collectors = append(l.collectors, requests, failures)
	return l
}

// Committed implements replication.Meter, as do the next two.
func (l *Latencies) Committed(d time.Duration) { l.commit.Observe(d.Seconds()) }

// Acknowledged is how long a batch took to the standby and back.
func (l *Latencies) Acknowledged(d time.Duration) { l.replicate.Observe(d.Seconds()) }

// Written is how long a write to the log took.
func (l *Latencies) Written(d time.Duration) { l.write.Observe(d.Seconds()) }

// Coordinated is how long a request to the coordinator took, and whether it was answered.
func (l *Latencies) Coordinated(op Operation, d time.Duration, answered bool) {
	l.coordinator[op].Observe(d.Seconds())
	if !answered {
		l.failed[op].Inc()
	}
}

func (l *Latencies) register(r *prometheus.Registry) { r.MustRegister(l.collectors...) }
