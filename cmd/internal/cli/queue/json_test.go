// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	var b bytes.Buffer
	p, err := output.New(&b, "json")
	require.NoError(t, err)
	var q admin.Queue
	golden.FillStruct(&q)
	require.NoError(t, showQueue(&cli.Env{Print: p}, q))
	q.Config.MaxDeliveries, q.Config.DeadLetter = 0, ""
	require.NoError(t, showQueue(&cli.Env{Print: p}, q))
	require.NoError(t, p.Object(newSubscriptionState(q.Subscriptions[0])))
	require.NoError(t, p.Object(replayed{Moved: 1, Skipped: 2}))
	var h admin.History
	golden.FillStruct(&h)
	require.NoError(t, p.Object(newHistoryState("q", &h)))
	golden.Text(t, "output.jsonl", b.String())
}
