// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// A forced failover is rejected while the active serves. It succeeds after the loss of an active that dropped its
// standby, and the messages of the lost active are missing. After the restart of the lost node, the pair is in sync.
func TestForcedFailover(t *testing.T) {
	run(t, func(t *testing.T, p *pair) {
		c := p.client()
		_, _, err := admin.New(c).CreateQueue(t.Context(), "forced", admin.CreateQueueOptions{})
		require.NoError(t, err)
		publish := func(phase string, n int) (bodies []string) {
			for i := range n {
				bodies = append(bodies, fmt.Sprintf("%s-%d", phase, i))
				_, err := c.Publish(t.Context(), "forced", client.Message{Body: []byte(bodies[i])})
				require.NoError(t, err)
			}
			return bodies
		}
		want := publish("kept", 20)
		active, standby := p.inSync()
		start := time.Now()
		p.cut(true)
		active.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		require.InDelta(t, dropAfter, time.Since(start), float64(dropAfter/10))
		publish("lost", 30)
		force := func() error {
			plan, err := standby.Admin().ForceFailover(t.Context(), &pb.ForceFailoverRequest{})
			if err != nil {
				return err
			}
			_, err = standby.Admin().ForceFailover(t.Context(), &pb.ForceFailoverRequest{
				Confirm: true, AcceptDataLoss: true, Config: plan.GetConfig(), By: "test", Reason: "test",
			})
			return err
		}
		before := p.fence()
		require.Equal(t, codes.FailedPrecondition, status.Code(force()))
		require.Equal(t, before, p.fence())

		active.Kill()
		p.cut(false)
		sleep(10 * time.Second) // the standby does not take over
		require.Equal(t, before.Term, p.fence().Term)
		require.NotEqual(t, pb.Role_ROLE_ACTIVE_ALONE, standby.Role())
		start = time.Now()
		require.NoError(t, force())
		standby.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		require.LessOrEqual(t, time.Since(start), 20*time.Millisecond)
		require.Equal(t, before.Term+1, p.fence().Term)
		want = append(want, publish("after", 10)...)
		p.restart(active)
		now, _ := p.inSync()
		require.Same(t, standby, now)
		want = append(want, publish("both", 5)...)
		digests, err := p.Digests(t.Context())
		require.NoError(t, err)
		require.Equal(t, digests[0].Content, digests[1].Content)
		var stored []string
		for m, err := range c.Browse(t.Context(), "forced", client.BrowseOptions{}) {
			require.NoError(t, err)
			stored = append(stored, string(m.Body))
		}
		require.Equal(t, want, stored)
	})
}

// Bits flip in three log writes of the standby. After a restart, the standby fetches the corrupt records from the
// active, and the pair is in sync. The active keeps its role.
func TestFlippedLog(t *testing.T) {
	run(t, func(t *testing.T, p *pair) {
		w, l := p.work(), p.load()
		active, standby := p.inSync()
		before := p.fence()
		disk := p.disks[slices.Index(p.nodes[:], standby)]
		var writes, flips atomic.Int64
		logDir := filepath.Join(standby.Config.Data.Dir, "log")
		disk.SetHook(func(op faultfs.Op) error {
			if op.Kind != faultfs.OpWrite || filepath.Dir(op.Name) != logDir || op.Length > 64<<10 {
				return nil
			}
			if n := writes.Add(1); n%20 == 0 && n <= 60 {
				flips.Add(1)
				return &faultfs.FlipBit{Bit: 4 * op.Length}
			}
			return nil
		})
		p.w.Eventually(func() bool { return flips.Load() == 3 }, "three log writes should be corrupt")
		disk.SetHook(nil)
		l.more()
		standby.Kill()
		l.more()
		p.restart(standby)
		now, _ := p.inSync()
		require.Same(t, active, now)
		require.Equal(t, before.Term, p.fence().Term)
		require.NoError(t, compare(t, active, true))
		l.end()
		p.verify(w)
	})
}
