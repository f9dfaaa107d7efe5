// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"sync"
	"sync/atomic"

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
		Connections: n.connections.open.Load(), Accepted: n.connections.accepted.Load(), Voters: n.monitor.votersSeen(),
		MemoryBudget: uint64(n.cfg.Memory.Budget.Bytes()), StoreEvents: n.events.all(),
		NotLetIn: n.notLetIn(),
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

// connectionCounter counts the connections to the node's port.
type connectionCounter struct{ open, accepted atomic.Uint64 }

// count counts what is accepted.
func (c *connectionCounter) count(l net.Listener) net.Listener { return countedListener{l, c} }

type countedListener struct {
	net.Listener

	counter *connectionCounter
}

// Accept counts a connection until it is closed.
func (l countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the server compares it
	}
	l.counter.accepted.Add(1)
	l.counter.open.Add(1)
	closed := sync.OnceFunc(func() { l.counter.open.Add(^uint64(0)) })
	// What it can do besides, such as writing several buffers at once, it still can.
	if tcp, ok := conn.(*net.TCPConn); ok {
		return &countedTCP{tcp, closed}, nil
	}
	return &countedConn{conn, closed}, nil
}

type countedTCP struct {
	*net.TCPConn

	closed func()
}

// Close ends the connection.
func (c *countedTCP) Close() error {
	c.closed()
	return c.TCPConn.Close() //nolint:wrapcheck // a net.OpError says everything
}

type countedConn struct {
	net.Conn

	closed func()
}

// Close ends the connection.
func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close() //nolint:wrapcheck // it is the connection's own
}
