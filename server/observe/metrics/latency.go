// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-mq/lockstep/replication"
)

// nativeFactor is the growth factor of native histogram buckets.
const nativeFactor = 1.1

// Operation is a measured operation of the coordinator.
type Operation string

// Measured operations of the coordinator.
const (
	// LoadRecord and SwapRecord read and replace the cluster record.
	LoadRecord Operation = "load"
	SwapRecord Operation = "swap"
	// LoadMark and WriteMark read and raise the high-water mark.
	LoadMark  Operation = "load-mark"
	WriteMark Operation = "write-mark"
)

// Latencies contains latency histograms. They are native histograms, with classic buckets for Prometheus servers that
// do not request native histograms.
type Latencies struct {
	commit, replicate, write prometheus.Observer
	coordinator              map[Operation]prometheus.Observer
	failed                   map[Operation]prometheus.Counter
	paused                   *prometheus.HistogramVec // without series before the first move of queues
	collectors               []prometheus.Collector
}

var _ replication.Meter = (*Latencies)(nil)

type histogram struct {
	Metric

	buckets []float64
}

func (h *histogram) vector() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: h.Name, Help: h.Help, Buckets: h.buckets,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: 160,
		NativeHistogramMinResetDuration: time.Hour,
	}, h.Labels)
}

func describeHistogram(name, when, help string, labels ...string) histogram {
	// The buckets range from 50 µs (a write to the page cache) to 13 s (a disk or a network that hangs).
	return histogram{
		Metric{Name: namespace + "_" + name, Type: Histogram, Labels: labels, When: when, Help: help},
		prometheus.ExponentialBuckets(0.00005, 2, 19),
	}
}

func batchHistograms() []histogram {
	return []histogram{
		describeHistogram("commit_duration_seconds", "",
			"Time from accepting the first transaction of a batch to its commit on all in-sync nodes; recorded on the active "+
				"node."),
		describeHistogram("replication_ack_duration_seconds", "",
			"Time from sending a batch to the standby to its acknowledgement; recorded on the active node."),
		describeHistogram("log_write_duration_seconds", "",
			"Time of a write to this node's log, including the sync with sync=always."),
	}
}

func coordinatorHistogram() histogram {
	return describeHistogram("coordinator_request_duration_seconds", "",
		"Duration of coordinator requests of this node, including failed and rejected ones.", "operation")
}

func pauseHistogram() histogram {
	return describeHistogram("fleet_move_pause_seconds", whenFleet+", after the first move since the node's start",
		"Time between the request for the fence and the take of the queues of a move to this pair.")
}

func coordinatorFailures() Metric {
	return Metric{
		Name: namespace + "_coordinator_requests_failed_total", Type: Counter, Labels: []string{"operation"},
		Help: "Coordinator requests of this node that failed or were rejected; conflicts with the other node are " +
			"not counted.",
	}
}

// NewLatencies creates Latencies with empty histograms.
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
	l.paused = new(pauseHistogram()).vector()
	h, f := coordinatorHistogram(), coordinatorFailures()
	requests := h.vector()
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Name, Help: f.Help}, f.Labels)
	for _, op := range []Operation{LoadRecord, SwapRecord, LoadMark, WriteMark} {
		l.coordinator[op] = requests.WithLabelValues(string(op))
		l.failed[op] = failures.WithLabelValues(string(op))
	}
	l.collectors = append(l.collectors, requests, failures, l.paused)
	return l
}

// Committed records the time from the acceptance of the first transaction in a batch to the commit of the batch.
func (l *Latencies) Committed(d time.Duration) { l.commit.Observe(d.Seconds()) }

// Acknowledged records the time from sending a batch to the standby to the acknowledgement by the standby.
func (l *Latencies) Acknowledged(d time.Duration) { l.replicate.Observe(d.Seconds()) }

// Written records the duration of a write to the log, including the sync with sync=always.
func (l *Latencies) Written(d time.Duration) { l.write.Observe(d.Seconds()) }

// Paused records the pause of a move of queues to this pair. It does nothing if l is nil.
func (l *Latencies) Paused(d time.Duration) {
	if l != nil {
		l.paused.WithLabelValues().Observe(d.Seconds())
	}
}

// Coordinated records the duration of a request to the coordinator. answered is false if the request failed; a
// conflict or a missing record is not a failure.
func (l *Latencies) Coordinated(op Operation, d time.Duration, answered bool) {
	l.coordinator[op].Observe(d.Seconds())
	if !answered {
		l.failed[op].Inc()
	}
}
