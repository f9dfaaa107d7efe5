// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// The page of a pair shows its site, and at a replica the lag.
func TestSite(t *testing.T) { simulated(t, testSite) }

func testSite(t *testing.T) {
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
	east, eastPage := start("east", "west")
	west, westPage := start("west", "east")
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

// siteLine returns the line of the page of a pair about its site.
func siteLine(b *browser) string {
	_, line, _ := strings.Cut(b.get("/pair").body, `<p data-key="site">`)
	line, _, _ = strings.Cut(line, "</p>")
	return line
}
