// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store"
)

// The Go memory limit and the memory of the store are derived from the budget. Other limits are reduced to fit a
// small budget. GOMEMLIMIT takes precedence.
func TestMemoryLimit(t *testing.T) {
	const mib = 1 << 20
	require.EqualValues(t, 320*mib, memoryLimit(512*mib, 0))
	require.EqualValues(t, 320*mib, memoryLimit(512*mib, 200*mib))
	require.Greater(t, memoryLimit(512*mib, 1000*mib), int64(1250*mib), "memory needed beyond the budget is granted")
	require.EqualValues(t, 20*mib, memoryLimit(16*mib, 0),
		"the store's minimum, and a part of a small budget")
	require.EqualValues(t, 48*mib, memoryLimit(64*mib, 0))
	require.EqualValues(t, 256*mib, StoreMemory(512*mib))
	require.EqualValues(t, store.MinMemoryBudget, StoreMemory(20*mib))
	runtime.GC()
	require.Positive(t, heapInUse())

	limits := config.Default().Limits
	require.Equal(t, limits, limits.Within(int64(config.Default().Memory.Budget)), "the defaults fit")
	small := limits.Within(64 * mib)
	require.EqualValues(t, 8*mib, small.StreamInFlightBytes)
	require.Greater(t, small.PendingBytes, small.TransactionBytes, "one transaction fits")
	require.Less(t, small.PendingBytes, limits.PendingBytes)
	require.Equal(t, replication.DefaultTailBytes, tailMemory(512*mib))
	require.Equal(t, 4*mib, tailMemory(64*mib))

	t.Setenv("GOMEMLIMIT", "")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		LimitMemory(ctx, 512*mib)
	}()
	require.Eventually(t, func() bool { return debug.SetMemoryLimit(-1) == 320*mib }, time.Minute, time.Millisecond)
	cancel()
	<-done
	require.EqualValues(t, math.MaxInt64, debug.SetMemoryLimit(-1), "the previous limit is restored")
	t.Setenv("GOMEMLIMIT", "1GiB")
	LimitMemory(t.Context(), 256*mib) // returns immediately: the operator has set a limit
}
