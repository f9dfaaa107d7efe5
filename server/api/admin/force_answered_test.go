// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// If both nodes may have lost acknowledged messages, the error advises the operator to stop the node with the
// shorter log. The advice does not depend on the node that receives the request. This situation occurs after a
// power failure of both nodes with sync=off.
func TestForceErrorNamesNodeToStop(t *testing.T) {
	self, gone, other := uuid.New(), uuid.New(), uuid.New()
	peer := &pb.AdoptedPeer{Address: "127.0.0.1:7420"}
	answer := func(id uuid.UUID) *pb.GetStatusResponse {
		return &pb.GetStatusResponse{
			Node:  &pb.NodeStatus{NodeId: id.String(), Name: "a"},
			Store: &pb.StoreStatus{LogDurable: &pb.Position{Term: 6, Lsn: 815}},
		}
	}
	inSync := func(id uuid.UUID) *failover.Record {
		return &failover.Record{Active: id, InSync: []failover.Member{{Node: id}}}
	}
	left := inSync(self) // the active left the in-sync set, because it may also have lost data (INV-6)
	left.Active = other
	for name, c := range map[string]struct {
		rec   *failover.Record
		other uuid.UUID
		lossy bool // the other node reports possible loss in its store
		own   lsn.Position
		want  error
	}{
		"this node lost everything": {rec: inSync(self), other: other, want: errNewerResponds},
		"this node lost a term": {
			rec: inSync(self), other: other, own: lsn.Position{Term: 5, LSN: 900},
			want: errNewerResponds,
		},
		"this node lost one record": {
			rec: inSync(self), other: other, own: lsn.Position{Term: 6, LSN: 814},
			want: errNewerResponds,
		},
		"both logs are equal": {
			rec: inSync(self), other: other, own: lsn.Position{Term: 6, LSN: 815},
			want: errOlderResponds,
		},
		"the active left the in-sync set, with a longer log": {
			rec: left, other: other, own: lsn.Position{Term: 6, LSN: 814},
			want: errNewerResponds,
		},
		"the active left the in-sync set, with an equal log": {
			rec: left, other: other, own: lsn.Position{Term: 6, LSN: 815},
			want: errOlderResponds,
		},
		"the only in-sync node lost more": {
			rec: inSync(other), other: other, lossy: true, own: lsn.Position{Term: 6, LSN: 816},
			want: errOlderResponds,
		},
		"the only in-sync node lost less": {
			rec: inSync(other), other: other, lossy: true, own: lsn.Position{Term: 6, LSN: 814},
			want: errNewerResponds,
		},
		"an empty node replaces the in-sync node": {
			rec: inSync(gone), other: other, own: lsn.Position{Term: 6, LSN: 10},
			want: errEmptyResponds,
		},
		"the other node is in sync": {
			rec: inSync(other), other: other, own: lsn.Position{Term: 6, LSN: 10},
			want: errPeerResponds,
		},
	} {
		s := answer(c.other)
		if c.lossy {
			s.Conditions = []*pb.Condition{
				{Kind: string(conditions.PossibleDataLoss), NodeId: c.other.String()},
			}
		}
		require.ErrorIs(t, respondingError(s, peer, c.rec, self, c.own), c.want, name)
	}
}
