// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"testing"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	golden.JSON(t, "schedule", newState(golden.Fill(&pb.Schedule{})))
	golden.JSON(t, "run", ran{Schedule: "nightly", Queue: "jobs", Sequence: 1, LSN: 2})
}
