// SPDX-License-Identifier: Apache-2.0

package pairstatus

import (
	"encoding/json"
	"testing"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Each condition is shown once. A condition of a node is taken from that node, if it responds. A condition of the
// pair is taken from the nodes that have the newest cluster record.
func TestStatusConditions(t *testing.T) {
	since := timestamppb.New(time.Unix(1_700_000_000, 0))
	responses := func(kind, node string, severity pb.Severity, details string) *pb.Condition {
		return &pb.Condition{
			Kind: kind, NodeId: node, NodeName: node, Severity: severity, Details: details,
			Since: since, Cause: "That means.", Action: "Do this.",
		}
	}
	s := Status{Nodes: []Node{
		{NodeID: "a", Name: "a", conditions: []*pb.Condition{
			responses("paused", "", pb.Severity_SEVERITY_INFO, ""),
			responses("disk-low", "b", pb.Severity_SEVERITY_CRITICAL, "of old"),
			responses("disk-low", "c", pb.Severity_SEVERITY_CRITICAL, "does not answer"),
		}},
		{NodeID: "b", Name: "b", conditions: []*pb.Condition{
			responses("paused", "", pb.Severity_SEVERITY_INFO, ""),
			responses("disk-low", "b", pb.Severity_SEVERITY_CRITICAL, "just now"),
			responses("one-copy-only", "", pb.Severity_SEVERITY_CRITICAL, "by an old record"),
		}},
	}}
	s.addConditions([]*pb.PairStatus{{Config: 7}, {Config: 6}})
	var got []string
	for _, c := range s.Conditions {
		got = append(got, c.Condition+" "+c.Details)
	}
	require.Equal(t, []string{"disk-low does not answer", "disk-low just now", "paused "}, got)

	raw, err := json.Marshal(s)
	require.NoError(t, err)
	require.Contains(t, string(raw), `{"condition":"paused","severity":"info",`+
		`"since":"2023-11-14T22:13:20Z","means":"That means.","do":"Do this."}`)
}

// A release without conditions reports alarms.
func TestStatusConditionsOfOlderRelease(t *testing.T) {
	got := reportedConditions(&pb.GetStatusResponse{
		Node: &pb.NodeStatus{NodeId: "1", Name: "a"}, Alarms: []*pb.Alarm{{Kind: "corrupt-log", Message: "record 7"}},
	})
	require.Len(t, got, 1)
	require.Equal(t, "corrupt-log", got[0].GetKind())
	require.Equal(t, "record 7", got[0].GetCause())
	require.Equal(t, "a", got[0].GetNodeName())
}
