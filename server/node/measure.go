// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/metrics"
)

// meter is told how long things take; nil if no metrics are served.
func (n *node) meter() replication.Meter {
	if n.latencies == nil {
		return nil // and not an interface that holds a nil
	}
	return n.latencies
}

// metricsOptions say where the metrics come from.
func (n *node) metricsOptions() metrics.Options {
	return metrics.Options{
		State: n.state, More: n.more, Store: n.store, Latencies: n.latencies,
		Address: n.cfg.Metrics.Listen, Queues: n.cfg.Metrics.Queues,
		TLS: n.metricsTLS(), MayRead: n.mayRead, MayProfile: n.mayProfile,
	}
}

// more is what only metrics tell.
func (n *node) more() metrics.More {
	m := metrics.More{
		DiskLow:   n.serving.DiskLow(),
		Delivered: n.deliveries.Delivered.Load(), DeliveredBytes: n.deliveries.DeliveredBytes.Load(),
		Redelivered: n.deliveries.Redelivered.Load(), Filtered: n.deliveries.Filtered.Load(),
		Connections: n.connections.Stats(), Voters: n.monitor.votersSeen(),
		MemoryBudget: uint64(n.cfg.Memory.Budget.Bytes()), StoreEvents: n.events.all(),
		NotLetIn: n.notLetIn(),
	}
	if n.audit != nil {
		m.Audit = n.audit.Stats()
	}
	if s, ok := (upkept{n}).session(); ok {
		m.Consumers = s.Consumers.Attached()
	}
	if jobs, err := n.maintenance.Jobs(); err == nil {
		m.Jobs = jobs
	}
	if n.archiver != nil {
		st := n.archiver.Status()
		m.Archive = &st
	}
	for _, c := range n.secrets.certificates() {
		m.Certificates = append(m.Certificates, metrics.Certificate{Of: c.Use, File: c.File, Ends: c.Ends})
	}
	return m
}
