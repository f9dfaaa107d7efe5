// SPDX-License-Identifier: Apache-2.0

package iolock_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/iolock"
)

// The clock of a synctest bubble advances while goroutines wait for the lock. With a sync.Mutex it would stop.
func TestWaitForLockDoesNotStopClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m iolock.Mutex
		began := time.Now()
		inside, total := 0, 0
		var users sync.WaitGroup
		for range 5 {
			users.Go(func() {
				m.Lock()
				defer m.Unlock()
				inside++
				total += inside // 1, unless two goroutines hold the lock
				require.False(t, m.TryLock())
				time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
				inside--
			})
		}
		users.Wait()
		require.Equal(t, 5, total)
		require.Equal(t, 5*time.Second, time.Since(began))
		require.Panics(t, m.Unlock)
		require.True(t, m.TryLock())
	})
}
