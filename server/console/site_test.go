// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/console"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// startSites starts one node at each of two sites that have no role yet, and opens their consoles.
func startSites(t *testing.T) (east, west *simpair.Node, eastPage, westPage *browser) {
	t.Helper()
	w := simpair.Of(t)
	start := func(name, other string) (*simpair.Node, *browser) {
		cfg := w.Config(name)
		cfg.Listen, cfg.Console.Listen = w.Host(name)+":7420", "127.0.0.1:0"
		cfg.Disk.LowWatermark, cfg.Memory.Budget, cfg.Insecure = 1<<20, 64<<20, true
		cfg.Site = config.Site{Name: name, Remote: []string{w.Host(other) + ":7420"}}
		n := w.Start(cfg, node.Options{})
		n.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		return n, newBrowser(t, n.Ready.Console)
	}
	east, eastPage = start("east", "west")
	west, westPage = start("west", "east")
	return east, west, eastPage, westPage
}

// The Pair page shows the role and the epoch of the site, and the lag of a replica.
func TestPairPageShowsSite(t *testing.T) { simulated(t, testPairPageShowsSite) }

func testPairPageShowsSite(t *testing.T) {
	east, west, eastPage, westPage := startSites(t)
	require.Contains(t, siteLine(eastPage), "</i>no replica yet</span>")
	_, err := pb.NewSiteServiceClient(west.Conn()).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	shows := func(b *browser, want ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			line := siteLine(b)
			for _, part := range want {
				if !strings.Contains(line, part) {
					return false
				}
			}
			return true
		}, testTimeout, 50*time.Millisecond, want)
	}
	shows(eastPage, "<b>east</b>", "</i>primary</span>", "epoch 1")
	shows(westPage, "<b>west</b>", "</i>replica</span>", "epoch 1", "0 records")
	require.NoError(t, east.Stop())
	shows(westPage, "not connected</span>")
}

// siteLine returns the line of the Pair page about the site.
func siteLine(b *browser) string {
	_, line, _ := strings.Cut(b.get("/pair").body, `<p data-key="site">`)
	line, _, _ = strings.Cut(line, "</p>")
	return line
}

// sitesPage waits until the Sites page contains all parts, and returns the page.
func sitesPage(b *browser, parts ...string) (page string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		page = b.get("/sites").body
		for _, part := range parts {
			if !strings.Contains(page, part) {
				return false
			}
		}
		return true
	}, testTimeout, 50*time.Millisecond, parts)
	return page
}

// The Sites page shows both sites. At the replica, it also shows the replication and the loss that a promotion
// would cause. At the primary, it offers a switch, which is audited. Changes that can lose data are shown only as
// commands.
func TestSitesPage(t *testing.T) { simulated(t, testSitesPage) }

func testSitesPage(t *testing.T) {
	east, west, eastPage, westPage := startSites(t)
	const offered, promote = `href="/sites/switch"`, `<code class="break">lockstep site promote --addr `
	require.NotContains(t, sitesPage(eastPage, "</i>no replica yet</span>"), offered)
	require.Equal(t, http.StatusBadRequest, eastPage.get("/sites/switch").code, "no primary yet")
	_, err := pb.NewSiteServiceClient(west.Conn()).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)

	connected := []string{
		`aria-label="Site east"`, `aria-label="Site west"`, "</i>primary</span>", "</i>replica</span>",
		"</i>connected</span>",
		"<dt>Lag</dt><dd>0 s</dd>", "<dt>Missing records</dt><dd>0</dd>", "<dt>Connections</dt><dd>", "data-chart=",
		promote + west.Ready.Address, "<dt>Promotion now</dt><dd>loses",
	}
	page := sitesPage(westPage, connected...)
	require.NotContains(t, page, offered)
	require.Equal(t, 2, strings.Count(page, "<dt>Epoch</dt><dd>1</dd>"))
	require.NotContains(t, page, "failure-title")
	require.Contains(t, page, `<li><a href="/sites" aria-current="page"`)
	require.Contains(t, westPage.event("/sites"), "<dt>Promotion now</dt><dd>loses")
	page = sitesPage(eastPage, offered, "</i>replica</span>", "<dt>Upstream</dt>")
	require.NotContains(t, page, promote)

	require.Contains(t, eastPage.get("/sites/switch").body, `<input type="hidden" name="to" value="west"`)
	require.Equal(t, http.StatusBadRequest, westPage.get("/sites/switch").code)
	a := eastPage.act("/sites/switch", url.Values{"to": {"west"}})
	require.Contains(t, a.head.Get("Hx-Trigger"), "west")
	require.Contains(t, eastPage.get("/audit").body, "SwitchSite")
	sitesPage(westPage, offered)
	sitesPage(eastPage, connected[:len(connected)-2]...)

	require.NoError(t, west.Stop())
	page = sitesPage(eastPage, "</i>not connected</span>", "failure-title")
	require.Contains(t, page, promote+east.Ready.Address)
}

// If the pair has no sites, the menu does not contain the Sites page, and the page shows no site.
func TestSitesPageWithoutSites(t *testing.T) { simulated(t, testSitesPageWithoutSites) }

func testSitesPageWithoutSites(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	require.NotContains(t, b.get("/pair").body, `href="/sites"`)
	a := b.get("/sites")
	require.Equal(t, http.StatusOK, a.code)
	require.Contains(t, a.body, `class="empty"`)
}

// The Sites page contains the conditions about sites and the files with lost transactions. Text from the other
// site is escaped.
func TestSitesPageOfStoppedSite(t *testing.T) {
	page, err := console.SitesPage(&pb.GetSiteResponse{
		Site:   &pb.SiteState{Name: "west", Role: pb.SiteRole_SITE_ROLE_STOPPED, Addresses: []string{"w:7420"}},
		Remote: &pb.SiteState{Name: script, Addresses: []string{script}}, Error: script,
	}, &pb.GetStatusResponse{
		Conditions: []*pb.Condition{
			{Kind: "superseded-by-site"}, {Kind: "disk-low"}, {Kind: "site-stopped", Details: script},
		},
		Store: &pb.StoreStatus{UnusedFiles: []*pb.UnusedFile{
			{Path: "/data/cut-7.seg", Kind: "cut-log", Bytes: 2048}, {Path: "/data/old", Kind: "old-page-file"},
		}},
	})
	require.NoError(t, err)
	for _, part := range []string{
		"<h2>superseded-by-site</h2>", "<h2>site-stopped</h2>", "Node a: <code>/data/cut-7.seg</code>, 2.0 KiB",
		"lockstep site promote --addr w:7420", "lockstep site demote --addr w:7420",
	} {
		require.Contains(t, page, part)
	}
	require.NotContains(t, page, "disk-low")
	require.NotContains(t, page, "/data/old")
	require.NotContains(t, page, "<script>alert")
	require.NotContains(t, page, "<img src=x")
	require.Equal(t, 6, strings.Count(page, "&lt;script&gt;"), "name and address twice, error, condition")
}
