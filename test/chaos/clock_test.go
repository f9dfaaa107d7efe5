// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// The clocks of nodes and coordinator jump by an hour or a month, forward and back, under load and with busy disks.
// No role changes, no node leaves the in-sync set, publishes continue, and no acknowledged message is lost. Clock
// differences are reported. Failover, start and rejoin work with incorrect clocks.
func TestClockJumps(t *testing.T) {
	if !required(needsFaultclock) && !fullMatrix() {
		t.Skip("the test recompiles all packages; set LOCKSTEP_REQUIRE=faultclock to run it")
	}
	for _, raft := range []bool{false, true} {
		t.Run(map[bool]string{false: "etcd", true: "raft"}[raft], func(t *testing.T) {
			// The timeouts are so long that a slow node is not treated as failed, and much shorter than the jumps.
			etcd := ""
			if !raft {
				var err error
				etcd, err = etcdWithClock()
				require.NoError(t, err)
			}
			p := startWith(t, cluster.Options{
				Binary: clockBinary(t), Clock: true, Disk: true, Raft: raft, EtcdBinary: etcd,
				Settings: map[string]string{
					"disk.stall-timeout": "20s", "failover.timeout": "10s", "failover.drop-timeout": "8s",
				},
			})
			w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
			c := clockJumper{t: t, p: p, w: w}
			busy := faultdisk.State{Rules: []faultdisk.Rule{{Ops: []string{"write"}, Delay: 200 * time.Millisecond}}}
			for _, n := range p.Nodes() {
				setDisk(t, n, busy)
			}
			active, standby := inSync(t, p)
			a, s := machine{"the active", active}, machine{"the standby", standby}
			for _, by := range jumps {
				c.jump(by, a)
				c.jump(by, s)
				c.jump(by, a, s)
				third := map[bool]machine{false: {"etcd", p.Etcd}, true: {"the witness", p.Witness}}[raft]
				c.jump(by, third)
				c.jump(by, a, s, third)
			}
			for _, n := range p.Nodes() {
				setDisk(t, n, healthyDisk)
			}
			c.failover()
			verify(t, p, w)
		})
	}
}

type machine struct {
	name  string
	clock interface {
		SetClock(offset time.Duration) error
	}
}

type clockJumper struct {
	t *testing.T
	p *cluster.Pair
	w *cluster.Workload
}

// jump sets clocks forward or back, and then restores them. It checks that the pair is not affected.
func (c *clockJumper) jump(by time.Duration, machines ...machine) {
	t := c.t
	active, _ := inSync(t, c.p)
	config := statusOf(t, active).GetPair().GetConfig()
	names := ""
	for _, m := range machines {
		names += " " + m.name
	}
	for _, offset := range []time.Duration{by, 0} {
		for _, m := range machines {
			require.NoError(t, m.clock.SetClock(offset))
		}
		for range 2 { // the second acknowledged message was sent after the jump
			acked(t, c.w)
		}
	}
	s := statusOf(t, active)
	require.Equal(t, pb.Role_ROLE_ACTIVE, s.GetRole(), "the clock of%s jumped by %v: %s", names, by, s.GetReason())
	require.Equal(t, config, s.GetPair().GetConfig(), "the clock of%s jumped by %v: the record was changed", names, by)
	for _, n := range c.p.Nodes() {
		require.False(t, hasLogged(t, n, "does not respond", 0),
			"the clock of%s jumped by %v: %s reports a stalled disk",
			names, by, n.Name)
	}
}

// failover kills the active while the clocks differ by two months. The standby takes over and the killed node
// rejoins.
func (c *clockJumper) failover() {
	t := c.t
	for _, by := range []time.Duration{jumps[2], jumps[3]} {
		active, standby := inSync(t, c.p)
		require.NoError(t, active.SetClock(by))
		require.NoError(t, standby.SetClock(-by))
		require.Eventually(t, func() bool {
			for _, x := range statusOf(t, active).GetConditions() {
				if x.GetKind() == "clock-skew" {
					return true
				}
			}
			return false
		}, bound, 50*time.Millisecond, "the clocks differ by two months, but no condition reports it")
		since := c.w.History().Now()
		require.NoError(t, active.Kill())
		took := ackedSince(t, c.w, since, active)
		t.Logf("kill of the active, with clocks %v apart, to the next acknowledged publish: %v", 2*by, took)
		require.NoError(t, active.Start())
		inSync(t, c.p)
		require.NoError(t, active.SetClock(0))
		require.NoError(t, standby.SetClock(0))
	}
}
