// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// While this node can read the cluster record, the record takes precedence over an older response of the active.
func TestRecordBeatsAnswer(t *testing.T) {
	a, b := uuid.New(), uuid.New()
	now := time.Unix(1_700_000_000, 0)
	l := &conditionMonitor{}
	l.other.at = now
	l.other.answer = &pb.GetStatusResponse{
		Now: timestamppb.New(now), Node: &pb.NodeStatus{NodeId: a.String(), Name: "a"},
		Conditions: []*pb.Condition{
			{Kind: string(conditions.OneCopyOnly), ReportedBy: a.String(), Since: timestamppb.New(now)},
			{Kind: string(conditions.PlanStuck), ReportedBy: a.String(), Since: timestamppb.New(now)},
		},
	}
	pair := failover.Status{
		CoordinatorReachable: true, Self: failover.NodeInfo{ID: b, Name: "b"},
		Record: &failover.Record{Active: a, InSync: []failover.Member{{Node: a}, {Node: b}}},
	}
	kinds := func() (kinds []conditions.Kind) {
		f := findings{self: conditions.Node{ID: b.String(), Name: "b"}}
		l.fromOther(&f, &pair, now)
		for _, r := range f.all {
			kinds = append(kinds, r.Kind)
		}
		return kinds
	}
	require.Equal(t, []conditions.Kind{conditions.PlanStuck}, kinds())
	pair.CoordinatorReachable = false
	require.Equal(t, []conditions.Kind{conditions.OneCopyOnly, conditions.PlanStuck}, kinds(),
		"the record of this node may be the older one")
}
