// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// The store sends events with the results of checkpoints and maintenance operations.
func TestEvents(t *testing.T) {
	var mu sync.Mutex
	var reported []events.Event
	o := options(memfs.New())
	o.Events = func(e events.Event) {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, e)
	}
	n := openNode(t, o)
	n.commit(createQueue)
	info, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	_, err = n.s.Maintenance().Rewrite(t.Context(), rewrite.Options{PageSize: 4096, Reason: "test"})
	require.NoError(t, err)
	require.NoError(t, n.s.Close())

	mu.Lock()
	defer mu.Unlock()
	var names []string
	for _, e := range reported {
		names = append(names, events.Name(e))
	}
	require.Subset(t, names, []string{"checkpoint-written", "rewrite-begun", "rewrite-done"})
	first, ok := reported[0].(events.CheckpointWritten)
	require.True(t, ok, "%v", names)
	require.Equal(t, info.Checkpoint, first.Number)
	require.Equal(t, info.Position, first.Position)
	for _, e := range reported {
		switch e := e.(type) {
		case events.RewriteStarted:
			require.Equal(t, "test", e.Reason)
			require.Equal(t, []int{2048, 4096}, []int{e.FromPageSize, e.PageSize})
		case events.RewriteDone:
			require.Equal(t, 4096, e.PageSize)
		}
	}
}
