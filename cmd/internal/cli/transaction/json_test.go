// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	golden.JSON(t, "prepared", newPrepared(admin.PreparedTransaction{
		XID: "order/1", LSN: 7, PreparedAt: at, Bytes: 99,
		Queues: []admin.PreparedQueue{{Queue: "orders", Publishes: 2, Acks: 1}},
	}, at.Add(90*time.Second)))
	golden.JSON(t, "decision", decision{XID: "order/1", Committed: true})
}
