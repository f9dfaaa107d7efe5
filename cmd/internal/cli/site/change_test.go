// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// With the addresses of either site, the command requests the switch from the primary.
func TestSwitch(t *testing.T) {
	s := startSites(t)
	var text strings.Builder
	for _, n := range []*node{s.east, s.west} {
		s.east.switched = nil
		text.WriteString(n.cli(t).OK("site", "switch", "--to", "west"))
		require.Equal(t, "west", s.east.switched.GetTo())
		require.InDelta(t, 10, s.east.switched.GetTimeout().AsDuration().Seconds(), 0)
		text.WriteString(n.cli(t).OK("site", "switch", "--to", "west", "--timeout", "30s", "-o", "json"))
		require.InDelta(t, 30, s.east.switched.GetTimeout().AsDuration().Seconds(), 0)
		require.Nil(t, s.west.switched)
	}
	golden.Text(t, "switch.txt", s.masked(text.String()))
}

// The command waits for both waits of the primary, and for the rollback.
func TestSwitchDeadline(t *testing.T) {
	s := startSites(t)
	start := time.Now()
	s.east.cli(t).OK("site", "switch", "--to", "west", "--timeout", "2m")
	require.Greater(t, s.east.deadline.Sub(start), 2*2*time.Minute+5*time.Second)
}

// During a switch, the lag of the replica is printed on stderr.
func TestSwitchProgress(t *testing.T) {
	s := startSites(t)
	s.east.during = func() {
		for len(s.west.asked) > 0 {
			<-s.west.asked // before the switch
		}
		for range 3 {
			<-s.west.asked
		}
	}
	stdout, stderr, code := s.east.cli(t).Run("", "site", "switch", "--to", "west")
	require.Equal(t, cli.ExitOK, code)
	require.Len(t, strings.Split(strings.TrimSpace(stdout), "\n"), 2)
	require.GreaterOrEqual(t, strings.Count(stderr, "LSN 4560"), 2)
	require.GreaterOrEqual(t, strings.Count(stderr, "7 records"), 2)
}

// A switch to the current primary changes nothing.
func TestSwitchToPrimary(t *testing.T) {
	s := startSites(t)
	for _, n := range []*node{s.east, s.west} {
		v := n.cli(t).Lines("site", "switch", "--to", "east")[0]
		require.Equal(t, true, v["already"])
		require.InDelta(t, 3, v["epoch"], 0)
	}
	require.Nil(t, s.east.switched)
}

// A stopped site, and one without a role, do not count as the primary.
func TestSwitchWithoutPrimary(t *testing.T) {
	for _, role := range []pb.SiteRole{pb.SiteRole_SITE_ROLE_STOPPED, pb.SiteRole_SITE_ROLE_UNSPECIFIED} {
		s := startSites(t)
		s.east.site.Site.Role = role
		for _, n := range []*node{s.east, s.west} {
			for _, to := range []string{"east", "west"} {
				stdout, stderr, code := n.cli(t).Run("", "site", "switch", "--to", to)
				require.Equal(t, cli.ExitError, code, "%v --to %s: %s", role, to, stdout)
				require.Empty(t, stdout)
				require.Contains(t, stderr, "site status")
			}
		}
		require.Nil(t, s.east.switched)
		require.Nil(t, s.west.switched)

		s.west.site.Site.Role, s.west.site.Site.Epoch = pb.SiteRole_SITE_ROLE_PRIMARY, 4
		v := s.east.cli(t).Lines("site", "switch", "--to", "west")[0]
		require.Equal(t, true, v["already"], "promoted in the meantime")
		require.InDelta(t, 4, v["epoch"], 0)
	}
}

func TestSwitchFails(t *testing.T) {
	s := startSites(t)
	c := s.east.cli(t)
	_, _, code := c.Run("", "site", "switch")
	require.Equal(t, cli.ExitUsage, code)
	_, stderr, code := c.Run("", "site", "switch", "--to", "north")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "--to west")
	require.Nil(t, s.east.switched)

	s.east.refuse = refusal(t, pb.ErrorReason_ERROR_REASON_SITE_SWITCH)
	_, stderr, code = c.Run("", "site", "switch", "--to", "west")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "site status")
	for _, unknown := range []error{lost, refusal(t, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN)} {
		s.east.refuse = unknown
		_, stderr, code = c.Run("", "site", "switch", "--to", "west")
		require.Equal(t, cli.ExitUnknown, code)
		require.Contains(t, stderr, "site status")
	}

	s.stopEast()
	_, stderr, code = s.west.cli(t).Run("", "site", "switch", "--to", "west")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "site promote")
	alone := start(t)
	alone.site.Site = &pb.SiteState{Name: "west", Role: pb.SiteRole_SITE_ROLE_REPLICA}
	_, stderr, code = alone.cli(t).Run("", "site", "switch", "--to", "west")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "site.remote")
}

// Without --yes, promote prompts on a terminal, and is rejected otherwise.
func TestPromote(t *testing.T) {
	s := startSites(t)
	s.stopEast()
	c := s.west.cli(t)
	s.west.promotion = &pb.PromoteSiteResponse{
		Epoch: 4, Origin: at(12, 4560), Replication: proto.CloneOf(s.west.site.GetReplication()),
	}
	args := []string{"site", "promote", "--reason", "fire"}
	stdout, stderr, code := c.Run("", args...)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "--yes")
	golden.Text(t, "promote_plan.txt", s.masked(stdout))
	stdout, _, code = c.Run("", append(args, "-o", "json")...)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stdout, `"done":false`)
	_, stderr, code = c.Answering("n\n", args...)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "[y/N]")
	require.Nil(t, s.west.promoted)

	_, stderr, code = c.Answering("y\n", args...)
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Equal(t, "fire", s.west.promoted.GetReason())
	require.False(t, s.west.promoted.GetForce())
	golden.Text(t, "promote.txt", s.masked(c.OK(append(args, "--yes")...)+c.OK(append(args, "--yes", "-o", "json")...)))
}

func TestPromoteFails(t *testing.T) {
	s := startSites(t)
	args := []string{"site", "promote", "--reason", "x", "--yes"}
	_, _, code := s.west.cli(t).Run("", "site", "promote", "--yes")
	require.Equal(t, cli.ExitUsage, code)
	_, stderr, code := s.east.cli(t).Run("", args...)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "--addr")
	_, stderr, code = s.west.cli(t).Run("", args...)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "switch --to")
	require.Nil(t, s.west.promoted)

	s.west.promotion = &pb.PromoteSiteResponse{Epoch: 4}
	s.west.cli(t).OK(append(args, "--force")...)
	require.True(t, s.west.promoted.GetForce())

	s.stopEast()
	s.west.refuse = refusal(t, pb.ErrorReason_ERROR_REASON_SITE_PRIMARY_ANSWERS)
	_, _, code = s.west.cli(t).Run("", args...)
	require.Equal(t, cli.ExitError, code)
	s.west.refuse = lost
	_, _, code = s.west.cli(t).Run("", args...)
	require.Equal(t, cli.ExitUnknown, code)

	s.west.status.Role = pb.Role_ROLE_STANDBY
	_, stderr, code = s.west.cli(t).Run("", append(args, "--timeout", "250ms")...)
	require.Equal(t, cli.ExitError, code, "no active")
	require.Contains(t, stderr, "lockstep status")
}

func TestDemote(t *testing.T) {
	s := startSites(t)
	s.west.site.Site.Role, s.west.site.Site.Epoch = pb.SiteRole_SITE_ROLE_PRIMARY, 4
	c := s.east.cli(t)
	args := []string{"site", "demote", "--replica-of", s.west.address}
	stdout, _, code := c.Run("", args...)
	require.Equal(t, cli.ExitError, code)
	require.Nil(t, s.east.demoted)
	golden.Text(t, "demote_plan.txt", s.masked(stdout))
	_, _, code = c.Answering("n\n", args...)
	require.Equal(t, cli.ExitError, code)
	require.Nil(t, s.east.demoted)
	_, _, code = c.Answering("y\n", args...)
	require.Equal(t, cli.ExitOK, code)
	require.Equal(t, s.west.address, s.east.demoted.GetReplicaOf())
	golden.Text(t, "demote.txt", s.masked(c.OK(append(args, "--yes")...)+c.OK(append(args, "--yes", "-o", "json")...)))

	for _, r := range []pb.ErrorReason{
		pb.ErrorReason_ERROR_REASON_SITE_ROLE, pb.ErrorReason_ERROR_REASON_SITE_DIVERGED,
		pb.ErrorReason_ERROR_REASON_SITE_BEHIND, pb.ErrorReason_ERROR_REASON_SITE_UNREACHABLE,
	} {
		s.east.refuse = refusal(t, r)
		_, stderr, code := c.Run("", append(args, "--yes")...)
		require.Equal(t, cli.ExitError, code, r)
		require.Contains(t, stderr, "\nTry ", r)
	}
	_, _, code = c.Run("", "site", "demote", "--replica-of", "west", "--yes")
	require.Equal(t, cli.ExitUsage, code)
}

// The name of the other site is completed.
func TestCompletion(t *testing.T) {
	s := startSites(t)
	require.Contains(t, s.west.cli(t).OK("__complete", "site", "switch", "--to", ""), "east\nwest\n")
}
