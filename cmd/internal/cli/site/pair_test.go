// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (n *node) Switchover(context.Context, *pb.SwitchoverRequest) (*pb.SwitchoverResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.operated++
	return &pb.SwitchoverResponse{ActiveAddress: n.address}, n.refuse
}

func (n *node) SetPaused(_ context.Context, r *pb.SetPausedRequest) (*pb.SetPausedResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.operated++
	if r.GetPaused() {
		return &pb.SetPausedResponse{Paused: &pb.Pause{}}, n.refuse
	}
	return &pb.SetPausedResponse{}, n.refuse
}

func (n *node) operations() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.operated
}

// startRoles runs two sites that report their roles in the status.
func startRoles(t *testing.T) sites {
	t.Helper()
	s := startSites(t)
	for _, n := range []*node{s.east, s.west} {
		state := n.site.GetSite()
		n.status.Site.Name, n.status.Site.Role = state.GetName(), state.GetRole()
		n.status.Site.Lineage, n.status.Site.Epoch = lineage, 3
	}
	return s
}

// Commands for a pair use the pair in --addr, even if it is a replica.
func TestCommandsForReplica(t *testing.T) {
	s := startRoles(t)
	for _, args := range [][]string{
		{"switchover"}, {"pause", "--reason", "maintenance"}, {"resume"},
	} {
		before := s.west.operations()
		s.west.cli(t).OK(args...)
		require.Equal(t, before+1, s.west.operations(), args)
		require.Zero(t, s.east.operations(), args)
	}
	s.stopEast()
	s.west.cli(t).OK("switchover")

	// The replica rejects the command.
	s.west.refuse = refusal(t, pb.ErrorReason_ERROR_REASON_REPLICA)
	_, _, code := s.west.cli(t).Run("", "switchover")
	require.Equal(t, cli.ExitError, code)
}

// With the addresses of both sites, these commands return a usage error that lists the sites.
func TestCommandsForOnePair(t *testing.T) {
	s := startRoles(t)
	both := clitest.CLI{T: t, Addr: s.west.address + "," + s.east.address}
	for _, args := range [][]string{
		{"switchover"}, {"pause", "--reason", "maintenance"}, {"resume"}, {"verify"}, {"settings", "list"}, {"job", "list"},
	} {
		_, stderr, code := both.Run("", args...)
		require.Equal(t, cli.ExitUsage, code, args)
		require.Contains(t, stderr, "east ("+s.east.address+")", args)
		require.Contains(t, stderr, "west ("+s.west.address+")", args)
	}
	require.Zero(t, s.east.operations()+s.west.operations())
	s.stopEast()
	_, stderr, code := both.Run("", "switchover")
	require.Equal(t, cli.ExitUsage, code, "only one pair responds")
	require.Contains(t, stderr, s.east.address)
	require.Zero(t, s.west.operations())
}
