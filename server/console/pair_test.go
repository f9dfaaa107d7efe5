// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"bufio"
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// pairNode is one node of a pair with its console.
type pairNode struct {
	*browser

	ready node.Ready
	stop  func()
}

// startPair runs two nodes with an in-memory coordinator. The first node is active.
func startPair(t *testing.T) (active, standby *pairNode) {
	t.Helper()
	return startPairWith(t, func(*config.Config) {}, func(*browser) {})
}

func startPairWith(
	t *testing.T, change func(*config.Config), prepare func(*browser),
) (active, standby *pairNode) {
	t.Helper()
	w := simpair.Of(t)
	start := func(name string) *pairNode {
		cfg := w.PairConfig(name)
		cfg.Listen, cfg.Console.Listen = "127.0.0.1:0", "127.0.0.1:0"
		cfg.Disk.LowWatermark, cfg.Memory.Budget = 1<<20, 64<<20
		change(&cfg)
		launched := w.Start(cfg, node.Options{})
		n := &pairNode{ready: launched.Ready, stop: func() { require.NoError(t, launched.Stop()) }}
		n.browser = newBrowser(t, n.ready.Console)
		prepare(n.browser)
		return n
	}
	active = start("a")
	require.Eventually(t, func() bool {
		return strings.Contains(active.get("/pair").body, "</i>active alone</span>")
	}, testTimeout, 20*time.Millisecond)
	standby = start("b")
	require.Eventually(t, func() bool {
		return strings.Count(active.get("/pair").body, `</i>in sync</span>`) >= 3 // both nodes and the stream between them
	}, testTimeout, 50*time.Millisecond)
	return active, standby
}

// showsOther waits until the page of a node shows that the other node responds, and contains the address of the
// other node's console. On a busy machine, the first status query may time out.
func (n *pairNode) showsOther(other *pairNode) (page string) {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		page = n.get("/pair").body
		return strings.Contains(page, `href="`+other.ready.Console+`"`) && !strings.Contains(page, "not responding")
	}, testTimeout, 20*time.Millisecond)
	return page
}

// The console of the standby shows the pair, forwards calls to the active, and can request a switchover.
func TestConsoleOfStandby(t *testing.T) { simulated(t, testConsoleOfStandby) }

func testConsoleOfStandby(t *testing.T) {
	active, standby := startPair(t)
	for n, other := range map[*pairNode]*pairNode{active: standby, standby: active} {
		page := n.showsOther(other)
		require.Contains(t, page, `aria-label="Node a"`)
		require.Contains(t, page, `aria-label="Node b"`)
		require.NotContains(t, page, "/pair/force", "no forced failover is required")
	}
	token := standby.makeToken("t", "carol")
	require.NotEmpty(t, token)
	require.Contains(t, active.get("/access").body, "carol", "the active has the token")
	require.Contains(t, standby.get("/access").body, "carol")
	standby.act("/jobs/put", url.Values{"name": {"n"}, "schedule": {"@daily"}, "kind": {"scan"}})
	require.Eventually(t, func() bool { return strings.Contains(active.get("/jobs").body, ">n<") }, testTimeout,
		20*time.Millisecond)

	standby.act("/pair/pause", url.Values{"reason": {script}})
	require.Eventually(t, func() bool {
		return strings.Contains(active.get("/pair").body, "The pair is paused")
	}, testTimeout, 20*time.Millisecond)
	require.NotContains(t, active.get("/pair").body+active.event("/pair"), "<script>alert")
	active.act("/pair/resume", nil)

	a := standby.act("/pair/switchover", nil)
	require.Contains(t, a.head.Get("Hx-Trigger"), "Switched over")
	require.Eventually(t, func() bool {
		page := standby.get("/pair").body
		_, b, _ := strings.Cut(page, `aria-label="Node b"`)
		return strings.Contains(b, `</i>active</span>`)
	}, testTimeout, 50*time.Millisecond)
}

// An open page shows within two seconds that a node has stopped. While no node is active, it offers a forced
// failover.
func TestDownNodeIsShown(t *testing.T) { simulated(t, testDownNodeIsShown) }

func testDownNodeIsShown(t *testing.T) {
	active, standby := startPair(t)
	active.act("/pair/pause", nil)
	events := make(chan string, 64)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := standby.http.Do(standby.request(http.MethodGet, "/events/pair", nil).WithContext(ctx))
	require.NoError(t, err)
	go func() {
		defer func() { _ = resp.Body.Close() }()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			select {
			case events <- lines.Text(): // one write may be split over several reads
			case <-ctx.Done():
				return
			}
		}
	}()
	<-events
	active.stop()
	deadline := time.After(2 * time.Second) // in simulated time
	for shown := false; !shown; {
		select {
		case e := <-events:
			shown = strings.Contains(e, "The node is not responding")
		case <-deadline:
			require.Fail(t, "the stopped node is not shown within 2 s")
		}
	}
	require.Contains(t, standby.get("/alarms").body, "Node a ")
	require.Contains(t, standby.get("/pair").body, "/pair/force", "no node is active")
}
