// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// The active continues without its standby, and is then lost. The standby takes over only after a forced failover.
// The old active returns as standby, and the messages that only it had acknowledged are saved to a file, which
// dump-log reads.
func TestForcedFailover(t *testing.T) {
	t.Parallel() // mostly idle
	for _, tt := range []struct {
		name string
		raft bool
		lose func(n *cluster.Node) error // stops the active
		back func(n *cluster.Node) error // restores it
	}{
		// A killed process loses all changes that it applied after the last checkpoint. When it returns, that part of its
		// log is truncated.
		{"killed", false, (*cluster.Node).Kill, (*cluster.Node).Start},
		// A frozen process has applied its whole log, and continues as active until it detects the failover. It then
		// requires a snapshot.
		{"frozen", false, (*cluster.Node).Pause, (*cluster.Node).Wake},
		// The quorum is the witness and the remaining node.
		{"killed, raft", true, (*cluster.Node).Kill, (*cluster.Node).Start},
	} {
		t.Run(tt.name, func(t *testing.T) { forceAfter(t, tt.raft, tt.lose, tt.back) })
	}
}

func forceAfter(t *testing.T, raft bool, lose, back func(n *cluster.Node) error) {
	t.Helper()
	p := start(t, cluster.Options{Links: true, Raft: raft, Settings: dropsFirst()})
	old, next := inSync(t, p)
	c, err := p.NewClient(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, _, err = admin.New(c).CreateQueue(limited(t), "forced", admin.CreateQueueOptions{})
	require.NoError(t, err)
	publish(t, c, "kept", 20)

	was, is := eventsOf(t, old), eventsOf(t, next)
	p.Cut()
	was.dropped(silent()...)
	is.role(failover.RoleCatchingUp, append(silent(), failover.CodeDropped)...)
	publish(t, c, "lost", 30)
	refused(t, next, "--force", "--accept-data-loss", "--yes") // the active still serves
	require.NoError(t, lose(old))
	p.LoseCut()
	require.NoError(t, p.Wait(limited(t), "a standby that waits", func(a, b *pb.GetStatusResponse) bool {
		s := b
		if next == p.A {
			s = a
		}
		return s.GetRole() == pb.Role_ROLE_CATCHING_UP && strings.Contains(s.GetReason(), "lockstep failover --dry-run")
	}))
	end := forceByCommand(t, p, next)
	leads := is.takeovers(failover.CodeForced)
	is.role(failover.RoleActiveAlone, failover.CodeReady)
	out, err := command(t, "--addr", next.Address, "status")
	require.NoError(t, err)
	require.Contains(t, out, "FORCED: node "+next.Name)
	require.Contains(t, out, "of force")
	publish(t, c, "after", 10)

	require.NoError(t, back(old))
	now, _ := inSync(t, p)
	require.Equal(t, next, now)
	require.Equal(t, leads.Number("term"), was.role(failover.RoleStandby, failover.CodeInSync).Number("term"))
	out, err = command(t, "--addr", next.Address, "status")
	require.NoError(t, err)
	require.NotContains(t, out, "FORCED", "the forced failover is settled")
	publish(t, c, "both", 5)
	digests, err := p.Digests(limited(t))
	require.NoError(t, err)
	require.Equal(t, digests[0].Content, digests[1].Content)
	require.Equal(t, append(append(bodies("kept", 20), bodies("after", 10)...), bodies("both", 5)...), stored(t, c))
	requireKept(t, old, end, bodies("lost", 30))
}

// bodies returns the message bodies of a phase.
func bodies(phase string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("%s-%d", phase, i))
	}
	return list
}

// publish publishes the messages of a phase one by one, and requires an acknowledgement of each.
func publish(t *testing.T, c *client.Client, phase string, n int) {
	t.Helper()
	ctx := limited(t)
	for _, body := range bodies(phase, n) {
		_, err := c.Publish(ctx, "forced", client.Message{Body: []byte(body)})
		require.NoError(t, err, body)
	}
}

// stored returns the message bodies in the queue "forced".
func stored(t *testing.T, c *client.Client) (list []string) {
	t.Helper()
	for m, err := range c.Browse(limited(t), "forced", client.BrowseOptions{}) {
		require.NoError(t, err)
		list = append(list, string(m.Body))
	}
	return list
}

// refused runs the failover command, which must be rejected, and returns its output.
func refused(t *testing.T, n *cluster.Node, flags ...string) string {
	t.Helper()
	before, err := n.Status(limited(t))
	require.NoError(t, err)
	out, err := command(t, append([]string{"--addr", n.Address, "failover", n.Address}, flags...)...)
	require.Error(t, err, out)
	after, err := n.Status(limited(t))
	require.NoError(t, err)
	require.Equal(t, before.GetPair().GetTerm(), after.GetPair().GetTerm(), out)
	return out
}

// forceByCommand forces a failover to a node, and returns the last LSN in the node's log before the failover.
func forceByCommand(t *testing.T, p *cluster.Pair, n *cluster.Node) uint64 {
	t.Helper()
	require.Contains(t, refused(t, n), "--accept-data-loss")
	require.Contains(t, refused(t, n, "--force"), "--accept-data-loss")
	require.Contains(t, refused(t, n, "--force", "--accept-data-loss"), "BE LOST",
		"without a terminal, the command requires --yes, and first reports the loss")

	s, err := n.Status(limited(t))
	require.NoError(t, err)
	end := s.GetStore().GetLogEnd().GetLsn()
	addrs := strings.Join(p.Addresses(), ",")
	out, err := command(t, "--addr", addrs, "failover", n.Address, "--dry-run", "-o", "json")
	require.NoError(t, err, out)
	var plan struct {
		Done      bool     `json:"done"`
		From      uint64   `json:"lost_from_lsn"`
		LostNode  string   `json:"lost_node_name"`
		HeardOf   uint64   `json:"heard_commit_lsn"`
		Warnings  []string `json:"warnings"`
		OtherName string   `json:"node_name"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &plan), out)
	require.False(t, plan.Done)
	require.Equal(t, end+1, plan.From)
	require.Equal(t, p.Other(n).Name, plan.LostNode)
	require.Positive(t, plan.HeardOf)
	require.NotEmpty(t, plan.Warnings)

	out, err = command(t, "--addr", n.Address, "failover", n.Address, "--force", "--accept-data-loss", "--yes",
		"--reason", "a test of force")
	require.NoError(t, err, out)
	require.Contains(t, out, fmt.Sprintf("from LSN %d", end+1))
	require.Contains(t, out, "done: node "+n.Name)
	return end
}

// requireKept checks that the file with saved records, as logged by the node, contains exactly these messages.
func requireKept(t *testing.T, n *cluster.Node, after uint64, want []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.DataDir(), "cut-*.seg"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	log, err := os.ReadFile(n.LogFile())
	require.NoError(t, err)
	require.Contains(t, string(log), "saved records")
	require.Contains(t, string(log), filepath.Base(files[0]))
	out, err := command(t, "store", "dump-log", files[0], "--messages", "-o", "json")
	require.NoError(t, err, out)
	var got []string
	lines := bufio.NewScanner(strings.NewReader(out))
	for lines.Scan() {
		var record struct {
			LSN      uint64 `json:"lsn"`
			Messages []struct {
				Body string `json:"body"`
			} `json:"messages"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &record), lines.Text())
		for _, m := range record.Messages {
			require.Greater(t, record.LSN, after)
			got = append(got, m.Body)
		}
	}
	require.Equal(t, want, got)
}
