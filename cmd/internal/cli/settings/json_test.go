// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"testing"

	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	var r runningSetting
	golden.FillStruct(&r)
	golden.JSON(t, "setting", r)
}
