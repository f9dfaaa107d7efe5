package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/pair"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestWatchRedraws: on a terminal the status is drawn in place, again and again, with rates.
func TestWatchRedraws(t *testing.T) {
	_, c := startNodes(t, true)
	c.ok("queue", "create", "q")
	ctx, stop := context.WithTimeout(t.Context(), 60*time.Second)
	defer stop()
	screen := &watchedWriter{want: " transactions, ", seen: stop}
	code := execute(ctx, []string{"status", "--watch", "--interval", "20ms"}, &environment{
		stdin: strings.NewReader(""), stdout: screen, stderr: screen, terminal: func() bool { return true },
		lookup: func(name string) (string, bool) { return c.addr, name == envAddr },
	})
	require.Equal(t, exitOK, code)
	require.GreaterOrEqual(t, strings.Count(screen.text.String(), clearScreen), 2)
}

// TestInterrupted: a command that Ctrl-C has ended says so, and not what that looked like from inside.
func TestInterrupted(t *testing.T) {
	c := cli{t: t, addr: "127.0.0.1:1"}
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, stop)
	var stderr strings.Builder
	code := execute(ctx, []string{"queue", "list", "--timeout", "30s"}, &environment{
		stdin: strings.NewReader(""), stdout: &stderr, stderr: &stderr,
		lookup: func(name string) (string, bool) { return c.addr, name == envAddr },
	})
	require.Equal(t, exitError, code)
	require.Equal(t, "lockstep: interrupted\n", stderr.String())
}

func TestRates(t *testing.T) {
	look := func(role string, commit, messages uint64) *statusJSON {
		return &statusJSON{Nodes: []nodeJSON{{
			Name: "a", NodeID: "1", Role: role, Commit: commit, Messages: messages,
			MessageBytes: 2048,
		}}}
	}
	require.Equal(t, "\nnode a: 50/s transactions, -5/s messages more, 2.0 KiB stored\n",
		rates(look("active", 100, 20), look("active-alone", 200, 10), 2*time.Second))
	require.Empty(t, rates(nil, look("active", 1, 1), time.Second))
	require.Empty(t, rates(look("standby", 1, 1), look("active", 1, 1), time.Second))
}

// TestNamesOfAbsentNodes: a plan names a node that does not answer by the name that the other one knows.
func TestNamesOfAbsentNodes(t *testing.T) {
	s := statusJSON{
		Nodes: []nodeJSON{{Name: "a", NodeID: "1"}, {Error: "refused"}},
		names: map[string]string{"1": "a", "2": "b"},
	}
	require.Equal(t, "b", s.nodeName("2"))
	require.Equal(t, "3", s.nodeName("3"))
	require.Equal(t, "b", toPlanJSON(&pb.Plan{Node: "2"}, s.nodeName).Node)
}

// TestVotersAreKnown: the nodes of a raft pair say where their voters are; those of another pair, that there are none.
func TestVotersAreKnown(t *testing.T) {
	p, err := pair.Start(t.Context(), pair.Options{Dir: t.TempDir(), Raft: true, Settings: smallNodes()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	c := cli{t: t, addr: strings.Join(p.Addresses(), ",")}
	c.ok("queue", "create", "q", "--timeout", "30s")
	require.Len(t, c.lines("pair", "voters"), 3)

	_, other := startNodes(t, false)
	_, stderr, code := other.run("", "pair", "voters")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "the coordinator of this pair is etcd, and has no voters")
}

// TestDataDir: what reads the files of a stopped node takes the directory as --data-dir, as everything else does, and
// as an argument.
func TestDataDir(t *testing.T) {
	p, c := startNodes(t, true)
	c.ok("publish", "q", "x", "--create")
	dir := filepath.Join(p.Nodes[0].Dir, "data")
	require.NoError(t, p.Close())
	for _, args := range [][]string{{"check"}, {"digest"}, {"dump-meta"}, {"dump-log"}} {
		given := c.ok(append([]string{"store"}, append(args, "--data-dir", dir)...)...)
		require.Equal(t, given, c.ok("store", args[0], dir), args)
		_, _, code := c.run("", "store", args[0], dir, "--data-dir", dir)
		require.Equal(t, exitUsage, code, args)
	}
	for _, args := range [][]string{
		{"dump-meta"},
		{"dump-log"},
		{"dump-page", "1"},
		{"dump-page", "--data-dir", dir},
		{"check", dir, dir},
	} {
		_, stderr, code := c.run("", append([]string{"store"}, args...)...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, stderr, "--help", args)
	}
	require.Equal(t, exitOK, func() int {
		_, _,
			code := c.run("", "store", "dump-page", "1", "--data-dir", dir)
		return code
	}())
}
