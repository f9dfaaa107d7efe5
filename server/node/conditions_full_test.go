// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// The condition names the queue and the dead-letter queue of each pair.
func TestDeadLettersWaitCondition(t *testing.T) {
	var f findings
	deadLettersWait(&f, nil)
	require.Empty(t, f.all)
	full := dispatch.FullError{Queue: "orders", DeadLetter: "orders.dead"}
	deadLettersWait(&f, []dispatch.FullError{full})
	require.Equal(t, []conditions.Kind{conditions.DeadLetterQueueFull}, kinds(&f))
	require.Contains(t, f.all[0].Details, `"orders"`)
	require.Contains(t, f.all[0].Details, `"orders.dead"`)
	f.all = nil
	deadLettersWait(&f, make([]dispatch.FullError, 2*maxFullNamed))
	require.Len(t, f.all, 1)
}
