// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"strings"
)

// Prometheus metric types.
const (
	Gauge     = "gauge"
	Counter   = "counter"
	Histogram = "histogram"
)

// Metric describes an exported metric.
type Metric struct {
	Name   string // includes the namespace
	Type   string // Gauge, Counter or Histogram
	Labels []string
	// When describes when the metric is exported. It is empty if the metric is always exported.
	When string
	Help string
}

// Values of Metric.When.
const (
	whenStandby = "on the active node, with a standby connected"
	whenFollows = "on the standby"
	whenCopies  = "on the standby, while it receives a snapshot"
	whenArchive = "with `wal.archive`"
	whenJobs    = "for each job"
	whenBackups = "with a backup job"
	whenRaft    = "with `coordinator.type: raft`"
	whenWork    = "while an operation runs"
	whenQueues  = "for the `metrics.queues` queues with the most messages"
	whenTraces  = "with `tracing.endpoint`"
	whenTLS     = "with TLS"
	whenSites   = "with `site.name`, or in a group of sites"
	whenReplica = "on the active node of a replica site"
	whenFleet   = "with `fleet.pair`"
	whenHeard   = whenReplica + ", after its first connection"
)

type family struct {
	Metric

	read func(s *snapshot, put emitFunc)
}

type emitFunc func(v float64, labels ...string)

// distinct returns an emitFunc that ignores further values of the same series.
func distinct(put emitFunc) emitFunc {
	seen := make(map[string]bool)
	return func(v float64, labels ...string) {
		if key := strings.Join(labels, "\x00"); !seen[key] {
			seen[key] = true
			put(v, labels...)
		}
	}
}

// All returns all exported metrics except those of the Go runtime and the process. docs/reference/metrics.md contains
// them in a table.
func All() []Metric {
	var out []Metric
	for _, f := range families() {
		out = append(out, f.Metric)
	}
	out = append(out, storeUsable())
	for _, h := range append(batchHistograms(), coordinatorHistogram(), pauseHistogram()) {
		out = append(out, h.Metric)
	}
	return append(out, coordinatorFailures())
}

func families() []family {
	var out []family
	for _, part := range [][]family{
		pairFamilies(), standbyFamilies(), followerFamilies(), siteFamilies(), fleetFamilies(), messageFamilies(),
		queueFamilies(), storeFamilies(), diskFamilies(), corruptionFamilies(),
		workFamilies(), processFamilies(),
	} {
		for i := range part {
			part[i].Name = fmt.Sprintf("%s_%s", namespace, part[i].Name)
			out = append(out, part[i])
		}
	}
	return out
}

// gauge and counter return the family of a metric that has one series without labels and is always exported.
func gauge(name, help string, read func(*snapshot) float64) family {
	return family{Metric{Name: name, Type: Gauge, Help: help}, func(s *snapshot, put emitFunc) { put(read(s)) }}
}

func counter(name, help string, read func(*snapshot) float64) family {
	return family{Metric{Name: name, Type: Counter, Help: help}, func(s *snapshot, put emitFunc) { put(read(s)) }}
}

func counterOf(name, help string, labels []string, read func(*snapshot, emitFunc)) family {
	return family{Metric{Name: name, Type: Counter, Help: help, Labels: labels}, read}
}

func gaugeOf(name, when, help string, labels []string, read func(*snapshot, emitFunc)) family {
	return family{Metric{Name: name, Type: Gauge, Help: help, Labels: labels, When: when}, read}
}
