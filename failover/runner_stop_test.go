// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// If Run returns during a request, the outcome of the request is unknown. A later request is not executed.
func TestStopDuringRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Runner{signal: make(chan struct{}, 1), stopped: make(chan struct{}), waiters: make(map[string]chan Effect)}
		failed := make(chan error)
		go func() {
			failed <- r.requestForce(t.Context(), ForceRequested{})
		}()
		synctest.Wait()
		close(r.stopped)
		err := <-failed
		require.ErrorIs(t, err, ErrStopped)
		require.ErrorIs(t, err, ErrUnknownOutcome)

		err = r.requestForce(t.Context(), ForceRequested{})
		require.ErrorIs(t, err, ErrStopped)
		require.NotErrorIs(t, err, ErrUnknownOutcome)
	})
}
