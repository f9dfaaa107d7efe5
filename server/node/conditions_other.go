// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/units"
)

const (
	// askInterval is the interval at which the other node's status is polled, and askTimeout bounds one poll.
	askInterval = 2 * time.Second
	askTimeout  = time.Second
	// answerAge is how long a response is valid.
	answerAge = 5 * time.Second
	// clockSlack is the largest accepted difference between the clocks of the two nodes.
	clockSlack = 2 * time.Second
)

// otherStatus is the last status response of the other node.
type otherStatus struct {
	mu     sync.Mutex // guards the fields below
	answer *pb.GetStatusResponse
	at     time.Time     // time of the response; zero if the last poll failed
	offset time.Duration // clock offset, and the part of it that network delay may explain
	unsure time.Duration
}

// reachable reports whether the other node answered recently.
func (o *otherStatus) reachable() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.at.IsZero()
}

// watchOther polls the other node until ctx ends.
func (l *conditionMonitor) watchOther(ctx context.Context) {
	ticker := time.NewTicker(askInterval)
	defer ticker.Stop()
	for {
		l.askOther(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// otherAddress returns the known address of the other node.
func (l *conditionMonitor) otherAddress() (failover.NodeInfo, bool) {
	st := l.n.runner.Status()
	if st.Record == nil {
		return failover.NodeInfo{}, false
	}
	ids := []uuid.UUID{st.Record.Active}
	for _, m := range st.Record.InSync {
		ids = append(ids, m.Node)
	}
	for _, n := range st.Record.Nodes {
		ids = append(ids, n.ID)
	}
	for _, live := range st.Live {
		ids = append(ids, live.Node.ID)
	}
	for _, id := range ids {
		if id == st.Self.ID {
			continue
		}
		if n, ok := st.Node(id); ok && n.Address != "" {
			return n, true
		}
	}
	return failover.NodeInfo{}, false
}

func (l *conditionMonitor) askOther(ctx context.Context) {
	other, known := l.otherAddress()
	var answer *pb.GetStatusResponse
	began := time.Now()
	if known {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		if got, err := l.n.peers.Status(ctx, other.Address); err == nil &&
			got.GetNode().GetNodeId() == other.ID.String() {
			answer = got
		}
	}
	o := &l.other
	o.mu.Lock()
	defer o.mu.Unlock()
	if answer == nil {
		o.at = time.Time{}
		return
	}
	o.answer, o.at, o.offset, o.unsure = answer, time.Now(), 0, 0
	if answer.GetNow() != nil { // since 0.2.0
		way := o.at.Sub(began)
		o.offset, o.unsure = answer.GetNow().AsTime().Sub(began.Add(way/2)), way/2
	}
}

// fromOther adds the other node's conditions: its own and, if it is the active, those of the pair.
func (l *conditionMonitor) fromOther(f *findings, pair *failover.Status, now time.Time) {
	l.other.mu.Lock()
	defer l.other.mu.Unlock()
	o := &l.other
	if o.at.IsZero() || now.Sub(o.at) > answerAge {
		return
	}
	f.pair(o.offset.Abs() > clockSlack+o.unsure, conditions.ClockSkew, "clock of the other node is %s %s",
		o.offset.Abs().Round(100*time.Millisecond), map[bool]string{true: "ahead", false: "behind"}[o.offset > 0])
	node := conditions.Node{ID: o.answer.GetNode().GetNodeId(), Name: o.answer.GetNode().GetName()}
	if o.answer.GetNow() == nil {
		l.fromOlder(f, o.answer, node)
		return
	}
	active := pair.Record != nil && pair.Record.Active.String() == node.ID
	for _, c := range o.answer.GetConditions() {
		// Skip reports that originate from this node or concern it: this node has newer data. This node reads
		// conditions of the cluster record itself, since a response can be older than the record.
		if c.GetReportedBy() != node.ID || c.GetNodeId() == f.self.ID || c.GetNodeId() == "" && !active ||
			conditions.InRecord(conditions.Kind(c.GetKind())) && pair.CoordinatorReachable {
			continue
		}
		f.all = append(f.all, conditions.Report{
			Kind: conditions.Kind(c.GetKind()), Node: conditions.Node{ID: c.GetNodeId(), Name: c.GetNodeName()},
			Details: c.GetDetails(), Since: c.GetSince().AsTime(), By: node.ID,
		})
	}
}

// fromOlder derives conditions from the response of an older release that does not report conditions.
func (l *conditionMonitor) fromOlder(f *findings, answer *pb.GetStatusResponse, node conditions.Node) {
	free, mark := answer.GetStore().GetDiskFree(), l.n.settings.Live().Disk.LowWatermark
	if free > 0 && free < uint64(mark.Bytes()) {
		f.all = append(f.all, conditions.Report{Kind: conditions.DiskLow, Node: node, By: node.ID, Details: fmt.Sprintf(
			"%s free, this node's disk.low-watermark is %s", units.Bytes(free), mark,
		)})
	}
	for _, a := range answer.GetAlarms() {
		if kind := conditions.Kind(a.GetKind()); conditions.Find(kind) != nil {
			f.all = append(f.all, conditions.Report{
				Kind: kind, Node: node, Details: a.GetMessage(),
				Since: a.GetSince().AsTime(), By: node.ID,
			})
		}
	}
}
