// SPDX-License-Identifier: Apache-2.0

package pairstatus

import (
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	r := golden.Fill(&pb.GetStatusResponse{})
	plan := progress.NewPlan(r.GetPlan(), func(id string) string { return "name of " + id })
	golden.JSON(t, "status", Status{
		Pair: newPair(r.GetPair()), Nodes: []Node{newNode("127.0.0.1:7420", r)}, Plan: &plan,
		Site:       newSite(r.GetSite()),
		Fleet:      newFleet(r.GetFleet()),
		Conditions: []Condition{newCondition(r.GetConditions()[0])},
	})
}
