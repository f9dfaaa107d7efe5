// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// The console shows and changes queues of another pair of the fleet.
//
// The test uses real sockets, because the directory requires a real etcd.
func TestFleetQueuePages(t *testing.T) {
	etcd := coordtest.StartEtcd(t, t.TempDir(), "")
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	inPair := func(pair string) func(*config.Config) {
		return func(c *config.Config) {
			c.Node.Name, c.Fleet.Pair, c.Fleet.Endpoints = pair, pair, etcd.Endpoints()
		}
	}
	a, b := startNode(t, inPair("a")), startNode(t, inPair("b"))
	cc := connect(t, b.Address)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	require.Eventually(t, func() bool {
		_, err := pb.NewFleetServiceClient(cc).PutPlacementRule(t.Context(), &pb.PutPlacementRuleRequest{
			Rule: &pb.PlacementRule{Pattern: "b.*", Pair: "b"},
		})
		return err == nil
	}, testTimeout, 5*time.Millisecond, "the pair must be a member")

	page := newBrowser(t, a.Console)
	page.waitActive()
	do := func(path string, form url.Values) response {
		t.Helper()
		form.Set("csrf", page.csrf())
		return page.post(path, form)
	}
	require.Eventually(t, func() bool {
		return do("/queues/create", url.Values{"name": {"b.q"}}).at == "/queue"
	}, testTimeout, 5*time.Millisecond, "the pair must be a member")
	_, err := pb.NewQueueServiceClient(cc).GetQueue(t.Context(), &pb.GetQueueRequest{Name: "b.q"})
	require.NoError(t, err, "pair b has the queue")

	require.Contains(t, do("/queue/publish?name=b.q", url.Values{"body": {"x"}, "count": {"3"}}).body, "Published 3")
	require.Contains(t, page.get("/queue?name=b.q").body, `<dd id="depth">3</dd>`)
	require.Contains(t, page.get("/messages?name=b.q").body, "sequence=3")
	do("/messages/remove?name=b.q&sequence=1", url.Values{})
	require.Contains(t, page.get("/queue?name=b.q").body, `<dd id="depth">2</dd>`)

	require.NotContains(t, page.get("/queues").body, "/queue?name=b.q")
	list := page.get("/queues?pair=b&search=q")
	require.Contains(t, list.body, "/queue?name=b.q")
	require.Contains(t, list.body, "a (this pair)")

	require.Equal(t, "/queues", do("/queue/delete?name=b.q", url.Values{"confirm": {"b.q"}}).at)
	require.Equal(t, http.StatusNotFound, page.get("/queue?name=b.q").code)
}
