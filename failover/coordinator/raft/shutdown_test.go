// SPDX-License-Identifier: Apache-2.0

package raft_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// A request that raft has queued, but not processed, at its shutdown ends with the voter. The bubble of the test
// ends only after all its goroutines have ended.
func TestQueuedRequestEndsWithVoter(t *testing.T) { simulate(t, testQueuedRequestEndsWithVoter) }

func testQueuedRequestEndsWithVoter(t *testing.T) {
	c := startCluster(t)
	w := c.voters[witness]
	k := w.Connect()
	rec := coordtest.SampleRecord("op1")
	rev, err := k.Swap(timed(t), 0, rec) // the witness is ready to lead
	require.NoError(t, err)
	release := w.StallDisk()
	swapped := make(chan error, 1)
	go func() { // blocks raft's main goroutine
		rec.Config, rec.OpID = 2, "op2"
		_, err := k.Swap(timed(t), rev, rec)
		swapped <- err
	}()
	synctest.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, w.Transfer(ctx), context.DeadlineExceeded)
	require.NoError(t, <-swapped, "another leader was elected")
	require.NoError(t, k.Close())
	go func() {
		synctest.Wait()
		release()
	}()
	c.stop(witness)
}
