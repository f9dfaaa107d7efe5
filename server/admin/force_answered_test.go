// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// TestForceNamesTheBetterNode: the only member in sync may be the one that has lost its store. It does not tell the
// operator to stop the other node and to force this one while that one holds more.
func TestForceNamesTheBetterNode(t *testing.T) {
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
	for name, c := range map[string]struct {
		rec   *failover.Record
		other uuid.UUID
		own   lsn.Position
		want  error
	}{
		"this node lost everything":          {inSync(self), other, lsn.Position{}, errMoreAnswers},
		"this node lost a term":              {inSync(self), other, lsn.Position{Term: 5, LSN: 900}, errMoreAnswers},
		"this node lost a little":            {inSync(self), other, lsn.Position{Term: 6, LSN: 814}, errMoreAnswers},
		"this node lost less":                {inSync(self), other, lsn.Position{Term: 6, LSN: 815}, errLessAnswers},
		"an empty node in place of the lost": {inSync(gone), other, lsn.Position{Term: 6, LSN: 10}, errEmptyAnswers},
		"the node that holds everything":     {inSync(other), other, lsn.Position{Term: 6, LSN: 10}, errOtherAnswers},
	} {
		require.ErrorIs(t, answeredBy(answer(c.other), peer, c.rec, self, c.own), c.want, name)
	}
}
