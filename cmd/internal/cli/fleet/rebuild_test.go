// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// lose removes the contents of the directory.
func (f fleet) lose() {
	for _, n := range []*node{f.a, f.b} {
		n.fleet = &pb.GetFleetResponse{Pair: n.fleet.GetPair(), Directory: &pb.FleetDirectory{
			Loaded: true, Current: true, Problem: pb.DirectoryProblem_DIRECTORY_PROBLEM_LOST, Error: "directory lost",
		}}
	}
}

// The rebuild requires a confirmation, and contacts all pairs in --addr.
func TestRebuild(t *testing.T) {
	f := startFleet(t)
	f.lose()
	f.a.reports[0] = &pb.RebuildDirectoryResponse{Added: 12, MissingPairs: []string{"b"}}
	args := []string{"fleet", "rebuild"}
	stdout, stderr, code := f.both(t).Run("", args...)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "--yes")
	golden.Text(t, "rebuild_plan.txt", f.masked(stdout))
	_, _, code = f.both(t).Answering("n\n", args...)
	require.Equal(t, cli.ExitError, code)
	require.Empty(t, f.a.rebuilt)

	_, stderr, code = f.both(t).Answering("y\n", args...)
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Len(t, f.a.rebuilt, 1)
	require.Len(t, f.b.rebuilt, 1)
	require.Equal(t, []string{"a", "b"}, f.b.rebuilt[0].GetPairs())
	golden.Text(t, "rebuild.txt", f.masked(f.both(t).OK(append(args, "--yes")...)+
		f.both(t).OK(append(args, "--yes", "-o", "json")...)))
}

// The rebuild is not finished while a pair is missing.
func TestRebuildWithoutPair(t *testing.T) {
	f := startFleet(t)
	f.lose()
	f.a.reports[0] = &pb.RebuildDirectoryResponse{Added: 12, MissingPairs: []string{"b", "c"}}
	f.b.reports[0] = &pb.RebuildDirectoryResponse{Added: 2, MissingPairs: []string{"c"}}
	args := []string{"fleet", "rebuild", "--yes", "--pairs", "c,a,b"}
	stdout, _, code := f.both(t).Run("", args...)
	require.Equal(t, cli.ExitError, code)
	require.Len(t, f.a.rebuilt, 1)
	require.Equal(t, []string{"a", "b", "c"}, f.a.rebuilt[0].GetPairs())
	json, _, code := f.both(t).Run("", append(args, "-o", "json")...)
	require.Equal(t, cli.ExitError, code)
	golden.Text(t, "rebuild_missing.txt", f.masked(stdout+json))

	// A pair without an active node, and a node that does not respond.
	f.b.status.Role = pb.Role_ROLE_STANDBY
	stdout, _, code = clitest.CLI{T: t, Addr: f.a.address + "," + f.b.address + ",127.0.0.1:1"}.Run("", args...)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stdout, "127.0.0.1:1: ")
	require.Len(t, f.b.rebuilt, 2)
	_, _, code = f.both(t).Run("", "fleet", "rebuild", "--yes", "--pairs", "a,c")
	require.Equal(t, cli.ExitUsage, code, "--pairs lacks a pair that responds")
}

// A pair that was in conflict with a pair that had not contributed contributes again.
func TestRebuildWithConflicts(t *testing.T) {
	f := startFleet(t)
	f.lose()
	conflict := []*pb.DirectoryConflict{{Queue: "orders", Epoch: 3, Pair: "b", PairEpoch: 5}}
	f.a.reports = []*pb.RebuildDirectoryResponse{
		{Added: 11, Conflicts: conflict, ConflictsTotal: 1, MissingPairs: []string{"a", "b"}}, {Added: 1},
	}
	f.b.reports = []*pb.RebuildDirectoryResponse{{Removed: 1, MissingPairs: []string{"a"}}, {}}
	v := f.both(t).Lines("fleet", "rebuild", "--yes")[0]
	require.Equal(t, true, v["finished"])
	require.Len(t, f.a.rebuilt, 2)
	require.Empty(t, v["missing_pairs"])
	a := v["reports"].([]any)[0].(map[string]any)
	require.InDelta(t, 12, a["added"], 0)
	require.Empty(t, a["conflicts"])

	// Both pairs have the queue.
	f.a.reports = []*pb.RebuildDirectoryResponse{{Conflicts: conflict, ConflictsTotal: 1, Malformed: []string{"key /x"}}}
	stdout, _, code := f.both(t).Run("", "fleet", "rebuild", "--yes")
	require.Equal(t, cli.ExitError, code)
	golden.Text(t, "rebuild_conflict.txt", f.masked(stdout))
}

// Pairs that the directory contains are contacted even if --addr does not contain their nodes, and the active node of a
// pair even if --addr contains only its standby.
func TestRebuildOfKnownPairs(t *testing.T) {
	f := startFleet(t)
	standby := start(t, "a")
	standby.status = &pb.GetStatusResponse{Role: pb.Role_ROLE_STANDBY, Pair: &pb.PairStatus{Nodes: []*pb.NodeStatus{
		{Address: standby.address}, {Address: f.a.address, Active: true},
	}}}
	v := standby.cli(t).Lines("fleet", "rebuild", "--yes")[0]
	require.Equal(t, []any{"a", "b"}, v["pairs"])
	require.Empty(t, standby.rebuilt)
	require.Len(t, f.a.rebuilt, 1)
	require.Len(t, f.b.rebuilt, 1)

	f.b.refuse = refusal(t, noDirectory)
	stdout, _, code := standby.cli(t).Run("", "fleet", "rebuild", "--yes", "-o", "json")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stdout, `"finished":false`)
	require.Len(t, f.a.rebuilt, 2)
}

func TestLeave(t *testing.T) {
	f := startFleet(t)
	args := []string{"fleet", "leave"}
	_, stderr, code := f.both(t).Run("", append(args, "--yes")...)
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, "a and b")
	c := f.b.cli(t)
	_, stderr, code = c.Run("", args...)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "--yes")
	_, _, code = c.Answering("n\n", args...)
	require.Equal(t, cli.ExitError, code)
	require.Zero(t, f.b.left)
	_, _, code = c.Answering("y\n", args...)
	require.Equal(t, cli.ExitOK, code)
	require.Equal(t, 1, f.b.left)
	require.Zero(t, f.a.left)
	golden.Text(t, "leave.txt", c.OK(append(args, "--yes")...)+c.OK(append(args, "--yes", "-o", "json")...))

	f.b.refuse = refusal(t, noFleet)
	_, _, code = c.Run("", append(args, "--yes")...)
	require.Equal(t, cli.ExitError, code)
	f.b.refuse = lost
	_, stderr, code = c.Run("", append(args, "--yes")...)
	require.Equal(t, cli.ExitUnknown, code)
	require.Contains(t, stderr, "fleet status")
	f.b.status.Role = pb.Role_ROLE_STANDBY
	_, _, code = c.Run("", append(args, "--yes")...)
	require.Equal(t, cli.ExitError, code)
}

// Commands for a pair return a usage error that lists the pairs, if --addr contains nodes of several pairs.
func TestCommandsForOnePair(t *testing.T) {
	f := startFleet(t)
	for _, n := range []*node{f.a, f.b} {
		n.status.Fleet = &pb.FleetStatus{Pair: n.fleet.GetPair()}
	}
	for _, args := range [][]string{{"switchover"}, {"settings", "list"}, {"job", "list"}} {
		_, stderr, code := f.both(t).Run("", args...)
		require.Equal(t, cli.ExitUsage, code, args)
		require.Contains(t, stderr, "pair a ("+f.a.address+")", args)
		require.Contains(t, stderr, "pair b ("+f.b.address+")", args)
	}
}
