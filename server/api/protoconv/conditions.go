// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"cmp"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// ConditionsToProto converts the conditions known to the node self.
func ConditionsToProto(all []conditions.Condition, self string) []*pb.Condition {
	out := make([]*pb.Condition, 0, len(all))
	for i := range all {
		c := &all[i]
		out = append(out, &pb.Condition{
			Kind: string(c.Definition.Kind), Severity: pb.Severity(c.Definition.Severity), Details: c.Details,
			Since: timestamppb.New(c.Since), Cause: c.Definition.Cause, Action: c.Definition.Action,
			NodeId: c.Node.ID, NodeName: c.Node.Name, ReportedBy: cmp.Or(c.By, self),
		})
	}
	return out
}

// AlarmsToProto converts the conditions of the node self and of the pair that require attention to alarms, which
// conditions replace in the API.
func AlarmsToProto(all []conditions.Condition, self string) []*pb.Alarm {
	out := make([]*pb.Alarm, 0, len(all))
	for i := range all {
		if c := &all[i]; c.Definition.Severity >= conditions.Warning && (c.Node.ID == "" || c.Node.ID == self) {
			out = append(out, &pb.Alarm{
				Kind: c.Definition.AlarmName(), Message: c.Text(), Since: timestamppb.New(c.Since),
			})
		}
	}
	return out
}
