// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/console"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// If the pair belongs to no fleet, the menu does not contain the Fleet page, and the page shows no fleet.
func TestFleetPageWithoutFleet(t *testing.T) { simulated(t, testFleetPageWithoutFleet) }

func testFleetPageWithoutFleet(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	require.NotContains(t, b.get("/pair").body, `href="/fleet"`)
	a := b.get("/fleet")
	require.Equal(t, http.StatusOK, a.code)
	require.Contains(t, a.body, `class="empty"`)
}

// The Fleet page shows directory, pairs, rules and moves. Text from other pairs is escaped.
func TestFleetPageShowsFleet(t *testing.T) {
	page, err := console.FleetPage(&pb.GetFleetResponse{
		Pair: "a",
		Directory: &pb.FleetDirectory{
			Loaded: true, FleetId: "f-1", LastEpoch: 48, Queues: 1200, Error: script,
			Problem:   pb.DirectoryProblem_DIRECTORY_PROBLEM_REBUILDING,
			Malformed: []string{script},
		},
		Membership: &pb.FleetMembership{Conflicts: []*pb.DirectoryConflict{{Queue: script, Pair: "b"}}, ConflictsTotal: 1},
		Pairs: []*pb.FleetPair{
			{
				Name: "a", State: pb.PairState_PAIR_STATE_OPEN, Live: true, Queues: 1160, Addresses: []string{"a-1:7420"},
				CapacityBytes: 4 << 30, Load: &pb.PairLoad{StoredBytes: 2048, FreeBytes: 1 << 30, PublishRate: 7},
			},
			{
				Name: script, State: pb.PairState_PAIR_STATE_DRAINING, Queues: 40, Addresses: []string{script},
				Labels: map[string]string{"region": "eu", "x": script},
			},
		},
		Rules: []*pb.PlacementRule{
			{Pattern: script, Pair: "b"}, {Pattern: "eu.*", Labels: map[string]string{"region": "eu", "disk": "ssd"}},
		},
	}, &pb.ListMovesResponse{Moves: []*pb.FleetMove{
		{
			Epoch: 46, From: "b", To: "a", Queues: []string{"x", script}, Phase: pb.MovePhase_MOVE_PHASE_COPYING,
			CopiedBytes: 4096, RemainingBytes: 3 << 20, Error: script,
		},
		{Epoch: 47, From: "a", To: "b", Queues: []string{"y"}},
		{
			Epoch: 48, From: "b", To: "a", Queues: []string{"z"}, Phase: pb.MovePhase_MOVE_PHASE_TAKEN,
			Pause: durationpb.New(30 * time.Millisecond),
		},
	}}, "javascript:alert(1)")
	require.NoError(t, err)
	for _, part := range []string{
		"</i>rebuilding</span>", "<dt>Queues</dt><dd>1,200</dd>", "</i>open</span>", "</i>draining</span>",
		"</i>not live</span>",
		"2.0 KiB", "4.0 GiB", "75 % used", "disk=ssd, region=eu", "</i>copying</span>", "</i>known to the target</span>",
		"3.0 MiB", "30ms", `href="/fleet/cancel?epoch=46"`, `href="/fleet/drain?pair=a"`, "may be missing", "failure-title",
	} {
		require.Contains(t, page, part)
	}
	require.NotContains(t, page, "cancel?epoch=47", "only the target can cancel a move")
	require.NotContains(t, page, "cancel?epoch=48", "the queues were taken")
	require.Less(t, strings.Index(page, ">48<"), strings.Index(page, ">46<"), "the last move is the first")
	require.NotContains(t, page, "<script>alert")
	require.NotContains(t, page, "<img src=x")
	require.NotContains(t, page, `href="javascript:`)
}

// In a fleet with etcd, the actions of the Fleet page change the directory, and the page of a queue shows its pair.
func TestFleetPageActions(t *testing.T) {
	etcd := coordtest.StartEtcd(t, t.TempDir(), "")
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	start := func(pair string) *browser {
		return newBrowser(t, startNode(t, func(c *config.Config) {
			c.Fleet.Pair, c.Fleet.Endpoints = pair, etcd.Endpoints()
			c.Insecure = true
		}).Console)
	}
	a, b := start("a"), start("b")
	shows := func(page *browser, parts ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			body := page.get("/fleet").body
			for _, part := range parts {
				if !strings.Contains(body, part) {
					return false
				}
			}
			return true
		}, testTimeout, 20*time.Millisecond, parts)
	}
	for _, page := range []*browser{a, b} {
		shows(page, "</i>available</span>", `data-key="a"`, `data-key="b"`, ">console of a</a>")
	}
	require.Contains(t, a.get("/pair").body, `href="/fleet"`)

	a.act("/fleet/place", url.Values{"pattern": {"x*"}, "pair": {"b"}})
	shows(b, "<code>x*</code>", "pair b")
	form := url.Values{"csrf": {a.csrf()}, "pattern": {"y"}, "labels": {"nonsense"}}
	require.Equal(t, http.StatusBadRequest, a.post("/fleet/place", form, htmx).code)
	require.Eventually(t, func() bool {
		form := url.Values{"csrf": {b.csrf()}, "name": {"x1"}}
		return b.post("/queues/create", form, htmx).code < http.StatusBadRequest
	}, testTimeout, 20*time.Millisecond)
	require.Contains(t, b.get("/queue?name=x1").body, "Pair <b>b</b>")

	require.Contains(t, a.get("/fleet/move").body, "pair <b>a</b>")
	require.Eventually(t, func() bool {
		form := url.Values{"csrf": {a.csrf()}, "queues": {"x1\r\n"}}
		return a.post("/fleet/move", form, htmx).code < http.StatusBadRequest
	}, testTimeout, 20*time.Millisecond)
	shows(a, "</i>done</span>", `<td class="break">x1</td>`)
	require.Contains(t, a.get("/queue?name=x1").body, "Pair <b>a</b>")
	form = url.Values{"csrf": {a.csrf()}}
	require.Equal(t, http.StatusConflict, a.post("/fleet/cancel?epoch=1", form, htmx).code)

	a.act("/fleet/drain?pair=b", url.Values{})
	shows(a, "</i>draining</span>", `href="/fleet/undrain?pair=b"`)
	a.act("/fleet/undrain?pair=b", url.Values{})
	a.act("/fleet/unplace?pattern=x*", url.Values{})
	shows(a, "No rules", `href="/fleet/drain?pair=b"`)
	require.Contains(t, a.get("/audit").body, "MoveQueues")
}
