// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// One watch response contains two announcements of a process, and one of its duplicate in between. The duplicate is
// reported as running, because it announced itself after this process.
func TestDuplicateBetweenTwoAnnouncements(t *testing.T) {
	c := open(t, etcd.Options{Endpoints: []string{"127.0.0.1:1"}, Prefix: "/p", RequestTimeout: time.Minute})
	node := failover.NodeInfo{ID: uuid.New(), Name: "a", Address: "h:1"}
	own, duplicate := failover.Live{Node: node, Process: "own"}, failover.Live{Node: node, Process: "duplicate"}
	put := func(live failover.Live, created, modified int64) *clientv3.Event {
		value, err := json.Marshal(live)
		require.NoError(t, err)
		return &clientv3.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{
			Key: []byte("/p/run/" + node.ID.String() + "/" + live.Process), Value: value, CreateRevision: created,
			ModRevision: modified,
		}}
	}
	seen := func() failover.Observation {
		return coordtest.Await(t, c, "a duplicate process", func(o failover.Observation) bool { return o.Duplicate != nil })
	}
	c.Begin(own)
	c.Apply([]*clientv3.Event{put(duplicate, 5, 5)})
	require.True(t, seen().Duplicate.Stale, "the other process may have been killed before this one started")
	c.Apply([]*clientv3.Event{put(own, 10, 10), put(duplicate, 5, 11), put(own, 10, 12)})
	require.Equal(t, failover.Duplicate{Live: duplicate}, *seen().Duplicate)
}
