// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

func TestMain(m *testing.M) { clitest.Main(m) }
