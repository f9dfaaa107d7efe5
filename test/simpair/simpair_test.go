// SPDX-License-Identifier: Apache-2.0

package simpair_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// The standby takes over immediately after the active is killed, and the killed node rejoins after a restart.
func TestKill(t *testing.T) {
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

// A pair has one active while its link is cut, and is in sync again after the link is restored.
func TestCut(t *testing.T) {
	simpair.Test(t, func(_ *testing.T, w *simpair.World) {
		a, b := w.StartPair()
		w.Net.SetCut(a.Host(), b.Host(), true)
		a.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		w.Net.SetCut(a.Host(), b.Host(), false)
		w.WaitInSync(a, b)
	})
}
