// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

const evaluateInterval = time.Second

// conditionMonitor evaluates the conditions of this node, the pair and the other node. It stores them in a
// conditions.Book for the status, the health service and the metrics, and logs changes.
type conditionMonitor struct {
	n         *node
	book      *conditions.Book
	other     otherStatus
	voters    votersPoll
	again     chan struct{} // capacity 1: signals a requested evaluation
	cacheOnly bool          // the filesystem cannot bypass the page cache; set before the first evaluation

	mu       sync.Mutex // held during an evaluation; guards the fields below
	rules    conditions.Rules
	degraded healthpb.HealthCheckResponse_ServingStatus
}

func newConditionMonitor(n *node) *conditionMonitor {
	l := &conditionMonitor{n: n, again: make(chan struct{}, 1)}
	l.book = conditions.NewBook(l.logChange)
	return l
}

// run evaluates the conditions periodically, after each change of the failover status, and after wake, until ctx
// ends.
func (l *conditionMonitor) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	if !l.n.alone() {
		running.Go(func() { every(ctx, pollInterval, func() { l.pollOther(ctx) }) })
		// The status of the voters is needed for the metrics, and for the conditions about the witness's certificate.
		if l.n.latencies != nil || l.n.secrets.voters() != nil {
			running.Go(func() { l.watchVoters(ctx) })
		}
	}
	ticker := time.NewTicker(evaluateInterval)
	defer ticker.Stop()
	for {
		changed := l.n.runner.Changed()
		l.evaluate()
		select {
		case <-changed:
		case <-l.again:
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *conditionMonitor) wake() {
	select {
	case l.again <- struct{}{}:
	default:
	}
}

func (l *conditionMonitor) evaluate() []conditions.Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.book.Set(now, l.rules.Reports(l.input(now)))
	all := l.book.Now()
	l.showHealth(all)
	return all
}

func (l *conditionMonitor) self() conditions.Node {
	return conditions.Node{ID: l.n.plane.self.ID.String(), Name: l.n.plane.self.Name}
}

func (l *conditionMonitor) input(now time.Time) *conditions.Input {
	n := l.n
	in := &conditions.Input{
		Now: now, Self: l.self(), Config: n.settings.Live(), Pair: n.runner.Status(), Other: l.other.last(),
		StandbyFull: n.standbyFull.Load(), Damage: n.store.Repair().Status(), Difference: n.difference(),
		CacheOnly: l.cacheOnly, MemoryUsed: int64(runtimeMemory()), MemoryAllowed: memoryAllowed(n.cfg.Memory.Budget.Bytes()),
		Unrestricted: n.rules.Open(),
	}
	in.Primary, in.Follower = n.plane.roles()
	if room, err := n.store.Room(); err == nil {
		in.Room = &room
	}
	if xid, _, timeMS, ok := query.OldestPrepared(n.store); ok {
		in.OldestPrepared = &conditions.Prepared{XID: xid, At: time.UnixMilli(timeMS)}
	}
	if session := n.serving.Get(); session != nil {
		in.Full, in.PausedQueues = session.Consumers.Full(), query.PausedQueues(n.store)
		in.Stuck = n.stuckConsumers(session.Consumers)
	}
	if plan, err := n.maintenance.Plan(); err == nil {
		in.Plan = plan
	}
	if jobs, err := n.maintenance.Jobs(); err == nil {
		in.Jobs = jobs
	}
	for _, s := range n.schedules.Failed() {
		in.FailedSchedules = append(in.FailedSchedules, conditions.FailedSchedule(s))
	}
	in.Site, in.Fleet = n.siteStatus(), n.fleetStatus()
	if n.archiver != nil {
		st := n.archiver.Status()
		in.Archive = &st
	}
	records := n.audit.Stats()
	in.AuditError, in.AuditLost = records.Error, records.Lost
	in.AuthError, in.KeysError = n.authn.KeysError()
	n.secrets.check()
	in.Certificates, in.Credentials = n.secrets.certificates(), n.secrets.refused()
	return in
}

func (n *node) stuckConsumers(consumers *dispatch.Registry) (list []conditions.StuckConsumer) {
	for _, c := range consumers.Stuck(conditions.ConsumerStuckAfter) {
		if of, err := query.OriginOf(n.store, c.Key.Queue, c.Key.Sub); err == nil {
			list = append(list, conditions.StuckConsumer{
				Queue: of.Queue, Subscription: of.Subscription, Address: c.From, InFlight: c.InFlight, For: c.For,
			})
		}
	}
	return list
}

func (l *conditionMonitor) switchoverEnded(term uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rules.SwitchoverEnded(time.Now(), term, err)
}

func fallsBack(fs vfs.FS, c *config.Config) bool {
	disk, ok := fs.(interface{ TakesDirect(name string) bool })
	return ok && c.Memory.PageCache != "keep" && !disk.TakesDirect(filepath.Join(c.Data.Dir, "page.db"))
}

// showHealth sets the health status of AlarmService. The caller must hold mu.
func (l *conditionMonitor) showHealth(all []conditions.Condition) {
	status := healthpb.HealthCheckResponse_SERVING
	if conditions.Worst(all) >= conditions.Warning {
		status = healthpb.HealthCheckResponse_NOT_SERVING
	}
	if status != l.degraded {
		l.degraded = status
		l.n.health.SetServingStatus(server.AlarmService, status)
	}
}

func (l *conditionMonitor) logChange(c conditions.Condition, raised bool) {
	fields := []zap.Field{
		zap.String("condition", string(c.Definition.Kind)),
		zap.Stringer("severity", c.Definition.Severity),
	}
	if c.Node.Name != "" {
		fields = append(fields, zap.String("node", c.Node.Name))
	}
	if c.Details != "" {
		fields = append(fields, zap.String("details", c.Details))
	}
	if !raised {
		l.n.log.Info("condition cleared", append(fields,
			zap.Duration("lasted", time.Since(c.Since).Round(time.Millisecond)))...)
		return
	}
	fields = append(fields, zap.String("cause", c.Definition.Cause), zap.String("action", c.Definition.Action))
	switch c.Definition.Severity {
	case conditions.Critical:
		l.n.log.Error("condition raised", fields...)
	case conditions.Warning:
		l.n.log.Warn("condition raised", fields...)
	default:
		l.n.log.Info("condition raised", fields...)
	}
}
