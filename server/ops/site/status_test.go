// SPDX-License-Identifier: Apache-2.0

package site

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// A site is superseded only by a higher epoch of the same lineage.
func TestSuperseded(t *testing.T) {
	own := uuid.New()
	for name, tt := range map[string]struct {
		remote *pb.SiteState
		want   bool
	}{
		"unknown":       {nil, false},
		"higher epoch":  {&pb.SiteState{Lineage: own.String(), Epoch: 4}, true},
		"equal epoch":   {&pb.SiteState{Lineage: own.String(), Epoch: 3}, false},
		"other lineage": {&pb.SiteState{Lineage: uuid.NewString(), Epoch: 4}, false},
		"no lineage":    {&pb.SiteState{}, false},
	} {
		st := Status{State: queue.SiteState{Role: queue.SitePrimary, Lineage: own, Epoch: 3}, Remote: tt.remote}
		require.Equal(t, tt.want, st.Superseded(), name)
	}
}

// RemoteRole is the inverse of roleToProto.
func TestRemoteRole(t *testing.T) {
	for r := queue.SiteNone; r <= queue.SiteStopped; r++ {
		st := Status{Remote: &pb.SiteState{Role: roleToProto(r)}}
		require.Equal(t, r, st.RemoteRole())
	}
	require.Equal(t, queue.SiteNone, (&Status{}).RemoteRole())
}
