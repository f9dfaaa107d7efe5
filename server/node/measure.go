// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/observe/metrics"
	"github.com/lockstep-mq/lockstep/server/observe/nodestatus"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

type meter struct {
	commits  *nodestatus.Latencies
	governor *throttle.Governor
	metrics  *metrics.Latencies // nil if the node serves no metrics
}

var _ replication.Meter = (*meter)(nil)

func (m *meter) Committed(d time.Duration) {
	m.commits.Observe(d)
	m.governor.Committed(d)
	if m.metrics != nil {
		m.metrics.Committed(d)
	}
}

func (m *meter) Acknowledged(d time.Duration) {
	if m.metrics != nil {
		m.metrics.Acknowledged(d)
	}
}

func (m *meter) Written(d time.Duration) {
	if m.metrics != nil {
		m.metrics.Written(d)
	}
}

func (n *node) meter() replication.Meter {
	return &meter{commits: &n.commits, governor: n.store.Governor(), metrics: n.latencies}
}

func (n *node) activity() nodestatus.Activity {
	a := nodestatus.Activity{
		Delivered: n.deliveries.Delivered.Load(), Commits: n.commits.Buckets(), Memory: runtimeMemory(),
		MemoryBudget: uint64(n.cfg.Memory.Budget.Bytes()),
	}
	if n.connections != nil { // the node listens
		a.Connections = int(n.connections.Stats().Open)
	}
	if s := n.serving.Get(); s != nil {
		a.Consumers = s.Consumers.Attached()
	}
	return a
}

func (n *node) metricsOptions() metrics.Options {
	return metrics.Options{
		State: n.state, Extra: n.extraMetrics, OldestInFlight: n.oldestInFlight, Store: n.store, Latencies: n.latencies,
		Address: n.cfg.Metrics.Listen, Listen: n.environment.Listen, Queues: n.cfg.Metrics.Queues,
		TLS: portTLS(n.secrets.metrics), CanRead: n.mayRead, CanProfile: n.mayProfile,
	}
}

func (n *node) oldestInFlight(queue uint64, sub uint32) time.Duration {
	s := n.serving.Get()
	if s == nil {
		return 0
	}
	return s.Consumers.OldestInFlight(dispatch.Key{Queue: queue, Sub: sub})
}

func (n *node) extraMetrics() metrics.Extra {
	m := metrics.Extra{
		DiskLow:        n.serving.DiskLow(),
		DeliveredBytes: n.deliveries.DeliveredBytes.Load(),
		Redelivered:    n.deliveries.Redelivered.Load(), Filtered: n.deliveries.Filtered.Load(),
		AckExpired:      n.deliveries.AckExpired.Load(),
		SchedulesFailed: len(n.schedules.Failed()),
		Connections:     n.connections.Stats(), Voters: n.monitor.lastVoters(),
		Background:   n.store.Governor().Status(),
		StoreEvents:  n.events.all(),
		AuthFailures: n.authFailures(), AMQPDefects: n.amqp.defects(), Audit: n.audit.Stats(),
	}
	if n.tracing != nil {
		st := n.tracing.Stats()
		m.Traces = &st
	}
	if _, total, _, err := query.PreparedList(n.store, 0, 0); err == nil {
		m.Prepared = total
	}
	if jobs, err := n.maintenance.Jobs(); err == nil {
		m.Jobs = jobs
	}
	if n.archiver != nil {
		st := n.archiver.Status()
		m.Archive = &st
	}
	return m
}
