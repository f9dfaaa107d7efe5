// SPDX-License-Identifier: Apache-2.0

//go:build deep

package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// previousRelease returns the revision of the release with which this source must interoperate, from LOCKSTEP_PREVIOUS
// or deploy/release.
func previousRelease(t *testing.T) string {
	t.Helper()
	if own := os.Getenv("LOCKSTEP_PREVIOUS"); own != "" {
		return own
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "release"))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if _, commit, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			return commit
		}
	}
	require.FailNow(t, "deploy/release contains no release")
	return ""
}

// buildPrevious builds the previous release from the repository's history.
func buildPrevious(t *testing.T) string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		missingFeature(t, needsHistory, "the sources are not in a git repository, so the previous release cannot be built")
	}
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = strings.TrimSpace(string(root))
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	revision := previousRelease(t)
	if _, err := git("cat-file", "-e", revision+"^{commit}"); err != nil {
		missingFeature(t, needsHistory, "this clone does not have revision %s: fetch the whole history to test with the "+
			"previous release", revision)
	}
	src := t.TempDir()
	archive := filepath.Join(t.TempDir(), "src.tar")
	_, err = git("archive", "--format=tar", "-o", archive, revision)
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), "tar", "-xf", archive, "-C", src).CombinedOutput()
	require.NoError(t, err, string(out))
	program := filepath.Join(t.TempDir(), "lockstep-previous")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, "./cmd/lockstep")
	build.Dir = src
	out, err = build.CombinedOutput()
	require.NoError(t, err, string(out))
	t.Logf("previous release: %s", revision)
	return program
}

// A pair of the previous release is upgraded under load, one node at a time. While the releases are mixed, each
// release is active once and is killed, so that the other release takes over. Then the pair is downgraded, and
// upgraded again. New features are rejected while the releases are mixed, and work afterwards. Nothing is lost, and
// both stores are equal at the end.
func TestUpgrade(t *testing.T) {
	t.Parallel() // mostly idle
	previous := buildPrevious(t)
	// These settings are supported by both releases. Each step determines the active node, because roles change only
	// by kills.
	settings := steady()
	settings["wal.segment-bytes"], settings["log.segment-bytes"] = "", "8MiB"
	options := cluster.Options{Settings: settings}
	forth, back := [2]string{previous, binary}, [2]string{binary, previous}
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		upgrade(t, options, forth, back, forth)
	})
	// Nodes of 0.1.0 present their host certificates to each other, and are identified by them.
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		upgrade(t, secured(t, options), forth)
	})
}

// upgrade moves a pair from one binary to another, for each of the given pairs of binaries.
func upgrade(t *testing.T, o cluster.Options, ways ...[2]string) {
	t.Helper()
	previous := ways[0][0]
	program := filepath.Join(t.TempDir(), "lockstep")
	copyFile(t, previous, program)
	o.Binary = program
	p := startWith(t, o)
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t), PerSecond: 300, NoAdministration: true, Plain: true})
	acked(t, w)

	// restart kills a node, runs the pair without it, and starts it with another binary.
	restart := func(n *cluster.Node, with string) {
		installed := copyFile(t, with, program)
		since := w.History().Now()
		require.NoError(t, n.Kill())
		ackedSince(t, w, since, n)
		require.NoError(t, n.Start())
		require.True(t, os.SameFile(installed, executable(t, n)))
		inSync(t, p)
		acked(t, w)
	}
	k, err := p.NewClient(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, k.Close()) }()
	newQueue(t, p, describedQueue)
	newQueue(t, p, describedDead)
	for i, way := range ways {
		from, to := way[0], way[1]
		mixed := fmt.Sprintf("limited-%d", i)
		first, second := inSync(t, p)
		restart(second, to) // first is active, with the release `from`
		restart(first, from)
		active, _ := inSync(t, p)
		require.Equal(t, second.Name, active.Name, "the new release took over from the old one")
		if to == binary {
			requireRefused(t, k)
			newLimited(t, k, mixed) // the previous release supports it
		}
		restart(second, to)
		active, _ = inSync(t, p)
		require.Equal(t, first.Name, active.Name, "the old release took over from the new one")
		restart(first, to)
	}
	q, err := admin.New(k).GetQueue(limited(t), describedQueue)
	require.NoError(t, err)
	require.Equal(t, admin.QueueConfig{}, q.Config, "a rejected request had an effect")
	require.Zero(t, q.Messages)
	requireUsable(t, k)
	requireExactBytes(t, k)
	active, _ := inSync(t, p)
	require.NoError(t, active.Kill())
	inSyncAgain(t, p, active)
	found := 0
	for m, err := range k.Browse(limited(t), describedQueue, client.BrowseOptions{}) {
		require.NoError(t, err)
		if m.Subject != "" {
			require.Equal(t, describedMessage, m.Message)
			found++
		}
	}
	require.Equal(t, 1, found)
	verify(t, p, w)
}

// inSyncAgain starts a killed node and waits until it is in sync.
func inSyncAgain(t *testing.T, p *cluster.Pair, n *cluster.Node) {
	t.Helper()
	require.NoError(t, n.Start())
	inSync(t, p)
}
