// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// With a stalled disk, the sender does not spin on a commit LSN that it cannot send.
func TestStalledDiskDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Primary{}
		p.o.Tuning = Tuning{}.withDefaults()
		sd := &sender{p: p, s: &session{done: make(chan struct{}), wake: make(chan struct{}, 1)}, lastSent: time.Now()}
		p.io.base = time.Now()
		p.io.begin()
		time.Sleep(2 * p.o.DiskStallTimeout) //nolint:forbidigo // the bubble's clock
		p.commit.Store(1)
		began := time.Now()
		const rounds = 10
		for range rounds {
			wait, err := sd.idle()
			require.NoError(t, err)
			time.Sleep(wait) //nolint:forbidigo // as above
		}
		// Every second iteration waits for a heartbeat that is not sent.
		require.GreaterOrEqual(t, time.Since(began), (rounds/2-1)*p.o.Heartbeat)
	})
}
