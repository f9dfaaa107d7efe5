// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

const (
	backlogQueue = "stock"
	// backlogSubs is the number of subscriptions that retain every message of the backlog. Each message is stored only
	// once.
	backlogSubs = 8
	// backlogProducer is the producer number in the message bodies; the workloads use 1, 2, 3, …
	backlogProducer = 1 << 20
	// loadFactor limits the size of page.db relative to its messages. The excess contains unused page ends, the index,
	// free pages and new messages. A file with a copy per subscription would be backlogSubs times as large.
	loadFactor = 2.5
	slackBytes = 48 << 20
)

// backlog is a set of messages that remain in a queue, so that a rewrite of the page file takes long enough to be
// interrupted.
type backlog struct {
	c        *client.Client
	messages uint64
	bytes    uint64
}

// fillBacklog publishes messages of many sizes until their bodies have at least the given number of bytes.
func fillBacklog(t *testing.T, p *cluster.Pair, bytes int, seed uint64) *backlog {
	t.Helper()
	c, err := p.NewClient(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	s := &backlog{c: c}
	var subs []string
	for i := range backlogSubs {
		subs = append(subs, fmt.Sprintf("sub-%d", i))
	}
	_, _, err = admin.New(c).CreateQueue(limited(t), backlogQueue, admin.CreateQueueOptions{Subscriptions: subs})
	require.NoError(t, err)
	producer, err := c.NewProducer(limited(t), client.ProducerOptions{})
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(seed, 77))
	ctx := limited(t)
	for s.bytes < uint64(bytes) {
		s.messages++
		body := historycheck.Body(historycheck.ID{Producer: backlogProducer, N: s.messages}, backlogSize(rng))
		s.bytes += uint64(len(body))
		producer.PublishAsync(ctx, backlogQueue, client.Message{Body: body})
	}
	require.NoError(t, producer.Flush(ctx))
	require.NoError(t, producer.Close())
	return s
}

// backlogSize returns a random size: usually small, sometimes a few pages, rarely large.
func backlogSize(rng *rand.Rand) int {
	switch percent := rng.IntN(100); {
	case percent < 2:
		return 32<<10 + rng.IntN(200<<10)
	case percent < 25:
		return 2<<10 + rng.IntN(30<<10)
	default:
		return 20 + rng.IntN(2<<10)
	}
}

// check reads the whole backlog, and compares each byte.
func (s *backlog) check(t *testing.T) {
	t.Helper()
	var n uint64
	for m, err := range s.c.Browse(limited(t), backlogQueue, client.BrowseOptions{}) {
		require.NoError(t, err, "message %d of the backlog", n+1)
		n++
		id, err := historycheck.ParseBody(m.Body)
		require.NoError(t, err, "message %d of the backlog", n)
		require.Equal(t, historycheck.ID{Producer: backlogProducer, N: n}, id, "order of the backlog")
		require.Equal(t, n, m.Sequence)
	}
	require.Equal(t, s.messages, n, "messages of the backlog")
}

// checkFiles checks the page size, the files, their sizes, and every page of both nodes after a rewrite.
func checkFiles(t *testing.T, p *cluster.Pair, pageSize [2]uint32) {
	t.Helper()
	for i, n := range p.Nodes() {
		st, err := n.Status(limited(t))
		require.NoError(t, err)
		require.Equal(t, int(pageSize[i]), int(st.GetStore().GetPageSize()), "page size of node %s", n.Name)
		onlyPageFile(t, n)
		info, err := os.Stat(filepath.Join(n.DataDir(), "page.db"))
		require.NoError(t, err)
		limit := loadFactor*float64(st.GetStore().GetMessageBytes()) + slackBytes
		require.Less(t, float64(info.Size()), limit,
			"page.db of node %s with %d bytes of messages: shared messages may be stored more than once",
			n.Name, st.GetStore().GetMessageBytes())
		checkOnline(t, n)
	}
}

// onlyPageFile waits until a node has one page.db and no page.db_new. The file of a canceled rewrite is removed in
// the background.
func onlyPageFile(t *testing.T, n *cluster.Node) {
	t.Helper()
	var names []string
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(n.DataDir())
		require.NoError(t, err)
		names = names[:0]
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "page") && e.Name() != "page.db_old" {
				names = append(names, e.Name())
			}
		}
		return len(names) == 1 && names[0] == "page.db"
	}, bound, 5*time.Millisecond, "node %s: page files", n.Name)
}

// checkOnline verifies the whole store of a running node.
func checkOnline(t *testing.T, n *cluster.Node) {
	t.Helper()
	stream, err := pb.NewAdminServiceClient(n.Conn()).Check(limited(t), &pb.CheckRequest{})
	require.NoError(t, err)
	for {
		r, err := stream.Recv()
		require.NoError(t, err, "check of node %s", n.Name)
		if r.GetFinished() {
			require.Empty(t, r.GetProblems(), "check of node %s", n.Name)
			return
		}
	}
}

// checkOffline stops both nodes and verifies their files with the command line.
func checkOffline(t *testing.T, p *cluster.Pair) {
	t.Helper()
	for _, n := range p.Nodes() {
		require.NoError(t, n.Stop())
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for _, n := range p.Nodes() {
		out, err := exec.CommandContext(ctx, binary, "store", "check", n.DataDir()).CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s", strings.TrimSpace(string(out)))
	}
}
