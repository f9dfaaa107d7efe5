// SPDX-License-Identifier: Apache-2.0

// Package metrics implements the monitoring of a node over HTTP on a separate port: Prometheus metrics, three probes,
// and Go profiles.
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
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/server/auth/audit"
	"github.com/lockstep-mq/lockstep/server/httpport"
	"github.com/lockstep-mq/lockstep/server/observe/nodestatus"
	"github.com/lockstep-mq/lockstep/server/observe/tracing"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	// writeTimeout limits the time to write a response.
	writeTimeout   = 5 * time.Minute
	maxHeaderBytes = 64 << 10
	// A client of metrics and probes needs one or two connections.
	maxConnections           = 256
	maxConnectionsPerAddress = 32
)

// Extra contains data that only the metrics export.
type Extra struct {
	// DiskLow is the result of store.Room.Low for disk.low-watermark.
	DiskLow                     bool
	DeliveredBytes, Redelivered uint64
	// Filtered counts messages that did not match the filter of a subscription.
	Filtered uint64
	// AckExpired counts messages that were requeued because their acknowledgement deadline had passed, or because
	// another consumer of an exclusive queue became active as a result.
	AckExpired uint64
	Prepared   int // number of transactions that wait for a decision
	// SchedulesFailed is the number of schedules for which the last occurrence failed.
	SchedulesFailed int
	Connections     admission.Stats
	// AMQPDefects counts AMQP connections that were closed because of an internal error.
	AMQPDefects uint64
	Audit       audit.Stats
	// Traces counts the exported and the lost spans. It is nil without tracing.
	Traces *tracing.Stats
	Jobs   []maintenance.JobInfo
	// Archive is the status of the log archive. It is nil without an archive.
	Archive *backup.ArchiveStatus
	// Voters contains the voters of the raft coordinator, if any.
	Voters []Voter
	// Background is the state of the throttle of background work.
	Background throttle.Status
	// StoreEvents counts events of the store by name.
	StoreEvents map[string]uint64
	// AuthFailures counts authentication failures by the check that failed.
	AuthFailures map[string]uint64
}

// Voter is a voter of a raft coordinator. Kind is "node" or "witness".
type Voter struct {
	Address, Kind string
	// Up reports whether the voter responds with the expected identity and is a member that is not fenced.
	Up bool
	// Behind is the number of log entries by which the voter lags behind the most advanced voter that is up.
	Behind uint64
}

// Options configures Listen.
type Options struct {
	// State returns the state of the node. Extra returns the data that only the metrics export.
	State func() nodestatus.Node
	Extra func() Extra
	// OldestInFlight returns how long the oldest message in flight of a subscription has been in flight; 0 if none
	// is in flight. If OldestInFlight is nil, 0 is exported.
	OldestInFlight func(queue uint64, sub uint32) time.Duration
	Store          *store.Store
	// Address is the address to listen on, host:port. Port 0 selects a free port.
	Address string
	// Listen binds the address. If nil, a TCP listener of this host is used.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// Queues is the maximum number of exported queues. Those with the most messages are exported. 0 means that no
	// queues are exported.
	Queues    int
	Latencies *Latencies  // optional
	TLS       *tls.Config // nil for plain HTTP
	// CanRead and CanProfile authorize requests for the metrics and for the profiles. An error contains the reason
	// and the recommended action. If a function is nil, all requests are permitted.
	CanRead, CanProfile func(*http.Request) error
}

// Server serves HTTP requests until the context of Run ends.
type Server struct {
	port *httpport.Port
}

// Listen binds the address. The caller must call Run or Close.
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
		registry.MustRegister(o.Latencies.collectors...)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", allowed(o.CanRead, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "alive") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, o.State()) })
	mux.HandleFunc("GET /activez", func(w http.ResponseWriter, _ *http.Request) { active(w, o.State()) })
	// cmdline is not served: a flag may contain a password.
	for path, serve := range map[string]http.HandlerFunc{
		"": pprof.Index, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
		"mutex": newContention().ServeHTTP,
	} {
		mux.Handle("/debug/pprof/"+path, allowed(o.CanProfile, serve))
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

// Address returns the bound address, host:port.
func (s *Server) Address() string { return s.port.Address() }

// Close releases the port if Run was not called.
func (s *Server) Close() { s.port.Close() }

// Run serves requests until ctx ends. It returns an error if the listener fails.
func (s *Server) Run(ctx context.Context) error {
	if err := s.port.Run(ctx, nil); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

func ready(w http.ResponseWriter, st nodestatus.Node) {
	switch st.Pair.Role {
	case failover.RoleActive, failover.RoleActiveAlone, failover.RoleStandby:
	default:
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	writeRole(w, st.Pair.Role, st.Pair.Reason)
}

func writeRole(w http.ResponseWriter, role failover.Role, reason string) {
	if reason != "" {
		reason = ": " + reason
	}
	_, _ = fmt.Fprintf(w, "%s%s\n", role, reason)
}

// active responds with 200 only while the node serves clients.
func active(w http.ResponseWriter, st nodestatus.Node) {
	if !st.ServesClients() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	writeRole(w, st.Pair.Role, st.Pair.Reason)
}

// recordedWaits is the sampling interval of lock waits: one in recordedWaits waits is recorded.
const recordedWaits = 10

// contention serves the mutex profile, which attributes lock waits to the lock holders. Waits are recorded only
// during a request with the parameter `seconds`. Other requests return the waits that were recorded during earlier
// requests.
type contention struct {
	profile http.Handler

	mu       sync.Mutex // guards requests and the profile fraction of the runtime
	requests int
}

func newContention() *contention { return &contention{profile: pprof.Handler("mutex")} }

func (c *contention) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("seconds") != "" {
		c.record(1)
		defer c.record(-1)
	}
	c.profile.ServeHTTP(w, r)
}

// record adds change to the number of requests for which waits are recorded: 1 at the start of a request and -1
// at its end.
func (c *contention) record(change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests += change
	rate := 0
	if c.requests > 0 {
		rate = recordedWaits
	}
	runtime.SetMutexProfileFraction(rate)
}
