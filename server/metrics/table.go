// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
)

// Types of metrics, as Prometheus calls them.
const (
	Gauge     = "gauge"
	Counter   = "counter"
	Histogram = "histogram"
)

// Metric describes what a node exports under one name.
type Metric struct {
	// Name with the prefix of all of this program's.
	Name string
	// Type is one of the constants.
	Type string
	// Labels that tell its series apart.
	Labels []string
	// When it is there; empty: always.
	When string
	// Help says what it is.
	Help string
}

// When some metrics are there.
const (
	whenActive  = "on the active"
	whenStandby = "on the active, with a standby connected"
	whenFollows = "on the standby"
	whenCopies  = "on the standby, while it fetches a snapshot"
	whenArchive = "with `wal.archive`"
	whenJobs    = "for each job"
	whenBackups = "with a job that makes backups"
	whenRaft    = "with `coordinator.type: raft`"
	whenWork    = "while something runs"
	whenQueues  = "for the `metrics.queues` queues with the most messages"
	whenTraces  = "with `tracing.endpoint`"
	whenTLS     = "with TLS"
)

// family is a metric and how its series are read from a snapshot.
type family struct {
	Metric

	read func(s *snapshot, put putFunc)
}

// putFunc takes one series: its value, and the values of its labels.
type putFunc func(v float64, labels ...string)

// All returns the table of everything that a node exports besides what the Go runtime and the process tell of
// themselves. docs/reference/metrics.md is made from it.
func All() []Metric {
	var out []Metric
	for _, f := range families() {
		out = append(out, f.Metric)
	}
	out = append(out, storeUsable())
	return append(out, kept()...)
}

// families are all that is read when it is asked for.
func families() []family {
	var out []family
	for _, part := range [][]family{
		ofThePair(), ofTheStandby(), ofTheFollower(), ofMessages(), ofQueues(), ofTheStore(), ofTheDisk(), ofDamage(),
		ofWork(), ofTheProcess(),
	} {
		for i := range part {
			part[i].Name = fmt.Sprintf("%s_%s", namespace, part[i].Name)
			out = append(out, part[i])
		}
	}
	return out
}

// gauge and counter describe a metric with one series, without labels, that is always there.
func gauge(name, help string, read func(*snapshot) float64) family {
	return family{Metric{Name: name, Type: Gauge, Help: help}, func(s *snapshot, put putFunc) { put(read(s)) }}
}

func counter(name, help string, read func(*snapshot) float64) family {
	return family{Metric{Name: name, Type: Counter, Help: help}, func(s *snapshot, put putFunc) { put(read(s)) }}
}

// counterOf describes one with labels.
func counterOf(name, help string, labels []string, read func(*snapshot, putFunc)) family {
	return family{Metric{Name: name, Type: Counter, Help: help, Labels: labels}, read}
}

// gaugeOf describes one with labels, or that is not always there.
func gaugeOf(name, when, help string, labels []string, read func(*snapshot, putFunc)) family {
	return family{Metric{Name: name, Type: Gauge, Help: help, Labels: labels, When: when}, read}
}
