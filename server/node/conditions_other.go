// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

const (
	// pollInterval is the interval at which the status of the other node is polled.
	pollInterval = 2 * time.Second
	pollTimeout  = time.Second
)

type otherStatus struct {
	mu     sync.Mutex // guards the fields below
	answer *pb.GetStatusResponse
	at     time.Time     // time of the response; zero if the last poll failed
	offset time.Duration // clock offset; unsure is the part of it that network delay may explain
	unsure time.Duration
}

func (o *otherStatus) last() *conditions.Other {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at.IsZero() {
		return nil
	}
	node := conditions.Node{ID: o.answer.GetNode().GetNodeId(), Name: o.answer.GetNode().GetName()}
	other := &conditions.Other{Node: node, At: o.at, Offset: o.offset, Unsure: o.unsure}
	if o.answer.GetNow() == nil { // the other node has a release before 0.2.0
		other.Older, other.DiskFree = true, o.answer.GetStore().GetDiskFree()
		for _, a := range o.answer.GetAlarms() {
			other.Reports = append(other.Reports, conditions.Report{
				Kind: conditions.Kind(a.GetKind()), Node: node, Details: a.GetMessage(), Since: a.GetSince().AsTime(), By: node.ID,
			})
		}
		return other
	}
	for _, c := range o.answer.GetConditions() {
		other.Reports = append(other.Reports, conditions.Report{
			Kind: conditions.Kind(c.GetKind()), Node: conditions.Node{ID: c.GetNodeId(), Name: c.GetNodeName()},
			Details: c.GetDetails(), Since: c.GetSince().AsTime(), By: c.GetReportedBy(),
		})
	}
	return other
}

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

func (l *conditionMonitor) pollOther(ctx context.Context) {
	other, known := l.otherAddress()
	var answer *pb.GetStatusResponse
	began := time.Now()
	if known {
		ctx, cancel := context.WithTimeout(ctx, pollTimeout)
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
	if answer.GetNow() != nil { // the other node has release 0.2.0 or later
		way := o.at.Sub(began)
		o.offset, o.unsure = answer.GetNow().AsTime().Sub(began.Add(way/2)), way/2
	}
}
