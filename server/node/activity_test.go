// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// The status contains counters, commit latencies and the standby's lag, even if the node serves no metrics.
func TestActivity(t *testing.T) { simulated(t, testActivity) }

func testActivity(t *testing.T) {
	etcd := startEtcd(t)
	a := start(t, settingsOfPair(t, "a", etcd))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	b := start(t, settingsOfPair(t, "b", etcd))
	b.waitFor(pb.Role_ROLE_STANDBY)
	a.waitFor(pb.Role_ROLE_ACTIVE)
	before := a.status().GetActivity()
	a.createQueue("q")
	a.publish("q", "one", "two", "three")
	c := a.consume("q", 10)
	got := c.take(3)
	c.confirm(&pb.ConsumeRequest{Ack: span(got[0].GetSequence(), got[1].GetSequence()), Confirm: 1})

	st := a.status()
	now := st.GetActivity()
	require.Equal(t, uint64(3), now.GetPublished()-before.GetPublished())
	require.Equal(t, uint64(3), now.GetDelivered()-before.GetDelivered())
	require.Equal(t, uint64(2), now.GetAcknowledged()-before.GetAcknowledged())
	require.Greater(t, now.GetTransactions(), before.GetTransactions())
	require.Positive(t, now.GetPublishedBytes())
	require.Equal(t, uint64(1), now.GetConsumers())
	require.Positive(t, now.GetConnections())
	require.Positive(t, now.GetMemoryBytes())
	require.Equal(t, uint64(a.config.Memory.Budget.Bytes()), now.GetMemoryBudgetBytes())
	count, last := uint64(0), time.Duration(0)
	for _, bucket := range now.GetCommits() {
		require.Greater(t, bucket.GetUpTo().AsDuration(), last)
		last = bucket.GetUpTo().AsDuration()
		count += bucket.GetCount()
	}
	require.GreaterOrEqual(t, count, uint64(3), "the queue, the messages and the acknowledgements")
	require.Greater(t, st.GetStore().GetDiskSize(), st.GetStore().GetDiskFree())
	require.NotNil(t, st.GetStandby().GetLagTime())
	require.Eventually(t, func() bool { // the standby applies the transactions later
		standby := b.status().GetActivity()
		return standby.GetPublished() == 3 && standby.GetAcknowledged() == 2 && standby.GetDelivered() == 0 &&
			len(standby.GetCommits()) == 0
	}, testTimeout, 10*time.Millisecond)
}
