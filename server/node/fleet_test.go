// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
)

const fleetPrefix = "/test/fleet"

func inFleet(c config.Config, pair string, endpoints []string) config.Config {
	c.Fleet = config.Fleet{Pair: pair, Prefix: fleetPrefix, Endpoints: endpoints, Labels: []string{"zone=" + pair}}
	return c
}

// waitFleet waits until the status of the node has a fleet that fulfills a condition.
func (n *testNode) waitFleet(fulfilled func(f *pb.FleetStatus) bool) *pb.FleetStatus {
	n.t.Helper()
	var f *pb.FleetStatus
	require.Eventually(n.t, func() bool {
		st, err := n.admin.GetStatus(n.t.Context(), &pb.GetStatusRequest{})
		f = st.GetFleet()
		return err == nil && f != nil && fulfilled(f)
	}, testTimeout, 5*time.Millisecond, "fleet of %s", n.config.Node.Name)
	return f
}

func isMember(f *pb.FleetStatus) bool {
	return f.GetFleetId() != "" && f.GetDirectoryCurrent() && f.GetProblem() == ""
}

// waitLive waits until new queues can be placed on pairs: they have published their load. A member that has not is
// not live yet.
func (n *testNode) waitLive(pairs ...string) {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		resp, err := pb.NewFleetServiceClient(n.conn).GetFleet(n.t.Context(), &pb.GetFleetRequest{})
		live := map[string]bool{}
		for _, p := range resp.GetPairs() {
			live[p.GetName()] = p.GetLive()
		}
		return err == nil && !slices.ContainsFunc(pairs, func(name string) bool { return !live[name] })
	}, testTimeout, 5*time.Millisecond, "live pairs: %s", pairs)
}

// A standalone node and a pair join a fleet, and report it in their status. A node without fleet.pair reports that
// its pair is still a member, and accepts no replica at another site. Without a fleet, the status contains none.
//
// The test uses real sockets, because only a real etcd has transactions and leases.
func TestNodesJoinAFleet(t *testing.T) {
	etcd := startRealEtcd(t)
	alone := start(t, inFleet(settings(t, "alone"), "a", etcd.Endpoints()))
	joined := alone.waitFleet(isMember)
	require.Equal(t, "a", joined.GetPair())
	require.Equal(t, alone.ready.Advertise, fleetAddresses(t, etcd, "a"))

	active := start(t, inFleet(settingsOfPair(t, "b1", etcd), "b", nil))
	require.Equal(t, joined.GetFleetId(), active.waitFleet(isMember).GetFleetId())
	standby := start(t, inFleet(settingsOfPair(t, "b2", etcd), "b", nil))
	active.waitFor(pb.Role_ROLE_ACTIVE)
	require.Equal(t, "b", standby.waitFleet(isMember).GetPair())

	alone.stop()
	c := alone.config
	c.Fleet, c.Site.Name = config.Fleet{}, "east"
	alone = start(t, c)
	alone.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	left := alone.waitFleet(func(f *pb.FleetStatus) bool { return f.GetProblem() != "" })
	require.Equal(t, joined.GetFleetId(), left.GetFleetId())
	require.False(t, left.GetDirectoryCurrent())
	_, err := alone.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.Error(t, err, "INV-27")
	pull, err := pb.NewSiteServiceClient(alone.conn).PullSnapshot(t.Context(), &pb.PullSnapshotRequest{Site: "west"})
	require.NoError(t, err)
	_, err = pull.Recv()
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_ROLE, reasonOf(err), "a member of a fleet has no replica: %v", err)

	none := startAlone(t, nil)
	require.Nil(t, none.status().GetFleet())
	none.createQueue("q")
}

// fleetAddresses returns the value of a pair in etcd.
func fleetAddresses(t *testing.T, etcd coordinatorServer, pair string) string {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	resp, err := c.Get(t.Context(), fleetPrefix+"/pairs/"+pair)
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	var m struct{ Addresses []string }
	require.NoError(t, json.Unmarshal(resp.Kvs[0].Value, &m))
	require.Len(t, m.Addresses, 1)
	return m.Addresses[0]
}
