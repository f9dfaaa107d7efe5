// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/units"
)

// lookInterval is the interval at which conditions are evaluated without client requests.
const lookInterval = time.Second

// conditionMonitor evaluates the conditions of this node, the pair and the other node. It stores the results in the
// book, which status, health and metrics read, and logs conditions that begin or end.
type conditionMonitor struct {
	n      *node
	book   *conditions.Book
	other  otherStatus
	voters votersLook
	again  chan struct{} // capacity 1: re-evaluate
	// cacheOnly is true if the filesystem cannot bypass the system's page cache. It is set before the first
	// evaluation.
	cacheOnly bool

	mu       sync.Mutex // held during an evaluation; guards the fields below
	work     workSeen
	switched switchoverSeen
	degraded healthpb.HealthCheckResponse_ServingStatus
}

func newConditionMonitor(n *node) *conditionMonitor {
	l := &conditionMonitor{n: n, again: make(chan struct{}, 1)}
	l.book = conditions.NewBook(l.tell)
	return l
}

// run evaluates the conditions in each interval, and after each change of the role or the record, until ctx ends.
func (l *conditionMonitor) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	if !l.n.alone() {
		running.Go(func() { l.watchOther(ctx) })
		// needed for the metrics, if they are served, and for the certificate of the witness
		if l.n.latencies != nil || l.n.secrets.voters() != nil {
			running.Go(func() { l.watchVoters(ctx) })
		}
	}
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		changed := l.n.runner.Changed()
		l.look()
		select {
		case <-changed:
		case <-l.again:
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// wake requests an evaluation soon.
func (l *conditionMonitor) wake() {
	select {
	case l.again <- struct{}{}:
	default:
	}
}

// look evaluates and returns the current conditions.
func (l *conditionMonitor) look() []conditions.Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.book.Set(now, l.reports(now))
	all := l.book.Now()
	l.showHealth(all)
	return all
}

func (l *conditionMonitor) self() conditions.Node {
	return conditions.Node{ID: l.n.plane.self.ID.String(), Name: l.n.plane.self.Name}
}

// reports returns all reports. mu is held.
func (l *conditionMonitor) reports(now time.Time) []conditions.Report {
	pair := l.n.runner.Status()
	f := findings{self: l.self()}
	if !l.n.alone() {
		f.all = conditions.FromFailover(pair)
		l.replication(&f, &pair)
	}
	l.writes(&f)
	l.access(&f)
	l.disk(&f, &pair)
	l.content(&f)
	if xid, _, timeMS, ok := query.OldestPrepared(l.n.store); ok {
		prepared(&f, xid, timeMS, now)
	}
	if session := l.n.serving.Get(); session != nil {
		deadLettersWait(&f, session.Consumers.Full())
	}
	l.maintenance(&f, now)
	l.machine(&f)
	l.secrets(&f, now)
	if !l.n.alone() { // this node's own findings come first and take precedence
		l.fromOther(&f, &pair, now)
	}
	return f.all
}

// findings collects reports.
type findings struct {
	self conditions.Node
	all  []conditions.Report
}

// node adds a condition of this node if on is true.
func (f *findings) node(on bool, k conditions.Kind, format string, args ...any) {
	if on {
		f.all = append(f.all, conditions.Report{Kind: k, Node: f.self, Details: fmt.Sprintf(format, args...)})
	}
}

// pair adds a condition of the pair if on is true.
func (f *findings) pair(on bool, k conditions.Kind, format string, args ...any) {
	if on {
		f.all = append(f.all, conditions.Report{Kind: k, Details: fmt.Sprintf(format, args...)})
	}
}

// replication reports whether the two nodes are connected.
func (l *conditionMonitor) replication(f *findings, pair *failover.Status) {
	primary, follower := l.n.plane.roles()
	if primary != nil && pair.Record != nil {
		standby := primary.Standby
		f.pair(standby == nil, conditions.StandbyAbsent, "%s", pair.Reason)
		if standby != nil {
			_, inSync := pair.Record.Member(standby.Member.Node)
			lag := uint64(0)
			if primary.End.LSN > standby.Durable.LSN {
				lag = primary.End.LSN - standby.Durable.LSN
			}
			f.pair(!inSync, conditions.StandbyCatchingUp, "%s records behind", units.Count(lag))
		}
	}
	if primary != nil {
		l.foreignNode(f, primary.ForeignNode)
	}
	if follower != nil {
		f.node(follower.Refused != nil, conditions.PeerRejected, "%v", follower.Refused)
		f.node(!follower.Connected && !l.other.reachable(), conditions.ActiveUnreachable, "%s: %s", pair.Role,
			pair.Reason)
	}
}

// foreignTold is how long a refused node is reported after its last attempt.
const foreignTold = 10 * time.Second

// foreignNode reports a connection attempt by a node outside this pair.
func (l *conditionMonitor) foreignNode(f *findings, s *replication.ForeignNode) {
	switch {
	case s == nil || time.Since(s.At) > foreignTold:
	case errors.Is(s.Err, replication.ErrSameNode):
		f.node(true, conditions.DuplicateProcess, "%v", s.Err)
	default:
		f.pair(true, conditions.ForeignNode, "%v", s.Err)
	}
}

// slowSync is the mean sync time of the log above which a condition is reported.
const slowSync = 100 * time.Millisecond

// writes reports slow or failing writes to this node's log.
func (l *conditionMonitor) writes(f *findings) {
	var d replication.DiskStatus
	switch primary, follower := l.n.plane.roles(); {
	case primary != nil:
		d = primary.Disk
	case follower != nil:
		d = follower.Disk
	}
	f.node(d.Stalled, conditions.DiskStalled, "")
	f.node(d.Mean > slowSync, conditions.SyncSlow,
		"average of the last log writes with sync: %s", d.Mean.Round(time.Millisecond))
}

// disk reports problems with this node's disk.
func (l *conditionMonitor) disk(f *findings, pair *failover.Status) {
	room, err := l.n.store.Room()
	if err != nil {
		return // the node is about to stop, and reports the reason
	}
	mark := l.n.settings.Live().Disk.LowWatermark
	low := room.Low(uint64(mark.Bytes()))
	free := fmt.Sprintf("%s free and %s in free pages, disk.low-watermark is %s: %s", units.Bytes(room.FreeBytes),
		units.Bytes(room.PageBytes+room.PendingBytes), mark, whatHelps(room, uint64(mark.Bytes())))
	f.node(low, conditions.DiskLow, "%s", free)
	serves := pair.Role == failover.RoleActive || pair.Role == failover.RoleActiveAlone
	f.pair(low && serves, conditions.PublishesRefused, "node %s: %s", l.self().Name, free)
	_, follower := l.n.plane.roles()
	f.node(follower != nil && l.n.standbyFull.Load(), conditions.ReplicationStopped, "%s", free)
	f.node(l.n.cfg.Sync != "always", conditions.SyncOff, "sync is %s", l.n.cfg.Sync)
}

// content reports corruption.
func (l *conditionMonitor) content(f *findings) {
	st := l.n.store.Repair().Status()
	f.node(st.DamagedMessages > 0, conditions.CorruptMessages,
		"%s messages are corrupt, %s of them on both nodes",
		units.Count(st.DamagedMessages), units.Count(st.LostMessages))
	f.node(st.Index != nil, conditions.CorruptPageFile, "%v", st.Index)
	f.node(st.DamagedLogLSN != 0, conditions.CorruptLog, "record %d is corrupt", st.DamagedLogLSN)
	differ := l.n.guard.Difference()
	f.pair(differ != "", conditions.DigestsDiffer, "%s", differ)
}

// showHealth sets the health service to degraded if a condition needs an operator. mu is held.
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

// tell logs a condition that begins or ends.
func (l *conditionMonitor) tell(c conditions.Condition, raised bool) {
	fields := []zap.Field{
		zap.String("condition", string(c.Definition.Kind)),
		zap.Stringer("severity", c.Definition.Severity),
	}
	if c.Node.Name != "" {
		fields = append(fields, zap.String("on", c.Node.Name))
	}
	if c.Details != "" {
		fields = append(fields, zap.String("details", c.Details))
	}
	if !raised {
		l.n.log.Info("condition cleared", append(fields,
			zap.Duration("lasted", time.Since(c.Since).Round(time.Millisecond)))...)
		return
	}
	fields = append(fields, zap.String("means", c.Definition.Cause), zap.String("do", c.Definition.Action))
	switch c.Definition.Severity {
	case conditions.Critical:
		l.n.log.Error("condition", fields...)
	case conditions.Warning:
		l.n.log.Warn("condition", fields...)
	default:
		l.n.log.Info("condition", fields...)
	}
}
