// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/lab"
)

func TestMain(m *testing.M) { clitest.MainOf(m, lab.Run) }
