// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (b *browser) waitActive() {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.get("/queues").code == http.StatusOK }, testTimeout,
		5*time.Millisecond)
}

// The pages can create, list, search, page, configure, purge and delete queues. They can publish, show, move and
// delete messages.
func TestQueuePages(t *testing.T) { simulated(t, testQueuePages) }

func testQueuePages(t *testing.T) {
	ready := startNode(t, nil)
	b := newBrowser(t, ready.Console)
	b.waitActive()
	do := func(path string, form url.Values) response {
		t.Helper()
		form.Set("csrf", b.csrf())
		return b.post(path, form)
	}
	for _, name := range []string{"orders", "orders.dead", "Prices/eu"} {
		require.Equal(t, "/queue", do("/queues/create", url.Values{"name": {name}, "max_bytes": {"1MiB"}}).at)
	}
	require.Contains(t, do("/queues/create", url.Values{"name": {"x"}, "ttl": {"soon"}}).body, "a duration")
	require.Equal(t, "/queue", do("/queues/create", url.Values{"name": {"week"}, "retention_age": {"7d"}}).at)
	require.Contains(t, b.get("/queue/configure?name=week").body, `value="168h0m0s"`)
	require.Equal(t, "/queues", do("/queue/delete?name=week", url.Values{"confirm": {"week"}}).at)
	require.Contains(t, do("/queues/create", url.Values{"name": {"a b"}}).body, "name")
	require.Contains(t, do("/queues/create", url.Values{"name": {"orders"}}).body, "Already exists")
	list := b.get("/queues?search=EU").body
	require.Contains(t, list, "Prices/eu")
	require.NotContains(t, list, "orders.dead")
	list = b.get("/queues?sort=messages&order=descending").body
	require.Contains(t, list, `aria-sort="descending"`)
	require.Contains(t, list, "1–3 of 3")

	reported := do("/queue/publish?name=orders", url.Values{
		"body": {"{\"a\":[1,2],\r\n\"b\":\"<b>\"}"}, "content_type": {"application/json"},
		"properties": {"region = eu\r\nx=y=z"},
		"count":      {"3"},
	})
	require.Contains(t, reported.body, "Published 3")
	require.Contains(t, do("/queue/publish?name=orders", url.Values{"properties": {"region"}}).body, "no value")
	require.Contains(t, do("/queue/publish?name=none", url.Values{"body": {"x"}}).body, "Not found")
	page := b.get("/queue?name=orders").body
	require.Contains(t, page, `<dd id="depth">3</dd>`)
	require.Contains(t, page, "data-chart=")
	messages := b.get("/messages?name=orders").body
	require.Contains(t, messages, `name="sequence" value="3"`)
	require.Contains(t, messages, "property region")
	require.NotContains(t, messages, `"<b>"`, "bodies are text")
	one := b.get("/message?name=orders&sequence=2").body
	require.Contains(t, one, "as JSON")
	require.Contains(t, one, "00000000  7b 22 61")
	require.Contains(t, one, "y=z")
	require.Contains(t, b.get("/message?name=orders&sequence=9").body, "sequence 9")

	require.Contains(t, b.get("/messages/move?name=orders").body, "No message")
	require.Contains(t, b.get("/messages/move?name=orders&sequence=2&sequence=3").body, "2 messages of")
	require.Contains(t, do("/messages/move?name=orders&sequence=2&sequence=3", url.Values{"to": {"orders.dead"}}).body,
		"Moved 2 of 2")
	require.Contains(t, do("/messages/move?name=orders&sequence=2", url.Values{"to": {"orders.dead"}}).body,
		"Moved 0 of 1")
	require.Contains(t, do("/messages/replay?name=orders.dead&sequence=1", url.Values{}).body, "Moved 0 of 1")
	require.Contains(t, do("/messages/remove?name=orders.dead&sequence=1", url.Values{}).body, "Deleted 1 of 1")

	require.Contains(t, do("/queue/configure?name=orders", url.Values{
		"max_deliveries": {"5"}, "dead_letter": {"orders.dead"}, "exclusive": {"1"}, "retention_age": {"1h"},
		"dedup_window": {"10m"},
	}).body, "configuration saved")
	page = b.get("/queue?name=orders").body
	require.Contains(t, page, "1h0m0s")
	require.Contains(t, page, "Duplicates discarded")
	require.NotContains(t, page, "1048576", "an empty field has no limit")
	require.Contains(t, do("/queue/seek?name=orders&subscription=default", url.Values{"to": {"latest"}}).body,
		"at 4, with 0")
	require.Contains(t, do("/queue/seek?name=orders&subscription=default",
		url.Values{"to": {"sequence"}, "value": {"x"}}).body,
		"a sequence")
	require.Contains(t, do("/queue/pause?name=orders", url.Values{}).body, "Select publishing")
	do("/queue/pause?name=orders", url.Values{"deliver": {"1"}, "reason": {"billing down"}})
	do("/queue/pause?name=orders&subscription=default", url.Values{"reason": {"audit down"}})
	page = b.get("/queue?name=orders").body
	require.Contains(t, page, "billing down")
	require.Contains(t, page, "audit down")
	do("/queue/resume?name=orders", url.Values{})
	do("/queue/resume?name=orders&subscription=default", url.Values{})
	require.NotContains(t, b.get("/queue?name=orders").body, "down")
	require.Contains(t, do("/queue/purge?name=orders", url.Values{"confirm": {"order"}}).body, "name orders")
	require.Contains(t, do("/queue/purge?name=orders", url.Values{"confirm": {"orders"}}).body, "Purged")
	deleted := do("/queue/delete?name=Prices%2Feu", url.Values{"confirm": {"Prices/eu"}})
	require.Equal(t, "/queues", deleted.at)
	require.NotContains(t, b.get("/queues").body, "/queue?name=Prices")
	require.Equal(t, http.StatusNotFound, b.get("/queue?name=Prices%2Feu").code)
}

// The pages show and close connections, and show and decide prepared transactions.
func TestConnectionAndPreparedPages(t *testing.T) { simulated(t, testConnectionAndPreparedPages) }

func testConnectionAndPreparedPages(t *testing.T) {
	ready := startNode(t, nil)
	b := newBrowser(t, ready.Console)
	b.waitActive()
	cc := connect(t, ready.Address)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	queues := pb.NewQueueServiceClient(cc)
	_, err := queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	for _, xid := range []string{"one", "two <b>"} {
		_, err = queues.Prepare(t.Context(), &pb.PrepareRequest{Xid: xid, Operations: []*pb.Operation{{
			Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{Queue: "q", Messages: []*pb.Message{{}}}},
		}}})
		require.NoError(t, err)
	}
	do := func(path string, form url.Values) response {
		t.Helper()
		form.Set("csrf", b.csrf())
		return b.post(path, form)
	}
	page := b.get("/prepared").body
	require.Contains(t, page, "q: publish 1, acknowledge 0")
	require.Contains(t, page, "two &lt;b&gt;")
	require.Contains(t, do("/prepared/commit?xid=one", url.Values{"confirm": {"no"}}).body, "the name")
	require.Contains(t, do("/prepared/commit?xid=one", url.Values{"confirm": {"one"}}).body, "one committed")
	require.Contains(t, do("/prepared/rollback?xid=two+%3Cb%3E", url.Values{"confirm": {"two <b>"}}).body,
		"rolled back")
	require.Contains(t, do("/prepared/commit?xid=two+%3Cb%3E", url.Values{"confirm": {"two <b>"}}).body,
		"Not possible")
	require.Contains(t, b.get("/prepared").body, "No prepared")
	require.Contains(t, b.get("/queue?name=q").body, `<dd id="depth">1</dd>`)

	// The node may not have detected yet that startNode has closed the connection of its health check.
	require.Eventually(t, func() bool {
		page = b.get("/connections").body
		return strings.Count(page, `href="/connections/close`) == 1
	}, testTimeout, 10*time.Millisecond)
	require.Contains(t, page, "grpc-go")
	list, err := pb.NewConnectionServiceClient(cc).ListConnections(t.Context(), &pb.ListConnectionsRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetConnections(), 1, "a browser is not a connection of the port")
	closing := fmt.Sprintf("/connections/close?node=a&id=%d", list.GetConnections()[0].GetId())
	require.Contains(t, b.get(closing).body, fmt.Sprintf("hx-post=%q", strings.ReplaceAll(closing, "&", "&amp;")))
	require.Contains(t, do(closing, url.Values{}).body, "Closed the")
	require.Contains(t, do("/connections/close?node=a&id=999", url.Values{}).body, "Not found")
}
