// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// corruption is a way to corrupt a file that a start requires, while the node is down.
type corruption struct {
	name string
	do   func(t *testing.T, n *cluster.Node)
}

// inData returns a function that changes a file in a node's data directory.
func inData(name string, change func(raw []byte) []byte) func(t *testing.T, n *cluster.Node) {
	return func(t *testing.T, n *cluster.Node) {
		t.Helper()
		path := filepath.Join(n.DataDir(), name)
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, change(raw), 0o600))
	}
}

func without(names ...string) func(t *testing.T, n *cluster.Node) {
	return func(t *testing.T, n *cluster.Node) {
		t.Helper()
		for _, name := range names {
			require.NoError(t, os.RemoveAll(filepath.Join(n.DataDir(), name)))
		}
	}
}

func flipped(at int) func(raw []byte) []byte {
	return func(raw []byte) []byte {
		raw[at] ^= 1
		return raw
	}
}

// corruptions returns the kinds of corruption that the tests apply.
func corruptions() []corruption {
	return []corruption{
		{"page.db zeroed", inData("page.db", func(raw []byte) []byte { return make([]byte, len(raw)) })},
		{"page.db empty", inData("page.db", func([]byte) []byte { return nil })},
		{"page.db truncated", inData("page.db", func(raw []byte) []byte { return raw[:len(raw)/3] })},
		{"page.db with a bad header", inData("page.db", flipped(2))},
		{"page.db with a corrupt header", inData("page.db", flipped(20))},
		{"page.db missing", without("page.db")},
		{"page.db and log missing", without("page.db", "log")},
		{"log corrupt", func(t *testing.T, n *cluster.Node) {
			t.Helper()
			segments, err := filepath.Glob(filepath.Join(n.DataDir(), "log", "*.seg"))
			require.NoError(t, err)
			for _, name := range segments {
				flipAt(t, name, 4096+200)
			}
		}},
		{"headers of the log corrupt", func(t *testing.T, n *cluster.Node) {
			t.Helper()
			segments, err := filepath.Glob(filepath.Join(n.DataDir(), "log", "*.seg"))
			require.NoError(t, err)
			for _, name := range segments {
				flipAt(t, name, 30)
			}
		}},
		{"log missing", without("log")},
		{"identity flipped", inData("identity", flipped(40))},
		{"identity empty", inData("identity", func([]byte) []byte { return nil })},
		{"identity missing", without("identity")},
		{"everything missing", without("identity", "page.db", "log")},
	}
}

// corruptionRounds returns four random kinds of corruption, or all kinds if LOCKSTEP_MATRIX=all.
func corruptionRounds(rng *rand.Rand) []corruption {
	all := corruptions()
	if os.Getenv("LOCKSTEP_MATRIX") == "all" {
		return all
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:4]
}

// A pair recovers automatically from any corrupt file on one node, of either role, if the other node is healthy. No
// acknowledged message is lost. The node starts while its peer serves, or after both were down.
func TestCorruptFilesAreRepaired(t *testing.T) {
	t.Parallel() // mostly idle
	for _, raft := range []bool{false, true} {
		t.Run(fmt.Sprintf("raft %v", raft), func(t *testing.T) { corruptFilesAreRepaired(t, raft) })
	}
}

func corruptFilesAreRepaired(t *testing.T, raft bool) {
	t.Helper()
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 1))
	p := start(t, cluster.Options{Settings: maintenanceSettings(), Raft: raft})
	backlog := fillBacklog(t, p, repairFill, s)
	w := work(t, p, cluster.WorkloadOptions{Prefix: "harm-", Seed: s, PerSecond: 300})
	checkpointBoth(t, p)
	for _, h := range corruptionRounds(rng) {
		for _, role := range []string{"active", "standby"} {
			for _, peer := range []string{"up", "down"} {
				began := time.Now()
				corruptOne(t, p, w, h, role, peer)
				t.Logf("%s, %s, peer %s: recovered after %v", h.name, role, peer,
					time.Since(began).Round(time.Millisecond))
			}
		}
	}
	require.Empty(t, compare(t, p, true).GetContentError())
	verify(t, p, w)
	backlog.check(t)
	checkOffline(t, p)
}

func corruptOne(t *testing.T, p *cluster.Pair, w *cluster.Workload, h corruption, role, peer string) {
	t.Helper()
	victim, other := inSync(t, p)
	if role == "standby" {
		victim, other = other, victim
	}
	label := fmt.Sprintf("%s, %s, peer %s; see %s", h.name, role, peer, victim.Dir)
	if peer == "down" { // kill both together, so that neither continues alone
		require.NoError(t, victim.Pause())
		require.NoError(t, other.Kill())
	}
	require.NoError(t, victim.Kill())
	if peer == "up" {
		acked(t, w)
	}
	h.do(t, victim)
	_, err := os.Stat(filepath.Join(victim.DataDir(), "log", wal.FirstSegment))
	whole := h.name == "page.db missing" && err == nil
	require.NoError(t, victim.Start(), label)
	if peer == "down" && !whole {
		// Alone, the node must not serve, because messages are missing. (A log with all records can rebuild a missing
		// page.db.)
		require.NoError(t, p.WaitRole(limited(t), victim, pb.Role_ROLE_RECOVERING, pb.Role_ROLE_CATCHING_UP,
			pb.Role_ROLE_FENCED), label)
	}
	if peer == "down" {
		require.NoError(t, other.Start(), label)
	}
	acked(t, w)
	_, _, err = p.WaitInSync(limited(t))
	require.NoError(t, err, label)
}

// Files are corrupt on the only node that has all messages. This node does not serve, and reports the cause and the
// required action. The other node does not serve either. After the files are restored as in
// docs/explanation/maintenance.md, the node serves, and nothing is lost.
func TestCorruptFilesOfActiveAlone(t *testing.T) {
	t.Parallel() // mostly idle
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 1))
	p := start(t, cluster.Options{Settings: maintenanceSettings()})
	w := work(t, p, cluster.WorkloadOptions{Prefix: "alone-", Seed: s, PerSecond: 300})
	names := []string{"page.db zeroed", "page.db empty", "log corrupt", "identity flipped", "identity missing"}
	if os.Getenv("LOCKSTEP_MATRIX") != "all" {
		names = []string{names[rng.IntN(3)], names[3+rng.IntN(2)]}
	}
	for _, h := range corruptions() {
		if slices.Contains(names, h.name) {
			corruptActiveAlone(t, p, w, h)
		}
	}
	verify(t, p, w)
	checkOffline(t, p)
}

func corruptActiveAlone(t *testing.T, p *cluster.Pair, w *cluster.Workload, h corruption) {
	t.Helper()
	checkpointBoth(t, p)
	victim, other := inSync(t, p)
	require.NoError(t, other.Kill())
	require.NoError(t, p.WaitRole(limited(t), victim, pb.Role_ROLE_ACTIVE_ALONE))
	acked(t, w)
	require.NoError(t, victim.Kill())
	good := filepath.Join(t.TempDir(), "copy")
	copyTo(t, victim.DataDir(), good)
	h.do(t, victim)
	waits, behind := eventsOf(t, victim), eventsOf(t, other)
	require.NoError(t, victim.Start())
	require.NoError(t, other.Start())
	waits.role(failover.RoleRecovering, failover.CodeStart)
	behind.role(failover.RoleCatchingUp, failover.CodeRecord)
	require.Eventually(t, func() bool {
		s, err := victim.Status(limited(t)) // the first event is logged before the node listens
		reason := s.GetReason()
		return err == nil && strings.Contains(reason, "damaged-") && strings.Contains(reason, strings.Fields(h.name)[0]) &&
			strings.Contains(reason, "docs/explanation/maintenance.md")
	}, bound, 20*time.Millisecond, h.name)
	t.Logf("%s: %s", h.name, statusOf(t, victim).GetReason())
	waits.never(logSize(t, victim), activeRoles()...)
	behind.never(logSize(t, other), activeRoles()...)

	// As in docs/explanation/maintenance.md: restore all quarantined files and replace the corrupt file.
	require.NoError(t, victim.Stop())
	renamed, err := filepath.Glob(filepath.Join(victim.DataDir(), "damaged-*"))
	require.NoError(t, err)
	last := renamed[len(renamed)-1]
	without("page.db", "log", "identity")(t, victim)
	for _, name := range []string{"page.db", "log", "identity"} {
		if err := os.Rename(filepath.Join(last, name), filepath.Join(victim.DataDir(), name)); err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
		}
	}
	corrupt := strings.Fields(h.name)[0]
	without(corrupt)(t, victim)
	copyTo(t, filepath.Join(good, corrupt), filepath.Join(victim.DataDir(), corrupt))
	require.NoError(t, victim.Start())
	acked(t, w)
	inSync(t, p)
}

// copyTo copies a file or a directory to a path that does not exist.
func copyTo(t *testing.T, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	require.NoError(t, err)
	if info.IsDir() {
		require.NoError(t, os.CopyFS(to, os.DirFS(from)))
		return
	}
	raw, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, raw, 0o600))
}
