// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// With sync=off and sync=interval, a power cut of one node loses acknowledged data on that node. The pair loses
// nothing, because the other node has the data, and the affected node first leaves the in-sync set (INV-6). After a
// power cut of both, no node serves without an operator's decision. With sync=interval, all messages acknowledged more
// than an interval before are present.
func TestPowerCutUnsynced(t *testing.T) {
	t.Parallel() // mostly idle
	for _, mode := range []string{"off", "interval"} {
		t.Run(mode, func(t *testing.T) {
			p := startBreakable(t, cluster.Options{Settings: map[string]string{
				"sync": mode, "sync-interval": "100ms", "checkpoint.interval": "1h",
			}})
			u := unsynced{t: t, p: p, mode: mode, seed: seed(t)}
			u.hold()
			u.one()
			u.both()
		})
	}
}

// unsynced is a pair that acknowledges messages before an fsync.
type unsynced struct {
	t    *testing.T
	p    *cluster.Pair
	mode string
	seed uint64
}

// hold makes both disks lose unsynced data at each power cut, from now on and after each start.
func (u *unsynced) hold() {
	held := faultdisk.State{Hold: true, Seed: u.seed}
	for _, n := range u.p.Nodes() {
		n.StartWithDisk(held)
		setDisk(u.t, n, held)
	}
}

// one cuts the power of the active and then of the standby, under load.
func (u *unsynced) one() {
	t, p := u.t, u.p
	w := work(t, p, cluster.WorkloadOptions{Seed: u.seed})
	for range 2 {
		active, standby := inSync(t, p)
		acked(t, w)
		for _, victim := range []*cluster.Node{active, standby} {
			incarnation := incarnationOf(t, victim)
			since := w.History().Now()
			require.NoError(t, victim.LosePower())
			ackedSince(t, w, since, victim)
			require.NoError(t, victim.Start())
			inSync(t, p)
			require.Greater(t, incarnationOf(t, victim), incarnation, "%s returned without reporting the loss",
				victim.Name)
		}
	}
	verify(t, p, w)
	require.NoError(t, w.Cleanup(limited(t)))
}

// both cuts the power of both nodes together.
func (u *unsynced) both() {
	t, p := u.t, u.p
	c, err := p.NewClient(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, _, err = admin.New(c).CreateQueue(limited(t), "forced", admin.CreateQueueOptions{})
	require.NoError(t, err)
	publish(t, c, "early", 50)
	<-time.After(time.Second) // several sync intervals, not a wait for an event
	publish(t, c, "late", 50)
	for _, n := range p.Nodes() {
		require.NoError(t, n.LosePower())
	}
	for _, n := range p.Nodes() {
		require.NoError(t, n.Start())
	}
	waits := func(s *pb.GetStatusResponse) bool {
		return slices.Contains([]pb.Role{pb.Role_ROLE_RECOVERING, pb.Role_ROLE_CATCHING_UP}, s.GetRole())
	}
	states := func(s *pb.GetStatusResponse) bool {
		return strings.Contains(s.GetReason(), "is also running") &&
			strings.Contains(s.GetReason(), "lockstep failover --force")
	}
	require.NoError(t, p.Wait(limited(t), "two nodes that wait for an operator",
		func(a, b *pb.GetStatusResponse) bool { return waits(a) && waits(b) && (states(a) || states(b)) }))
	quietUntil := time.Now().Add(rollbackPause)
	for time.Now().Before(quietUntil) {
		for _, n := range p.Nodes() {
			require.True(t, waits(statusOf(t, n)), "%s serves, although it may have lost acknowledged messages", n.Name)
		}
		<-time.After(50 * time.Millisecond)
	}

	forced := u.force()
	active, _ := inSync(t, p)
	require.Equal(t, forced.Name, active.Name)
	left := []string{}
	_, err = admin.New(c).GetQueue(limited(t), "forced")
	if u.mode == "interval" || !errors.Is(err, client.ErrQueueNotFound) {
		require.NoError(t, err)
		left = append(left, stored(t, c)...)
	}
	t.Logf("sync=%s: %d of 100 messages remain", u.mode, len(left))
	all := append(bodies("early", 50), bodies("late", 50)...)
	require.Equal(t, all[:len(left)], left, "the remaining messages are not a prefix")
	if u.mode == "interval" {
		require.GreaterOrEqual(t, len(left), 50, "a message acknowledged before the sync interval is lost")
	}
	digests, err := p.Digests(limited(t))
	require.NoError(t, err)
	require.Equal(t, digests[0].Content, digests[1].Content)
}

// force acts as the operator: it stops the node with the shorter log, as the command requires, and forces a failover
// to the other node, without the missing records.
func (u *unsynced) force() *cluster.Node {
	t := u.t
	more := u.p.A
	if endOf(t, u.p.B) > endOf(t, u.p.A) {
		more = u.p.B
	}
	refused, err := command(t, "--addr", more.Address, "failover", more.Address, "--dry-run")
	require.Error(t, err, "the other node is connected")
	require.Contains(t, refused, "not ahead")
	require.NoError(t, u.p.Other(more).Stop())
	out, err := command(t, "--addr", more.Address, "failover", more.Address, "--force", "--accept-data-loss",
		"--yes", "--reason", "both lost power")
	require.NoError(t, err, out)
	require.NoError(t, u.p.WaitRole(limited(t), more, pb.Role_ROLE_ACTIVE_ALONE), out)
	require.NoError(t, u.p.Other(more).Start())
	return more
}

func endOf(t *testing.T, n *cluster.Node) uint64 {
	t.Helper()
	return statusOf(t, n).GetStore().GetLogEnd().GetLsn()
}

// incarnationOf returns the incarnation of a node's store, which increases when the store may have lost data.
func incarnationOf(t *testing.T, n *cluster.Node) uint64 {
	t.Helper()
	f, err := os.Open(filepath.Join(n.DataDir(), "identity"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var identity struct{ Incarnation uint64 }
	require.NoError(t, json.NewDecoder(f).Decode(&identity))
	return identity.Incarnation
}
