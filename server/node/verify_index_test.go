// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/page"
)

// flipNodes flips a bit in each node of the tree in a page file.
func flipNodes(t *testing.T, name string, pageSize int) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	found := 0
	for at := page.OffsetOf(1, pageSize); at+page.ExtentHeaderBytes < int64(len(raw)); at += int64(pageSize) {
		h, err := page.PeekExtent(raw[at:])
		if err == nil && h.Kind == page.KindNode && h.Extent.First == page.NoAt(at, pageSize) {
			_, err = f.WriteAt([]byte{raw[at+60] ^ 1}, at+60)
			require.NoError(t, err)
			found++
		}
	}
	require.Positive(t, found)
}

// If a deep comparison detects that the standby's index is corrupt, it waits until the standby's store is replaced,
// and then compares the nodes.
func TestVerifyWhileIndexIsReplaced(t *testing.T) { simulated(t, testVerifyWhileIndexIsReplaced) }

func testVerifyWhileIndexIsReplaced(t *testing.T) {
	etcd := startEtcd(t)
	active := start(t, settingsOfPair(t, "a", etcd))
	active.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	c := settingsOfPair(t, "b", etcd)
	c.Data.Dir = t.TempDir()
	standby := start(t, c)
	standby.waitFor(pb.Role_ROLE_STANDBY)
	active.waitFor(pb.Role_ROLE_ACTIVE)
	active.createQueue("orders")
	active.publish("orders", "one", strings.Repeat("two", 3000), "three")
	for _, n := range []*testNode{active, standby} {
		_, err := n.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
		require.NoError(t, err)
	}
	flipNodes(t, datadir.PageFile(standby.config.Data.Dir), int(standby.config.PageSize))
	r, err := active.admin.Verify(t.Context(), &pb.VerifyRequest{Deep: true, FullSpeed: true})
	require.NoError(t, err)
	require.Empty(t, r.GetDifferences())
	require.Empty(t, r.GetContentError())
	require.Len(t, r.GetNodes(), 2)
}
