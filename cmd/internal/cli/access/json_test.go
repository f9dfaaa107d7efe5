// SPDX-License-Identifier: Apache-2.0

package access

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	at := timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	list := newTable(&pb.ListAccessResponse{
		Version: 17, Mode: "open", Operators: []string{"root"},
		Rules: []*pb.AccessRule{
			{
				Principal: "billing", Queue: "orders.*", Rights: []pb.AccessRight{1, 2}, Roles: []string{"deployer"},
				ChangedBy: "root", ChangedAt: at,
			},
			{Group: "ops", Rights: []pb.AccessRight{5, 6}},
		},
		Roles: []*pb.AccessRole{{Name: "deployer", Rights: []pb.AccessRight{3, 4}}},
		Tokens: []*pb.AccessToken{
			{Name: "ci", Principal: "ci-bot", Groups: []string{"g"}, ExpiresAt: at, CreatedBy: "root", CreatedAt: at},
			{Name: "forever", Principal: "p"},
		},
		Quotas: []*pb.AccessQuota{{Queue: "team-a/*", Queues: 9, Bytes: 1 << 30, MessagesPerSecond: 5000, Connections: 20}},
		Used:   []*pb.AccessQuota{{Queues: 3, Bytes: 12345, Connections: 2}},
	})
	golden.JSON(t, "list", list)
	golden.JSON(t, "rule", list.Rules[0])
	made := list.Tokens[0]
	made.Token = "lsk_shown-once"
	golden.JSON(t, "token", made)
	golden.JSON(t, "answer", answer{Allowed: true, Operators: []string{"root"}, Rules: list.Rules})
	golden.JSON(t, "whoami", self{
		Principal: "billing", Groups: []string{"g"}, Method: "certificate", Rules: list.Rules[:1],
	})
	golden.JSON(t, "removed", removedResult{Removed: "ci"})
	golden.JSON(t, "reset", resetDone{DataDir: "/data", Marker: "/data/access.reset"})
}
