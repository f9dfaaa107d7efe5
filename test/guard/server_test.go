// SPDX-License-Identifier: Apache-2.0

//go:build deep || measure

package guard

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// startPair starts a pair with a queue.
func startPair(t *testing.T) (active, standby *process, conn *grpc.ClientConn) {
	t.Helper()
	return startPairOf(t, nodeSettings{})
}

// startPairOf is like startPair, but with settings for both nodes.
func startPairOf(t *testing.T, s nodeSettings) (active, standby *process, conn *grpc.ClientConn) {
	t.Helper()
	etcd, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	s.Endpoints = etcd.Endpoints()
	s.Name = "a"
	active = start(t, s)
	conn = dial(t, active)
	waitFor(t, conn, pb.Role_ROLE_ACTIVE_ALONE)
	s.Name = "b"
	standby = start(t, s)
	waitFor(t, conn, pb.Role_ROLE_ACTIVE)
	_, err = pb.NewQueueServiceClient(conn).CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: queue})
	require.NoError(t, err)
	return active, standby, conn
}

// Nodes copy and checksum the bytes of large messages in memory only a limited number of times, between the
// connection, the log, the standby and the pages. Copies by the kernel into and out of sockets and files are not
// counted. Consumers receive each body unchanged, although released buffers are overwritten.
func TestCopiesOfLargeMessages(t *testing.T) {
	const requests, largeBytes = 60, 15_000
	active, standby, conn := startPair(t)
	nodes := []pb.AdminServiceClient{pb.NewAdminServiceClient(conn), pb.NewAdminServiceClient(dial(t, standby))}
	toPages := func() {
		for _, n := range nodes {
			_, err := n.Checkpoint(t.Context(), &pb.CheckpointRequest{})
			require.NoError(t, err)
		}
	}
	next := uint64(0)
	l := load{"15000 B", requests, 1, 16, largeBytes}
	publish(t, conn, l, requests, &next)
	toPages()
	beforeActive, beforeStandby := active.counts(), standby.counts()
	publish(t, conn, l, requests, &next)
	toPages()
	a, b := active.counts().since(beforeActive), standby.counts().since(beforeStandby)
	const payload = requests * largeBytes
	check(t, "active: copies of a large body", float64(a.Copied)/payload)
	check(t, "active: checksums of a large body", float64(a.Summed)/payload)
	check(t, "standby: copies of a large body", float64(b.Copied)/payload)
	check(t, "standby: checksums of a large body", float64(b.Summed)/payload)
	want := make([]byte, largeBytes)
	browse, err := pb.NewQueueServiceClient(conn).Browse(t.Context(), &pb.BrowseRequest{Queue: queue, Limit: 2 * requests})
	require.NoError(t, err)
	for read := 0; read < 2*requests; {
		r, err := browse.Recv()
		require.NoError(t, err)
		for _, m := range r.GetMessages() {
			require.Equal(t, want, m.GetMessage().GetBody())
			read++
		}
	}
}

func dial(t *testing.T, p *process) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// waitFor waits until the node has the role.
func waitFor(t *testing.T, conn *grpc.ClientConn, role pb.Role) {
	t.Helper()
	admin := pb.NewAdminServiceClient(conn)
	require.Eventually(t, func() bool {
		s, err := admin.GetStatus(t.Context(), &pb.GetStatusRequest{})
		return err == nil && s.GetRole() == role
	}, testTimeout, pollEvery)
}
