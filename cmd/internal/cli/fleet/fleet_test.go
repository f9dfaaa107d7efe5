// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

func TestStatus(t *testing.T) {
	f := startFleet(t)
	c := f.a.cli(t)
	golden.Text(t, "status.txt", withoutRules(f.masked(c.OK("fleet", "status"))))
	golden.Text(t, "status.jsonl", f.masked(c.OK("fleet", "status", "-o", "json")))
	golden.Text(t, "pairs.txt", c.OK("fleet", "pairs"))
	golden.Text(t, "pairs.jsonl", f.masked(c.OK("fleet", "pairs", "-o", "json")))
}

// withoutRules removes the rules below table headers, which are as wide as the addresses.
func withoutRules(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "─") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Each problem of the directory, pairs without a load and malformed values result in exit code 1.
func TestStatusProblems(t *testing.T) {
	f := startFleet(t)
	d, b := f.a.fleet.GetDirectory(), f.a.fleet.GetPairs()[1]
	check := func(problem string, n int) {
		t.Helper()
		stdout, _, code := f.a.cli(t).Run("", "fleet", "status")
		require.Equal(t, cli.ExitError, code)
		require.Equal(t, n, strings.Count(stdout, "PROBLEM: "))
		stdout, _, code = f.a.cli(t).Run("", "fleet", "status", "-o", "json")
		require.Equal(t, cli.ExitError, code)
		require.Contains(t, stdout, `"problem":"`+problem+`"`)
	}
	for p, name := range map[pb.DirectoryProblem]string{
		pb.DirectoryProblem_DIRECTORY_PROBLEM_UNAVAILABLE: "unavailable",
		pb.DirectoryProblem_DIRECTORY_PROBLEM_LOST:        "lost",
		pb.DirectoryProblem_DIRECTORY_PROBLEM_RESTORED:    "restored",
		pb.DirectoryProblem_DIRECTORY_PROBLEM_REBUILDING:  "rebuilding",
		pb.DirectoryProblem_DIRECTORY_PROBLEM_NOT_MEMBER:  "not-member",
	} {
		d.Problem = p
		check(name, 1)
	}
	d.Problem, d.Malformed = pb.DirectoryProblem_DIRECTORY_PROBLEM_MALFORMED, []string{"key /x"}
	check("malformed", 1)
	d.Problem, d.Malformed = pb.DirectoryProblem_DIRECTORY_PROBLEM_UNSPECIFIED, nil
	b.Live = false
	check("", 1)
	b.Live = true
	for _, m := range []*pb.FleetMembership{
		{Pair: "x"},
		{Pair: "a", Left: true},
		{Error: "no"},
		{Pair: "a", Conflicts: []*pb.DirectoryConflict{{Queue: "orders", Pair: "b"}}, ConflictsTotal: 1},
	} {
		f.a.fleet.Membership = m
		check("", 1)
	}
	f.a.fleet.Membership, b.Live = nil, false
	d.Current = false // the copy does not show whether the pair is live
	f.a.cli(t).OK("fleet", "status")
}

// The state is that of a node with a current copy, even if another node responds.
func TestNodeWithCurrentCopy(t *testing.T) {
	f := startFleet(t)
	f.a.fleet.Directory = &pb.FleetDirectory{Problem: pb.DirectoryProblem_DIRECTORY_PROBLEM_UNAVAILABLE}
	require.Equal(t, "b", f.both(t).Lines("fleet", "status")[0]["pair"])
	f.a.server.Stop()
	require.Equal(t, "b", f.both(t).Lines("fleet", "status")[0]["pair"])
	f.b.fleet, f.b.refuse = nil, refusal(t, noFleet)
	_, stderr, code := f.both(t).Run("", "fleet", "status")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "rejected", "of the node that responds")
	_, stderr, code = f.a.cli(t).Run("", "fleet", "status")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "--addr")
}

// The command requests all pages, of which one may be empty.
func TestQueues(t *testing.T) {
	f := startFleet(t)
	f.a.pages = map[string]*pb.ListPlacementsResponse{
		"":         {Placements: []*pb.Placement{{Queue: "invoices", Pair: "a", Epoch: 3}}, NextAfter: "k"},
		"k":        {NextAfter: "n"},
		"n":        {Placements: []*pb.Placement{{Queue: "orders{7}", Pair: "b", Epoch: 12, Group: "7"}}},
		"no queue": {},
	}
	c := f.a.cli(t)
	golden.Text(t, "queues.txt", c.OK("fleet", "queues")+c.OK("fleet", "queues", "-o", "json"))
	require.Len(t, f.a.listed, 6)
	c.OK("fleet", "queues", "--pair", "b", "--match", "orders*")
	require.Equal(t, "b", f.a.listed[8].GetPair())
	require.Equal(t, "orders*", f.a.listed[8].GetPattern())

	f.a.fleet.Directory.Current = false
	_, stderr, code := c.Run("", "fleet", "queues")
	require.Equal(t, cli.ExitOK, code)
	require.Contains(t, stderr, "WARNING")
	f.a.pages[""] = f.a.pages["no queue"]
	require.Empty(t, c.Lines("fleet", "queues"))
	f.a.refuse = refusal(t, noDirectory)
	_, _, code = c.Run("", "fleet", "queues")
	require.Equal(t, cli.ExitError, code)
}

func TestPlace(t *testing.T) {
	f := startFleet(t)
	c := f.a.cli(t)
	var text strings.Builder
	for _, format := range []string{"table", "json"} {
		text.WriteString(c.OK("fleet", "place", "orders.*", "--pair", "b", "-o", format))
		require.Equal(t, "orders.*", f.a.put.GetPattern())
		require.Equal(t, "b", f.a.put.GetPair())
		text.WriteString(c.OK("fleet", "place", "eu.*", "--label", "region=eu", "--label", "disk=ssd", "-o", format))
		require.True(t, maps.Equal(map[string]string{"region": "eu", "disk": "ssd"}, f.a.put.GetLabels()))
		text.WriteString(c.OK("fleet", "place", "us.*", "--label", "region=us", "-o", format))
		text.WriteString(c.OK("fleet", "place", "orders.*", "--delete", "-o", format))
		require.Equal(t, "orders.*", f.a.deleted)
	}
	golden.Text(t, "place.txt", text.String())
	for _, args := range [][]string{
		{"orders.*"},
		{"--pair", "b"},
		{"orders.*", "--pair", "b", "--delete"},
		{"orders.*", "--label", "region"},
		{"orders.*", "--pair", "b", "--label", "region=eu"},
	} {
		_, _, code := c.Run("", append([]string{"fleet", "place"}, args...)...)
		require.Equal(t, cli.ExitUsage, code, args)
	}
}

// A change uses another node if the first one does not reach etcd.
func TestChangeThroughAnotherNode(t *testing.T) {
	f := startFleet(t)
	for _, failed := range []error{refusal(t, noDirectory), lost} {
		f.a.refuse, f.b.put = failed, nil
		f.both(t).OK("fleet", "place", "orders.*", "--pair", "b")
		require.NotNil(t, f.b.put)
	}
	f.b.refuse = refusal(t, noDirectory)
	_, stderr, code := f.both(t).Run("", "fleet", "place", "orders.*", "--pair", "b")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "fleet status")
	f.a.refuse, f.b.put = refusal(t, noFleet), nil
	_, _, code = f.both(t).Run("", "fleet", "place", "orders.*", "--pair", "b")
	require.Equal(t, cli.ExitError, code)
	require.Nil(t, f.b.put, "the first node has refused the rule")
}

func TestDrain(t *testing.T) {
	f := startFleet(t)
	f.a.fleet.GetPairs()[1].State = pb.PairState_PAIR_STATE_OPEN
	c := f.a.cli(t)
	var text strings.Builder
	for _, format := range []string{"table", "json"} {
		text.WriteString(c.OK("fleet", "drain", "b", "-o", format))
		require.Equal(t, "b", f.a.state.GetPair())
		require.Equal(t, pb.PairState_PAIR_STATE_DRAINING, f.a.state.GetState())
		text.WriteString(c.OK("fleet", "undrain", "b", "-o", format))
		require.Equal(t, pb.PairState_PAIR_STATE_OPEN, f.a.state.GetState())
	}
	golden.Text(t, "drain.txt", text.String())

	f.a.fleet.GetPairs()[1].Queues, f.a.fleet.GetPairs()[0].Live, f.a.fleet.Rules = 0, false, nil
	v := c.Lines("fleet", "drain", "b")[0]
	require.Len(t, v["warnings"], 1, "no other pair is live")
	require.Contains(t, c.OK("fleet", "drain", "b"), "fleet leave")
	require.Empty(t, c.Lines("fleet", "undrain", "b")[0]["warnings"])
	f.a.fleet.GetPairs()[1].Live = false
	require.Len(t, c.Lines("fleet", "undrain", "b")[0]["warnings"], 1, "the pair is not live")
	f.a.fleet.GetDirectory().Current = false
	require.Empty(t, c.Lines("fleet", "undrain", "b")[0]["warnings"], "the copy does not show whether the pair is live")
	f.a.refuse = refusal(t, notRegistered)
	_, _, code := c.Run("", "fleet", "drain", "x")
	require.Equal(t, cli.ExitError, code)
}

// The names of the pairs are completed.
func TestCompletion(t *testing.T) {
	c := startFleet(t).a.cli(t)
	require.Contains(t, c.OK("__complete", "fleet", "drain", ""), "a\nb\n")
	require.Contains(t, c.OK("__complete", "fleet", "place", "x", "--pair", ""), "a\nb\n")
}

// A node without a fleet refuses all commands.
func TestWithoutFleet(t *testing.T) {
	n := start(t, "")
	n.fleet, n.refuse = nil, refusal(t, noFleet)
	for _, args := range [][]string{
		{"status"},
		{"pairs"},
		{"queues"},
		{"place", "x", "--pair", "a"},
		{"drain", "a"},
		{"undrain", "a"},
		{"rebuild", "--yes"},
		{"leave", "--yes"},
	} {
		_, stderr, code := n.cli(t).Run("", append([]string{"fleet"}, args...)...)
		require.Equal(t, cli.ExitError, code, args)
		require.Contains(t, stderr, "rejected", args)
	}
	_, stderr, code := clitest.CLI{T: t, Addr: "127.0.0.1:1"}.Run("", "fleet", "rebuild", "--yes")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "--addr")
}
