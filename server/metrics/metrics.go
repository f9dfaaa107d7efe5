// SPDX-License-Identifier: Apache-2.0

// Package metrics tells a monitoring system how a node is: Prometheus metrics, three probes and Go's profiles, over
// HTTP on a port of their own.
//
// Everything is read when it is asked for, from the same sources as `lockstep status`: between two scrapes the metrics
// cost nothing, and they cannot disagree with the status.
package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/access"
	"github.com/lockstep-mq/lockstep/server/admission"
	"github.com/lockstep-mq/lockstep/server/audit"
	"github.com/lockstep-mq/lockstep/server/httpport"
	"github.com/lockstep-mq/lockstep/server/maintenance"
	"github.com/lockstep-mq/lockstep/server/state"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/pace"
)

const (
	// readHeaderTimeout bounds how long a connection may say nothing.
	readHeaderTimeout = 5 * time.Second
	// readTimeout bounds how long a request may take to come, idleTimeout how long a connection may wait for the next
	// one, and writeTimeout how long an answer may take: that of a profile takes as long as it was asked for.
	readTimeout  = 10 * time.Second
	idleTimeout  = 2 * time.Minute
	writeTimeout = 5 * time.Minute
	// maxHeaderBytes is how large the headers of a request may be.
	maxHeaderBytes = 64 << 10
	// maxConnections bounds the connections, and maxConnectionsPerAddress those from one address: who asks for metrics
	// and probes needs one or two.
	maxConnections           = 256
	maxConnectionsPerAddress = 32
)

// More is what only metrics tell.
type More struct {
	// DiskLow: publishes are refused because the disk is nearly full.
	DiskLow bool
	// Delivered messages, their bytes, and the redelivered ones among them.
	Delivered, DeliveredBytes, Redelivered uint64
	// Filtered messages did not match the filter of a subscription.
	Filtered uint64
	// Prepared transactions that wait for a decision.
	Prepared int
	// Consumers that are attached.
	Consumers int
	// Connections to the node's port.
	Connections admission.Stats
	// AMQPDefects are AMQP connections that were closed because of a defect.
	AMQPDefects uint64
	// Audit of the node.
	Audit audit.Stats
	// Traces of requests; nil while none are recorded.
	Traces *Traces
	// Jobs of the pair.
	Jobs []maintenance.JobInfo
	// Archive of the log; nil for none.
	Archive *backup.ArchiveStatus
	// Voters of a pair whose coordinator is raft.
	Voters []Voter
	// Certificates that the node uses.
	Certificates []Certificate
	// MemoryBudget in bytes.
	MemoryBudget uint64
	// Background is what share of the time work in the background gets.
	Background pace.Status
	// StoreEvents counts what the store told, by the names of its events.
	StoreEvents map[string]uint64
	// NotLetIn counts callers that were not let in, by the check that failed.
	NotLetIn map[string]uint64
}

// Traces count spans.
type Traces struct {
	// Sent were taken by the collector, Lost could not be sent.
	Sent, Lost uint64
}

// Voter of a raft coordinator.
type Voter struct {
	// Address and kind ("node", "witness") of the voter.
	Address, Kind string
	// Up: it answers, and is the one that it should be.
	Up bool
	// Behind is how many entries it has less than the voter that has the most.
	Behind uint64
}

// Certificate is a file with a certificate that the node uses, and when that ends.
type Certificate struct {
	// Of is what it is used for: "node", "etcd", "raft" or "metrics".
	Of   string
	File string
	Ends time.Time
}

// Options of Listen.
type Options struct {
	// State is what the node is and knows, More what only metrics tell.
	State func() state.Node
	More  func() More
	// Store of the node.
	Store *store.Store
	// Address to listen on, host:port; port 0 takes a free one.
	Address string
	// Listen binds the address; nil means a TCP port of the machine.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// Queues is how many queues are told of, those with the most messages first; 0: none.
	Queues int
	// Latencies of the node; nil: none.
	Latencies *Latencies
	// TLS of the port; nil: none.
	TLS *tls.Config
	// MayRead and MayProfile tell whether a request may have the metrics and the profiles; the error says why not and
	// what to do. Nil: every request may.
	MayRead, MayProfile func(*http.Request) error
}

// Server answers HTTP requests until Run's context ends.
type Server struct {
	port *httpport.Port
}

// Listen binds the address. Run must be called, or Close.
func Listen(ctx context.Context, o Options) (*Server, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(
			collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/sync/mutex/wait/total:seconds$`)},
		)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newCollector(&o),
	)
	if o.Latencies != nil {
		o.Latencies.register(registry)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", allowed(o.MayRead, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "alive") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, o.State()) })
	mux.HandleFunc("GET /activez", func(w http.ResponseWriter, _ *http.Request) { active(w, o.State()) })
	// Not cmdline: a password may have been given as a flag.
	for path, serve := range map[string]http.HandlerFunc{
		"": pprof.Index, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
		"mutex": newContention().ServeHTTP,
	} {
		mux.Handle("/debug/pprof/"+path, allowed(o.MayProfile, serve))
	}
	port, err := httpport.Listen(ctx, httpport.Options{
		Address: o.Address, Listen: o.Listen, TLS: o.TLS, Handler: mux, Connections: maxConnections,
		ConnectionsPerAddress: maxConnectionsPerAddress, ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout,
		IdleTimeout: idleTimeout, WriteTimeout: writeTimeout, MaxHeaderBytes: maxHeaderBytes,
	})
	if err != nil {
		return nil, fmt.Errorf("metrics.listen: %w", err)
	}
	return &Server{port: port}, nil
}

// allowed passes on the requests that may be.
func allowed(may func(*http.Request) error, next http.Handler) http.Handler {
	if may == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := may(r)
		switch {
		case err == nil:
			next.ServeHTTP(w, r)
		case errors.Is(err, access.ErrDenied):
			http.Error(w, err.Error(), http.StatusForbidden)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
		}
	})
}

// Address that it is bound to, host:port.
func (s *Server) Address() string { return s.port.Address() }

// Close gives the port back if Run was never called.
func (s *Server) Close() { s.port.Close() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	if err := s.port.Run(ctx, nil); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// ready answers 200 when the node does its part: it serves clients, or it is a standby in sync. The body says why not.
func ready(w http.ResponseWriter, st state.Node) {
	switch st.Pair.Role {
	case failover.RoleActive, failover.RoleActiveAlone, failover.RoleStandby:
	default:
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	sayRole(w, st.Pair.Role, st.Pair.Reason)
}

// sayRole writes the role, and why the node is in it, where that is to be said.
func sayRole(w http.ResponseWriter, role failover.Role, reason string) {
	if reason != "" {
		reason = ": " + reason
	}
	_, _ = fmt.Fprintf(w, "%s%s\n", role, reason)
}

// active answers 200 on the one node that serves clients, and only while it does: for proxies that are to send clients
// there. Nothing else may be concluded from it: a node that was stopped or cut off a moment ago may have answered 200
// just before.
func active(w http.ResponseWriter, st state.Node) {
	if !st.Pair.Serve || !st.Pair.Deliver || st.Pair.Role != failover.RoleActive &&
		st.Pair.Role != failover.RoleActiveAlone {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	sayRole(w, st.Pair.Role, st.Pair.Reason)
}
