// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/datadir"
)

// flipIn flips a bit of text where it occurs in a file.
func flipIn(t *testing.T, name, text string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	raw, err := io.ReadAll(f)
	require.NoError(t, err)
	at := bytes.Index(raw, []byte(text))
	require.Positive(t, at, "%s is not in %s", text, name)
	_, err = f.WriteAt([]byte{raw[at] ^ 1}, int64(at))
	require.NoError(t, err)
}

// browsed returns the sequences of the messages in a queue, and the sequences of its corrupt messages.
func (n *testNode) browsed(queue string) (sequences, corrupt []uint64) {
	n.t.Helper()
	stream, err := n.queues.Browse(n.t.Context(), &pb.BrowseRequest{Queue: queue})
	require.NoError(n.t, err)
	for {
		resp, err := stream.Recv()
		if err == io.EOF { //nolint:errorlint // Recv documents it
			return sequences, corrupt
		}
		require.NoError(n.t, err)
		corrupt = append(corrupt, resp.GetDamaged()...)
		for _, m := range resp.GetMessages() {
			sequences = append(sequences, m.GetSequence())
		}
	}
}

// A standalone node cannot repair corrupt messages. Browse skips and reports them, Verify lists them, and an
// operator can discard them.
func TestCorruptMessagesStandalone(t *testing.T) { simulated(t, testCorruptMessagesStandalone) }

func testCorruptMessagesStandalone(t *testing.T) {
	n := startAlone(t, func(c *config.Config) {
		c.Data.Dir = t.TempDir()
		withAMQP(c)
	})
	n.createQueue("orders")
	var bodies []string
	for _, name := range []string{"first", "second", "third", "fourth", "fifth"} {
		bodies = append(bodies, strings.Repeat(name+"-body-", 2000))
	}
	n.publish("orders", bodies...)
	_, err := n.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
	n.stop()
	for _, name := range []string{"second", "fourth"} {
		flipIn(t, datadir.PageFile(n.config.Data.Dir), name+"-body-")
	}
	n = start(t, n.config)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	sequences, corrupt := n.browsed("orders")
	require.Equal(t, []uint64{1, 3, 5}, sequences)
	require.Equal(t, []uint64{2, 4}, corrupt)
	p := openAMQP(t, n)
	require.Nil(t, p.receiver(0, "b", &wire.Source{Address: "orders", DistributionMode: "copy"}))
	p.credit(0, 10)
	for _, at := range []int{0, 2, 4} {
		require.Equal(t, bodies[at], p.receive().body)
	}
	end := expect[*wire.Detach](p)
	require.True(t, end.Closed)
	reason, _ := end.Error.Info.Get(wire.Symbol("lockstep:reason"))
	require.Equal(t, "DATA_LOSS", reason)

	r, err := n.admin.Verify(t.Context(), &pb.VerifyRequest{Deep: true, FullSpeed: true})
	require.NoError(t, err)
	require.Len(t, r.GetNodes(), 1)
	require.Len(t, r.GetNodes()[0].GetDamaged(), 2)
	require.True(t, r.GetNodes()[0].GetDamaged()[0].GetLost())

	drop := func(dry bool, only ...uint64) []uint64 {
		d, err := n.admin.DropDamaged(t.Context(), &pb.DropDamagedRequest{Queue: "orders", DryRun: dry, Only: only})
		require.NoError(t, err)
		return d.GetSequences()
	}
	require.Equal(t, []uint64{2, 4}, drop(true))
	require.Empty(t, drop(false, 1, 9), "intact or unknown messages are not discarded")
	require.Equal(t, []uint64{2}, drop(false, 2))
	require.Empty(t, drop(false, 2), "a retry discards nothing")
	require.Equal(t, []uint64{4}, drop(false))
	require.Empty(t, drop(false))
	sequences, corrupt = n.browsed("orders")
	require.Equal(t, []uint64{1, 3, 5}, sequences)
	require.Empty(t, corrupt)
	q, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "orders"})
	require.NoError(t, err)
	require.Equal(t, uint64(3), q.GetQueue().GetMessages())
	_, err = n.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
}

// The corrupt messages of a queue can be discarded, regardless of the number of corrupt messages in other queues.
func TestManyCorruptMessages(t *testing.T) { simulated(t, testManyCorruptMessages) }

func testManyCorruptMessages(t *testing.T) {
	n := startAlone(t, func(c *config.Config) { c.Data.Dir = t.TempDir() })
	const others = 1001
	n.createQueue("other")
	n.publish("other", slices.Repeat([]string{"corrupt-body"}, others)...)
	n.createQueue("orders")
	n.publish("orders", strings.Repeat("corrupt-body", 2000))
	_, err := n.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
	n.stop()
	file := datadir.PageFile(n.config.Data.Dir)
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, bytes.ReplaceAll(raw, []byte("corrupt-body"), []byte("Corrupt-body")), 0o600))
	n = start(t, n.config)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, corrupt := n.browsed("other")
	require.Len(t, corrupt, others)
	_, corrupt = n.browsed("orders")
	require.Equal(t, []uint64{1}, corrupt)
	d, err := n.admin.DropDamaged(t.Context(), &pb.DropDamagedRequest{Queue: "orders"})
	require.NoError(t, err)
	require.Equal(t, []uint64{1}, d.GetSequences())

	dry, err := n.admin.DropDamaged(t.Context(), &pb.DropDamagedRequest{Queue: "other", DryRun: true})
	require.NoError(t, err)
	require.Len(t, dry.GetSequences(), others)
	d, err = n.admin.DropDamaged(t.Context(), &pb.DropDamagedRequest{Queue: "other", Only: dry.GetSequences()})
	require.NoError(t, err)
	require.Len(t, d.GetSequences(), others)
	require.Zero(t, n.stored("other"))
}

// Discarded messages are removed although the queue retains acknowledged messages.
func TestCorruptRetainedMessages(t *testing.T) { simulated(t, testCorruptRetainedMessages) }

func testCorruptRetainedMessages(t *testing.T) {
	n := startAlone(t, func(c *config.Config) { c.Data.Dir = t.TempDir() })
	require.NoError(t, n.createWith("log", &pb.QueueConfig{RetentionMessages: 10}))
	_, err := n.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{
		Name: "unread", Config: &pb.QueueConfig{RetentionMessages: 10}, Topic: true,
	})
	require.NoError(t, err)
	for _, queue := range []string{"log", "unread"} {
		for _, name := range []string{"first", "second", "third"} {
			n.publish(queue, strings.Repeat(name+"-of-"+queue, 2000))
		}
	}
	n.drain("log", 1)
	_, err = n.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
	n.stop()
	for _, body := range []string{"first-of-log", "second-of-log", "second-of-unread"} {
		flipIn(t, datadir.PageFile(n.config.Data.Dir), body)
	}
	n = start(t, n.config)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	damaged := func() []*pb.DamagedMessage {
		r, err := n.admin.Verify(t.Context(), &pb.VerifyRequest{Deep: true, FullSpeed: true})
		require.NoError(t, err)
		return r.GetNodes()[0].GetDamaged()
	}
	require.Len(t, damaged(), 3)
	for queue, corrupt := range map[string][]uint64{"log": {1, 2}, "unread": {2}} {
		d, err := n.admin.DropDamaged(t.Context(), &pb.DropDamagedRequest{Queue: queue})
		require.NoError(t, err)
		require.Equal(t, corrupt, d.GetSequences())
		require.Equal(t, 3-uint64(len(corrupt)), n.stored(queue))
	}
	require.Empty(t, damaged())
}

// After a flush, the archive contains all acknowledged messages. A node with an empty data directory starts a new
// archive next to the existing one.
func TestFlushArchive(t *testing.T) { simulated(t, testFlushArchive) }

func testFlushArchive(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "archive")
	n := startAlone(t, func(c *config.Config) {
		c.Data.Dir = t.TempDir()
		c.WAL.Archive, c.WAL.ArchiveEvery = archive, config.Duration(24*60*60*1e9)
	})
	n.createQueue("orders")
	first, err := n.maintenance.FlushArchive(t.Context(), &pb.FlushArchiveRequest{})
	require.NoError(t, err)
	n.publish("orders", "one", "two")
	second, err := n.maintenance.FlushArchive(t.Context(), &pb.FlushArchiveRequest{})
	require.NoError(t, err)
	require.Greater(t, second.GetLastLsn(), first.GetLastLsn())
	require.Equal(t, n.status().GetStore().GetAppliedLsn(), second.GetLastLsn())
	require.NotNil(t, second.GetLastTime())
	require.Equal(t, archive, second.GetDirectory())
	chains, err := backup.VerifyArchive(context.Background(), backup.Directory(nil, archive), nil)
	require.NoError(t, err)
	require.Len(t, chains, 1)
	require.Equal(t, second.GetLastLsn(), chains[0].Last.LSN)

	n.stop()
	for _, name := range []string{"identity", "page.db", "log", "standalone"} {
		require.NoError(t, os.RemoveAll(filepath.Join(n.config.Data.Dir, name)))
	}
	n = start(t, n.config)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("orders")
	third, err := n.maintenance.FlushArchive(t.Context(), &pb.FlushArchiveRequest{})
	require.NoError(t, err)
	require.Contains(t, third.GetFormer(), filepath.Join(archive, "other-"))
	require.Less(t, third.GetLastLsn(), second.GetLastLsn())
	left := n.status().GetStore().GetUnusedFiles()
	require.Len(t, left, 1)
	require.Equal(t, []string{third.GetFormer(), "other-archive"}, []string{left[0].GetPath(), left[0].GetKind()})
	require.Positive(t, left[0].GetBytes())
	chains, err = backup.VerifyArchive(context.Background(), backup.Directory(nil, third.GetFormer()), nil)
	require.NoError(t, err)
	require.GreaterOrEqual(t, chains[0].Last.LSN, second.GetLastLsn(), "the former archive is complete")

	none := startAlone(t, nil)
	_, err = none.maintenance.FlushArchive(t.Context(), &pb.FlushArchiveRequest{})
	require.Error(t, err)
	require.Contains(t, err.Error(), "wal.archive")
}
