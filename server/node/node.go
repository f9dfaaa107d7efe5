// SPDX-License-Identifier: Apache-2.0

// Package node runs one node of a pair. It opens the store, listens, joins the pair through the coordinator, and
// serves clients. It stops in the reverse order.
//
// Package failover selects the node's role. It calls dataPlane (plane.go), which starts and stops
// replication.Primary, replication.Follower and the session.Session that serves clients.
package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/queue"
	"github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/server/auth/audit"
	"github.com/lockstep-mq/lockstep/server/auth/authn"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/server/objectstore"
	"github.com/lockstep-mq/lockstep/server/observe/history"
	"github.com/lockstep-mq/lockstep/server/observe/metrics"
	"github.com/lockstep-mq/lockstep/server/observe/nodestatus"
	"github.com/lockstep-mq/lockstep/server/observe/tracing"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/server/ops/member"
	"github.com/lockstep-mq/lockstep/server/ops/mover"
	"github.com/lockstep-mq/lockstep/server/ops/scrub"
	"github.com/lockstep-mq/lockstep/server/ops/settings"
	"github.com/lockstep-mq/lockstep/server/ops/site"
	"github.com/lockstep-mq/lockstep/server/peerclient"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Errors of Run, in addition to those of packages config, store and failover.
var (
	ErrListen = errors.New("cannot listen")
	// ErrStandaloneData is returned if a standalone node is started on the data directory of a pair.
	ErrStandaloneData = errors.New("data directory belongs to a pair")
	// ErrRestart is returned if the node has stopped to be restarted.
	ErrRestart = errors.New("node is restarting")
)

const (
	stopLimit = 500 * time.Millisecond
	// switchoverLimit is the maximum time for which a switchover continues after the caller's context has ended.
	switchoverLimit = 15 * time.Second
)

// Ready contains the addresses (host:port) of a node that listens.
type Ready struct {
	Address   string
	Advertise string // address advertised to the other node and to clients
	NodeID    string // UUID
	Console   string // URL; empty without a console
	AMQP      string // empty without AMQP
}

// Options contains the parameters of Run that are not settings.
type Options struct {
	Version string // version of the software, shown in the status
	// FS is the filesystem of the store; nil means the operating system's.
	FS vfs.FS
	// SetLogLevel changes the log level. It is optional.
	SetLogLevel func(level string)
	// CanRestart reports whether the caller of Run restarts the node on ErrRestart.
	CanRestart bool
	// CheckRestart returns the reason why a restarted node would fail to start, or nil. It is optional.
	CheckRestart func(ctx context.Context) error
	// Reload requests that certificates, keys and secrets are read again. It is optional.
	Reload <-chan struct{}
	// OnReady is called when the node listens. At that time, the node may be neither active nor in sync. It is
	// optional.
	OnReady     func(Ready)
	Environment Environment
}

// Run runs a node until ctx ends or the node fails. It returns nil after a clean stop. It checks the settings and
// the data directory before it serves clients. If the coordinator is unreachable, the node waits and its status
// contains the reason.
func Run(ctx context.Context, cfg config.Config, logger *zap.Logger, o Options) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		logger.Warn(w)
	}
	cfg.Limits = cfg.Limits.Within(cfg.Memory.Budget.Bytes())
	n := newNode(cfg, logger, &o)
	if err := errors.Join(n.secure(), n.identify()); err != nil { //nolint:contextcheck // key requests outlive the call
		return err
	}
	// Open the store first. While the port is closed, the other node detects that this node does not serve.
	if err := o.setDefaults(); err != nil {
		return err
	}
	n.fs = o.FS
	if n.store, err = openStore(cfg, o.FS, o.Environment.BootID, n.storeEvent); err != nil {
		return err
	}
	n.names.use(n.store.QueueName)
	defer func() { err = errors.Join(err, n.closeStore()) }()
	n.monitor.cacheOnly = fallsBack(o.FS, &cfg)
	stopArchive, err := n.startArchive() // before any record is applied
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopArchive()) }()

	if n.audit, err = n.openAudit(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.audit.Close()) }()

	stopTracing, err := n.startTracing(ctx)
	if err != nil {
		return err
	}
	defer stopTracing()

	listener, err := n.environment.listen(ctx, cfg.Listen)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // a second close is harmless
	if n.advertise, err = advertised(cfg, listener.Addr()); err != nil {
		return err
	}

	defer n.closeInProcess()
	if err := n.listenInProcess(ctx); err != nil {
		return err
	}

	if err := n.join(o.FS); err != nil {
		return errors.Join(err, n.closeFleet())
	}
	defer func() { err = errors.Join(err, n.coordinator.Close(), n.closeFleet()) }()
	if err := n.newMaintenance(o.FS); err != nil {
		return err
	}
	defer func() { _ = n.peers.Close() }() // the results of its calls are no longer needed
	if n.alone() {
		n.store.Repair().StandAlone()
	} else {
		n.store.Repair().SetSource(peerclient.MessageSource{Peers: n.peers, Runner: n.runner, Store: n.store})
	}
	if n.cfg.Metrics.Listen != "" {
		if n.metrics, err = metrics.Listen(ctx, n.metricsOptions()); err != nil {
			return err
		}
		defer n.metrics.Close()
	}

	return n.serve(ctx, listener, o.OnReady)
}

func (o *Options) setDefaults() (err error) {
	if o.FS == nil {
		if o.FS, err = disk(); err != nil {
			return err
		}
	}
	if o.Environment.BootID == "" {
		o.Environment.BootID = bootID()
	}
	return nil
}

func newNode(cfg config.Config, logger *zap.Logger, o *Options) *node {
	names := new(queueNames)
	logger = logger.WithOptions(zap.WrapCore(names.wrap))
	n := &node{
		names: names,
		cfg:   cfg, log: logger, version: o.Version, startedAt: time.Now(), fatal: make(chan error, 1),
		closing: make(chan struct{}), health: health.NewServer(), restart: make(chan struct{}, 1),
		canRestart: o.CanRestart, checkRestart: o.CheckRestart,
		history:     history.New(),
		environment: o.Environment, setLogLevel: o.SetLogLevel, reloads: o.Reload,
	}
	n.serving = session.NewCurrent(n.notActive, func() failover.Status { return n.runner.Status() },
		func() <-chan struct{} { return n.runner.Changed() })
	n.rules = new(access.Rules)
	n.rules.Configure(access.Setting{Deny: cfg.Access.Mode == "deny", Operators: cfg.Access.Operators})
	n.monitor, n.events = newConditionMonitor(n), newStoreEvents(logger)
	if cfg.Metrics.Listen != "" {
		n.latencies = metrics.NewLatencies()
	}
	n.health.SetServingStatus(pb.QueueService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_NOT_SERVING)
	return n
}

type node struct {
	cfg       config.Config
	log       *zap.Logger
	names     *queueNames // for log
	fs        vfs.FS
	version   string
	startedAt time.Time
	advertise string

	store       *store.Store
	coordinator failover.Coordinator
	runner      *failover.Runner
	plane       *dataPlane
	health      *health.Server
	standbyFull atomic.Bool // this standby accepts no data, because its disk is nearly full
	peers       *peerclient.Peers
	maintenance *maintenance.Manager
	metrics     *metrics.Server      // nil without metrics
	latencies   *metrics.Latencies   // nil without metrics
	commits     nodestatus.Latencies // commit latencies of batches, while this node is active
	history     *history.Recorder
	console     *consolePort // nil without a console
	amqp        *amqpPort    // nil without AMQP
	inProcess   *inProcess   // nil if no component of this process calls the services
	deliveries  dispatch.Counters
	connections *admission.Listener
	peerHosts   atomic.Pointer[map[string]bool] // hosts of the other node
	serving     *session.Current
	settings    *settings.Settings
	guard       *scrub.Guard
	monitor     *conditionMonitor
	events      *storeEvents
	archiver    *backup.Archiver // nil without an archive
	archive     backup.Objects   // nil without an archive
	archiveDir  string           // empty without an archive, or if the archive is in a bucket
	objects     objectstore.Opener
	seal        backup.Sealer // nil without encryption
	rules       *access.Rules
	interceptor *auth.Interceptor
	secrets     *secrets
	reloads     <-chan struct{}
	audit       *audit.Log
	tracing     *tracing.Tracer // nil without tracing
	site        *site.Manager
	fleet       *member.Manager  // nil without fleet.pair
	mover       *mover.Manager   // nil without fleet.pair
	fleetClient *clientv3.Client // nil without fleet.pair
	authn       *authn.Authn

	// serverOptions are the options of the node's gRPC server: TLS and tracing. dialOptions are the options of
	// connections to the other node: TLS, the peer token and tracing.
	serverOptions []grpc.ServerOption
	dialOptions   []grpc.DialOption

	queues      *queue.Service
	schedules   *queue.Schedules
	setLogLevel func(level string)

	environment  Environment
	canRestart   bool
	checkRestart func(ctx context.Context) error
	restart      chan struct{}  // capacity 1: restart requested
	switchovers  sync.WaitGroup // switchovers in progress, which report their result to the monitor

	fatal     chan error // capacity 1: why the node must stop
	closing   chan struct{}
	closeOnce sync.Once
}

// failed stops the node after a failure of the store (INV-7).
func (n *node) failed(err error) {
	select {
	case n.fatal <- fmt.Errorf("%w: %w", failover.ErrFailed, err):
	default: // keep the first error
	}
}

func (n *node) join(fs vfs.FS) (err error) {
	identity := n.store.Identity()
	self := failover.NodeInfo{
		ID: identity.NodeID, Name: n.cfg.Node.Name, Address: n.advertise, Version: n.version,
		Features: failover.KnownFeatures(),
	}
	if n.amqp != nil {
		self.AMQP = n.amqp.advertise
	}
	n.newSite()
	if err := n.newFleet(); err != nil {
		return err
	}
	n.plane = newDataPlane(n, self)
	if n.coordinator, err = n.environment.coordinator(n.cfg, fs, n.plane.Identity(), self, n.secrets,
		n.log); err != nil {
		return err
	}
	n.runner, err = failover.New(failover.Options{
		Coordinator: n.measured(), Data: n.plane, Self: self, Logger: n.log,
		Settings: failover.Settings{
			FailoverTimeout: n.cfg.Failover.Timeout.Std(), StandbyWait: n.cfg.Failover.DropTimeout.Std(),
			MinInSync: n.cfg.MinInSync,
			Preferred: n.cfg.Failover.Preferred, FailbackDelay: n.cfg.Failover.FailbackDelay.Std(),
			AcceptLoss: n.cfg.Coordinator.Type == config.CoordinatorNone,
		},
	})
	if err != nil {
		return errors.Join(fmt.Errorf("node: %w", err), n.coordinator.Close())
	}
	n.log.Info("node opened", zap.Stringer("node_id", identity.NodeID), zap.String("name", self.Name),
		zap.String("address", self.Address),
		zap.String("data", n.cfg.Data.Dir), zap.String("coordinator", n.cfg.Coordinator.Type),
		zap.Stringer("log_end", n.store.End()))
	return nil
}

// serve runs all components of the node until parent ends, a restart is requested, or a required component fails. It
// then stops them in the reverse order.
func (n *node) serve(parent context.Context, listener net.Listener, onReady func(Ready)) error {
	// All components run until the role is handed over.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	defer cancel(nil)
	n.connections = n.admit(listener)
	grpcServer := n.newServer()
	n.settings.Apply() // before clients are served
	n.loadAccess()
	reset := n.requestedReset() // before the log grows
	var running sync.WaitGroup
	defer n.switchovers.Wait()
	defer running.Wait()

	running.Go(func() {
		if err := grpcServer.Serve(n.connections); err != nil && ctx.Err() == nil {
			cancel(fmt.Errorf("serve %s: %w", listener.Addr(), err))
		}
	})
	running.Go(func() { every(ctx, diskInterval, n.checkDisk) })
	running.Go(func() { n.secrets.run(ctx, n.reloads, n.log) })
	running.Go(func() { n.logNotServing(ctx) })
	running.Go(func() { n.settings.Run(ctx) })
	running.Go(func() { n.watchAccess(ctx) })
	running.Go(func() { n.queues.WatchQuotas(ctx) })
	running.Go(func() { n.watchReset(ctx, reset) })
	n.runGroups(ctx, &running)
	running.Go(func() { n.schedules.Run(ctx) })
	machine := make(chan error, 1)
	running.Go(func() { machine <- n.runMachine(ctx) })
	running.Go(func() { n.maintenance.Run(ctx) })
	running.Go(func() { n.guard.Run(ctx) })
	running.Go(func() { n.authn.Run(ctx) })
	if !n.alone() {
		running.Go(func() { n.watchFailback(ctx) })
		running.Go(func() { n.watchPeerHosts(ctx) })
	}
	running.Go(func() { n.monitor.run(ctx) })
	running.Go(func() { n.runHistory(ctx) })
	if n.metrics != nil {
		n.log.Info("metrics listening", zap.String("address", n.metrics.Address()))
		running.Go(func() {
			if err := n.metrics.Run(ctx); err != nil {
				n.log.Error("metrics listener failed", zap.Error(err)) // the node continues to serve clients
			}
		})
	}
	n.runInProcess(ctx, &running)
	if onReady != nil {
		ready := Ready{
			Address: listener.Addr().String(), Advertise: n.advertise,
			NodeID: n.store.Identity().NodeID.String(),
		}
		if n.console != nil {
			ready.Console = n.console.server.URL()
		}
		if n.amqp != nil {
			ready.AMQP = n.amqp.address()
		}
		onReady(ready)
	}

	err := n.wait(parent, ctx, machine)
	if err == nil {
		err = n.handOverBeforeStop(ctx)
	}
	n.log.Info("stopping", zap.Error(err))
	n.drainWithoutSuccessor(ctx, err)
	n.closeOnce.Do(func() { close(n.closing) })
	n.health.Shutdown()
	cancel(nil) // the machine releases its role first, which notifies clients and the other node
	select {
	case <-n.plane.idle():
	case <-time.After(stopLimit):
	}
	grpcServer.Shutdown()
	running.Wait()
	return err
}

// runGroups runs the parts of the node for sites and fleets.
func (n *node) runGroups(ctx context.Context, running *sync.WaitGroup) {
	running.Go(func() { n.site.Run(ctx) })
	running.Go(func() { n.runSite(ctx) })
	running.Go(func() { n.fleet.Run(ctx) })
	if n.fleet != nil {
		running.Go(func() { n.runRemoval(ctx) })
		running.Go(func() { n.mover.Run(ctx) })
		running.Go(func() { n.queues.WatchMoves(ctx) })
	}
}

// every calls fn immediately and then at each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, fn func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		fn()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// wait waits until the node must stop, and returns the reason. It returns nil if parent has ended.
func (n *node) wait(parent, ctx context.Context, machine <-chan error) error {
	select {
	case <-parent.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-n.fatal:
		return err
	case <-n.restart:
		return ErrRestart
	case err := <-machine:
		if err == nil && ctx.Err() == nil {
			err = failover.ErrStopped
		}
		return withAdvice(err)
	}
}

func (n *node) closeStore() error {
	start := time.Now()
	if err := n.store.Close(); err != nil {
		return fmt.Errorf("close the store: %w", err)
	}
	n.log.Info("stopped", zap.Duration("closing_took", time.Since(start)))
	return nil
}

func (n *node) state() nodestatus.Node {
	st := nodestatus.Node{
		Pair: n.runner.Status(), Coordinator: n.cfg.Coordinator.Type, Version: n.version, StartedAt: n.startedAt,
		CoordinatorAddresses: n.coordinatorAddresses(),
	}
	st.Primary, st.Follower = n.plane.roles()
	n.addMaintenance(&st)
	st.Activity, st.Site, st.Fleet = n.activity(), n.siteStatus(), n.fleetStatus()
	st.ArchiveDir, st.Certificates = n.archiveDir, n.secrets.certificates()
	if n.console != nil {
		st.Console = n.console.server.URLAt(n.advertise)
	}
	st.Conditions, st.DiskLowWatermark = n.monitor.evaluate(), uint64(n.settings.Live().Disk.LowWatermark.Bytes())
	return st
}

// switchover makes the given node active. uuid.Nil selects the node that is not active.
func (n *node) switchover(ctx context.Context, to uuid.UUID) (failover.SwitchoverResult, error) {
	if n.cfg.Coordinator.Type == config.CoordinatorNone {
		return failover.SwitchoverResult{}, fmt.Errorf("%w: node is standalone (coordinator.type is none)",
			failover.ErrSwitchover)
	}
	if err := n.maintenance.MaySwitchOver(ctx); err != nil {
		return failover.SwitchoverResult{}, fmt.Errorf("node %s: %w", n.cfg.Node.Name, err)
	}
	result, err := n.awaitSwitchover(ctx, to)
	if err != nil {
		return result, fmt.Errorf("node %s: %w", n.cfg.Node.Name, err)
	}
	return result, nil
}

// awaitSwitchover requests a switchover and waits for the result until ctx ends. After the end of ctx, the switchover
// continues for at most switchoverLimit, and the monitor always receives its result.
func (n *node) awaitSwitchover(ctx context.Context, to uuid.UUID) (failover.SwitchoverResult, error) {
	type answer struct {
		result failover.SwitchoverResult
		err    error
	}
	answered := make(chan answer, 1)
	term := uint64(0)
	if r := n.runner.Status().Record; r != nil {
		term = r.Term
	}
	call, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(switchoverLimit, cancel) })
	n.switchovers.Go(func() {
		defer cancel()
		result, err := n.runner.SwitchoverTo(call, to) // returns when the runner stops
		n.monitor.switchoverEnded(term, err)
		answered <- answer{result, err}
	})
	select {
	case a := <-answered:
		return a.result, a.err
	case <-ctx.Done():
		return failover.SwitchoverResult{}, fmt.Errorf("switchover: unknown outcome: %w", ctx.Err())
	}
}
