// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// An outage of the coordinator delays no publish while both nodes are up. After the outage, a failover succeeds.
func TestCoordinatorOutage(t *testing.T) {
	run(t, func(t *testing.T, p *pair) {
		w, l := p.work(), p.load()
		active, standby := p.inSync()
		usual := l.slowest(time.Now().Add(-time.Second), time.Now())
		from := time.Now()
		p.stopCoordinatorResponses(true)
		sleep(15 * time.Second) // longer than all leases and timeouts
		for _, n := range p.nodes {
			require.False(t, p.status(n).GetPair().GetCoordinatorReachable())
		}
		require.Equal(t, pb.Role_ROLE_ACTIVE, active.Role())
		slowest := l.slowest(from, time.Now())
		t.Logf("a publish took up to %v, and without the coordinator up to %v", usual, slowest)
		require.LessOrEqual(t, slowest, usual+roundTrip)
		p.stopCoordinatorResponses(false)
		sleep(time.Second)
		require.Equal(t, pb.Role_ROLE_ACTIVE, active.Role())
		require.Equal(t, pb.Role_ROLE_STANDBY, standby.Role())
		l.end()
		from = time.Now()
		active.Kill()
		standby.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		require.LessOrEqual(t, time.Since(from), 10*time.Millisecond)
		p.restart(active)
		p.verify(w)
	})
}
