// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// siteStatus runs lockstep site status, and returns its JSON output and exit code.
func siteStatus(t *testing.T, c clitest.CLI) (map[string]any, int) {
	t.Helper()
	stdout, stderr, code := c.Run("", "site", "status", "--output", "json")
	v := map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(stdout), &v), stderr)
	return v, code
}

// masked replaces the values of an output that differ between test runs.
func (s sites) masked(text string) string {
	text = regexp.MustCompile("─+").ReplaceAllString(text, "─") // the rule is as wide as the addresses
	return strings.NewReplacer(s.east.address, "EAST", s.west.address, "WEST",
		output.LocalTime(s.west.site.GetReplication().GetHeardAt().AsTime()), "HEARD").Replace(text)
}

// The status is the same at both sites, except for their order.
func TestStatus(t *testing.T) {
	s := startSites(t)
	var text, lines strings.Builder
	for _, n := range []*node{s.east, s.west} {
		text.WriteString(n.cli(t).OK("site", "status"))
		lines.WriteString(n.cli(t).OK("site", "status", "-o", "json"))
	}
	golden.Text(t, "status.txt", s.masked(text.String()))
	golden.Text(t, "status.jsonl", s.masked(lines.String()))
}

// A promotion loses an unknown number of transactions if the replica does not know the end of the primary's log. It
// loses nothing if the primary has stopped and the replica has all of its records.
func TestPromotionLoss(t *testing.T) {
	s := startSites(t)
	v, code := siteStatus(t, s.west.cli(t))
	require.Equal(t, cli.ExitOK, code)
	require.Equal(t, map[string]any{
		"known": true, "records": 7.0, "bytes": 1300.0, "heard_at": "2026-11-29T05:59:58Z", "heard_seconds_ago": 2.0,
		"nothing": false,
	}, v["promotion_loss"])

	s.stopEast()
	v, code = siteStatus(t, s.west.cli(t))
	require.Equal(t, cli.ExitError, code)
	require.InDelta(t, 3602, v["promotion_loss"].(map[string]any)["heard_seconds_ago"], 0, "by the clock of the replica")
	require.Len(t, v["problems"], 1)
	require.Equal(t, "primary", v["remote"].(map[string]any)["role"], "as last reported")

	s.west.site.Remote = nil
	v, _ = siteStatus(t, s.west.cli(t))
	require.Len(t, v["problems"], 2)
	require.Equal(t, "unknown", v["remote"].(map[string]any)["role"])

	s.west.site.Replication = &pb.SiteReplication{}
	v, _ = siteStatus(t, s.west.cli(t))
	require.Equal(t, map[string]any{
		"known": false, "records": 0.0, "bytes": 0.0, "heard_seconds_ago": 0.0, "nothing": false,
	}, v["promotion_loss"])

	s = startSites(t)
	s.east.site.Site.Role = pb.SiteRole_SITE_ROLE_STOPPED
	for upstream, nothing := range map[uint64]bool{4566: false, 4567: true} {
		s.west.site.Site.Upstream = at(12, upstream)
		v, code = siteStatus(t, s.east.cli(t))
		require.Equal(t, cli.ExitError, code)
		require.Equal(t, nothing, v["promotion_loss"].(map[string]any)["nothing"], upstream)
		require.Len(t, v["problems"], 1)
	}
}

// With the address of a standby, the command finds the active of its pair.
func TestStatusThroughStandby(t *testing.T) {
	s := startSites(t)
	standby := start(t)
	standby.status = &pb.GetStatusResponse{Role: pb.Role_ROLE_STANDBY, Pair: &pb.PairStatus{Nodes: []*pb.NodeStatus{
		{Address: standby.address}, {Address: s.west.address, Active: true},
	}}}
	standby.site = proto.CloneOf(s.west.site)
	standby.site.Replication = nil
	v, code := siteStatus(t, standby.cli(t))
	require.Equal(t, cli.ExitOK, code)
	require.Equal(t, "west", v["site"].(map[string]any)["name"])
	require.InDelta(t, 7, v["replication"].(map[string]any)["lag_records"], 0)

	s.west.server.Stop()
	v, code = siteStatus(t, standby.cli(t))
	require.Equal(t, cli.ExitError, code, "no active")
	require.NotContains(t, v, "replication")
	require.NotEmpty(t, v["problems"])
}

// If the command cannot reach the other site, it shows the state that this site reports.
func TestStatusOfUnreachableSite(t *testing.T) {
	s := startSites(t)
	s.east.server.Stop()
	v, code := siteStatus(t, s.west.cli(t))
	require.Equal(t, cli.ExitOK, code)
	require.Equal(t, false, v["remote"].(map[string]any)["responds"])
	require.Equal(t, "primary", v["remote"].(map[string]any)["role"])
	require.InDelta(t, 7, v["replication"].(map[string]any)["lag_records"], 0)
}

// Inconsistent roles are problems. A pair without a second site has none.
func TestStatusRoles(t *testing.T) {
	primary, replica := pb.SiteRole_SITE_ROLE_PRIMARY, pb.SiteRole_SITE_ROLE_REPLICA
	none, stopped := pb.SiteRole_SITE_ROLE_UNSPECIFIED, pb.SiteRole_SITE_ROLE_STOPPED
	for _, tc := range []struct {
		east, west pb.SiteRole
		lineage    string
		problems   int
	}{
		{primary, replica, lineage, 0},
		{replica, primary, lineage, 0},
		{primary, primary, lineage, 1},
		{replica, replica, lineage, 1},
		{stopped, replica, lineage, 1},
		{primary, none, "", 1},
		{none, none, "", 1},
		{primary, replica, "another", 1},
	} {
		s := startSites(t)
		s.east.site.Replication = proto.CloneOf(s.west.site.GetReplication())
		s.east.site.Site.Role, s.west.site.Site.Role, s.west.site.Site.Lineage = tc.east, tc.west, tc.lineage
		for _, n := range []*node{s.east, s.west} {
			v, code := siteStatus(t, n.cli(t))
			require.Len(t, v["problems"], tc.problems, "%v, %v: %v", tc.east, tc.west, v)
			require.Equal(t, min(tc.problems, cli.ExitError), code)
		}
	}
	s := startSites(t)
	s.east.site.Error, s.east.site.Remote.Role = "connection refused", primary // before its loss
	s.west.server.Stop()
	v, code := siteStatus(t, s.east.cli(t))
	require.Equal(t, cli.ExitError, code)
	require.Len(t, v["problems"], 1)
	v, code = siteStatus(t, start(t).cli(t))
	require.Equal(t, cli.ExitOK, code)
	require.Equal(t, "none", v["site"].(map[string]any)["role"])
	require.NotContains(t, v, "remote")
}

// Without a response, the exit code is 1.
func TestStatusWithoutResponse(t *testing.T) {
	_, stderr, code := clitest.CLI{T: t, Addr: "127.0.0.1:1"}.Run("", "site", "status")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "--addr")
}

// lockstep status shows the site role of the pair; a replica is not a problem.
func TestPairStatus(t *testing.T) {
	s := startSites(t)
	s.west.status.Site = &pb.SiteInfo{
		Name: "west", Role: pb.SiteRole_SITE_ROLE_REPLICA, Lineage: lineage, Epoch: 3,
		RemoteAddresses: []string{s.east.address},
	}
	v := s.west.cli(t).Lines("status")[0]
	require.Equal(t, map[string]any{
		"name": "west", "role": "replica", "lineage": lineage, "epoch": 3.0, "remote_addresses": []any{s.east.address},
	}, v["site"])
	require.Empty(t, v["conditions"])
	require.Contains(t, s.west.cli(t).OK("status"), "west: replica")
	require.NotContains(t, start(t).cli(t).Lines("status")[0], "site")
}
