// SPDX-License-Identifier: Apache-2.0

package simpair_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// The standby takes over within 10 ms after the active is killed. The killed node rejoins after a restart.
func TestTakeoverAfterKill(t *testing.T) {
	simpair.Test(t, func(t *testing.T, w *simpair.World) {
		a, b := w.StartPair()
		_, err := a.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "orders"})
		require.NoError(t, err)
		start := time.Now()
		a.Kill()
		b.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		require.Less(t, time.Since(start), 10*time.Millisecond)
		a = a.Restart()
		w.WaitInSync(b, a)
		_, err = b.Queues().GetQueue(t.Context(), &pb.GetQueueRequest{Name: "orders"})
		require.NoError(t, err)
	})
}

// While the link is cut, the active continues alone. After the link is restored, the pair is in sync again.
func TestCutBetweenNodes(t *testing.T) {
	simpair.Test(t, func(_ *testing.T, w *simpair.World) {
		a, b := w.StartPair()
		w.Net.SetCut(a.Host(), b.Host(), true)
		a.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		w.Net.SetCut(a.Host(), b.Host(), false)
		w.WaitInSync(a, b)
	})
}
