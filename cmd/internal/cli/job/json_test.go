// SPDX-License-Identifier: Apache-2.0

package job

import (
	"testing"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	golden.JSON(t, "job", newJobState(golden.Fill(&pb.Job{})))
	golden.JSON(t, "run", newJobRun("nightly", golden.Fill(&pb.JobRun{})))
}
