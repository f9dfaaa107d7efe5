// SPDX-License-Identifier: Apache-2.0

package top

import (
	"testing"

	"github.com/lockstep-mq/lockstep/test/golden"
)

func TestJSON(t *testing.T) {
	var p Screen
	golden.FillStruct(&p)
	golden.JSON(t, "picture", p)
}
