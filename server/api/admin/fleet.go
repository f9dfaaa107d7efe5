// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

func fleetStatus(f *conditions.Fleet) *pb.FleetStatus {
	if f == nil {
		return nil
	}
	return &pb.FleetStatus{
		Pair: f.Pair, FleetId: f.ID, DirectoryCurrent: f.Current,
		Problem: cmp.Or(f.Mismatch, f.Conflict, f.Lost, f.Unavailable),
	}
}
