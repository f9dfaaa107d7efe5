// SPDX-License-Identifier: Apache-2.0

package job

import (
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/golden"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	golden.JSON(t, "job", newJobState(golden.Fill(&pb.Job{})))
	golden.JSON(t, "run", newJobRun("nightly", golden.Fill(&pb.JobRun{})))
}
