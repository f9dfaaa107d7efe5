// SPDX-License-Identifier: Apache-2.0

package message

import (
	"testing"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	var m client.Stored
	golden.FillStruct(&m)
	m.Body = []byte("text")
	m.DeadLetter.Reason = "rejected"
	golden.JSON(t, "message", output.NewMessage("orders", m, true))
	golden.JSON(t, "headers", output.NewMessage("orders", m, false))
	m.Body = []byte{0xff, 0}
	golden.JSON(t, "binary", output.NewMessage("orders", m, true))
	var p published
	golden.FillStruct(&p)
	golden.JSON(t, "published", p)
}
