// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	calls "github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/auth/secretfile"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/server/ops/site"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/test/simpair"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// seedOptions returns the options to seed the data directory of a node.
func seedOptions(w *simpair.World, c *config.Config) site.SeedOptions {
	return site.SeedOptions{
		Name: c.Site.Name, From: c.Site.Remote, Dir: c.Data.Dir, FS: w.Disk, SegmentBytes: c.WAL.SegmentBytes.Bytes(),
		Dial: append(w.ClientOptions(), grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

// seedPrimary starts a primary that trims its log at each checkpoint. Its store contains delayed and expiring
// messages, a schedule and a prepared transaction.
func seedPrimary(t *testing.T, w *simpair.World) *simpair.Node {
	t.Helper()
	c := siteNodes(w, "east", []string{"e"}, []string{"w"})[0]
	c.WAL.KeepBytes = 0
	east := w.Start(c, node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	for _, name := range []string{"q", "ticks"} {
		_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: name})
		require.NoError(t, err)
	}
	for i := range 5 {
		require.NoError(t, sitePublish(t.Context(), east, "q", fmt.Sprint(i)))
	}
	_, err := east.Queues().Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: []*pb.Message{
		{Body: []byte("delayed"), Delay: durationpb.New(time.Hour)},
		{Body: []byte("expiring"), Ttl: durationpb.New(40 * time.Second)},
	}})
	require.NoError(t, err)
	_, err = pb.NewScheduleServiceClient(east.Conn()).PutSchedule(t.Context(), &pb.PutScheduleRequest{
		Schedule: &pb.Schedule{
			Name: "tick", Queue: "ticks", Every: durationpb.New(7 * time.Second), Message: &pb.Message{Body: []byte("tick")},
		},
	})
	require.NoError(t, err)
	_, err = east.Queues().Prepare(t.Context(), &pb.PrepareRequest{Xid: "x", Operations: []*pb.Operation{
		{Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{Queue: "q", Messages: []*pb.Message{{}}}}},
	}})
	require.NoError(t, err)
	return east
}

// trimLog publishes several segments of log and writes checkpoints, so that these segments are removed.
func trimLog(t *testing.T, n *simpair.Node) {
	t.Helper()
	body := make([]byte, 900<<10) // incompressible
	random := rand.NewChaCha8([32]byte{})
	for range 8 {
		_, _ = random.Read(body) // never returns an error
		require.NoError(t, sitePublish(t.Context(), n, "q", string(body)))
		_, err := n.Admin().Checkpoint(t.Context(), &pb.CheckpointRequest{})
		require.NoError(t, err)
	}
}

// A seeded node starts as a replica. The primary retains its log after the snapshot, so that both sites reach the
// same content. The second node of the replica's pair receives its store from the seeded node.
func TestSeed(t *testing.T) { simpair.Test(t, testSeed) }

func testSeed(t *testing.T, w *simpair.World) {
	east := seedPrimary(t, w)
	consume, err := east.Queues().Consume(t.Context())
	require.NoError(t, err)
	require.NoError(t, consume.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q"}, Credit: 3}))
	attached, err := consume.Recv()
	require.NoError(t, err)
	require.NotNil(t, attached)
	configs := siteNodes(w, "west", []string{"w", "w2"}, []string{"e"})
	o := seedOptions(w, &configs[0])
	var phases []string
	o.Progress = func(p checkpoint.Progress) {
		if len(phases) == 0 || phases[len(phases)-1] != p.Phase {
			phases = append(phases, p.Phase)
		}
	}
	seeded, err := site.Seed(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, []string{"copy", "check"}, phases)
	require.Equal(t, "east", seeded.Primary.GetName())
	require.EqualValues(t, 7, seeded.Messages)
	trimLog(t, east)
	<-time.After(9 * time.Minute)

	west := w.Launch(configs[0], node.Options{})
	for west.Role() != pb.Role_ROLE_ACTIVE_ALONE {
		require.Error(t, sitePublish(t.Context(), west, "q", "no"))
		<-time.After(time.Millisecond)
	}
	st := siteOf(t, west).GetSite()
	require.Equal(t, pb.SiteRole_SITE_ROLE_REPLICA, st.GetRole())
	require.Equal(t, siteOf(t, east).GetSite().GetLineage(), st.GetLineage())
	require.EqualValues(t, 1, st.GetEpoch())
	require.Equal(t, pb.ErrorReason_ERROR_REASON_REPLICA, reasonOf(sitePublish(t.Context(), west, "q", "no")))
	waitReplicated(w, east, west)
	require.Equal(t, contentOf(t, east), contentOf(t, west))
	second := w.Start(configs[1], node.Options{})
	w.WaitInSync(west, second)
	require.NoError(t, consume.CloseSend())
	w.Eventually(func() bool { return siteOf(t, east).GetRemote() != nil }, "east has the state of its replica")
	_, err = siteService(east).SwitchSite(t.Context(), &pb.SwitchSiteRequest{})
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), west, "q", "more"))
	<-time.After(time.Minute)
	waitReplicated(w, west, east)
	require.Equal(t, contentOf(t, east), contentOf(t, west))
}

// The primary releases its log when the replica has received it, or when the replica does not connect in time.
func TestSeedRetention(t *testing.T) {
	for name, connects := range map[string]bool{"replica connects": true, "too late": false} {
		t.Run(name, func(t *testing.T) {
			simpair.Test(t, func(t *testing.T, w *simpair.World) { testSeedRetention(t, w, connects) })
		})
	}
}

func testSeedRetention(t *testing.T, w *simpair.World, connects bool) {
	east := seedPrimary(t, w)
	c := siteNodes(w, "west", []string{"w"}, []string{"e"})[0]
	seeded, err := site.Seed(t.Context(), seedOptions(w, &c))
	require.NoError(t, err)
	pull := func(after *pb.Position) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := siteService(east).PullLog(ctx, &pb.PullLogRequest{Site: "west", After: after})
		require.NoError(t, err)
		_, err = stream.Recv()
		return err
	}
	at := &pb.Position{Term: seeded.Upstream.Term, Lsn: seeded.Upstream.LSN, Chain: seeded.Upstream.Chain}
	trimLog(t, east)
	<-time.After(9 * time.Minute)
	require.NoError(t, pull(at)) // ends before the replica has received all records
	<-time.After(9 * time.Minute)
	if connects {
		west := w.Start(c, node.Options{})
		waitReplicated(w, east, west)
		require.NoError(t, west.Stop())
	} else {
		<-time.After(2 * time.Minute)
	}
	trimLog(t, east)
	<-time.After(time.Minute)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_BEHIND, reasonOf(pull(at)))
}

// A primary does not retain its log for a replica when its disk is nearly full.
func TestSeedDiskFull(t *testing.T) { simpair.Test(t, testSeedDiskFull) }

func testSeedDiskFull(t *testing.T, w *simpair.World) {
	c := siteNodes(w, "east", []string{"e"}, []string{"w"})[0]
	c.WAL.KeepBytes, c.Disk.LowWatermark = 0, 32<<20
	disk := memfs.New()
	require.NoError(t, disk.MkdirAll("/data", 0o700))
	c.Data.Dir = "/data"
	east := w.Start(c, node.Options{FS: disk})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	replica := siteNodes(w, "west", []string{"w"}, []string{"e"})[0]
	seeded, err := site.Seed(t.Context(), seedOptions(w, &replica))
	require.NoError(t, err)
	trimLog(t, east)
	u, err := disk.Usage("/data")
	require.NoError(t, err)
	disk.SetCapacity(int64(u.TotalBytes-u.AvailableBytes) + 38<<20) // between the watermark and 1.25 times the watermark
	<-time.After(2 * time.Second)
	disk.SetCapacity(int64(u.TotalBytes))
	trimLog(t, east)
	<-time.After(time.Minute)
	stream, err := siteService(east).PullLog(t.Context(), &pb.PullLogRequest{Site: "west", After: &pb.Position{
		Term: seeded.Upstream.Term, Lsn: seeded.Upstream.LSN, Chain: seeded.Upstream.Chain,
	}})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_BEHIND, reasonOf(err))
}

// A snapshot contains the promotion of the primary. A replica of the promoted site continues in its epoch.
func TestSeedFromPromoted(t *testing.T) { simpair.Test(t, testSeedFromPromoted) }

func testSeedFromPromoted(t *testing.T, w *simpair.World) {
	east, west := pairsOfSites(t, w)
	cutSites(w, east, west, true)
	_, err := siteService(west[0]).PromoteSite(t.Context(), &pb.PromoteSiteRequest{Reason: "test"})
	require.NoError(t, err)
	for _, n := range east {
		n.Kill()
	}
	cutSites(w, east, west, false)
	c := siteNodes(w, "east", []string{"east-c"}, []string{"west-a", "west-b"})[0]
	_, err = site.Seed(t.Context(), seedOptions(w, &c))
	require.NoError(t, err)
	replica := w.Start(c, node.Options{})
	waitReplicated(w, west[0], replica)
	require.Equal(t, contentOf(t, west[0]), contentOf(t, replica))
	st := siteOf(t, replica).GetSite()
	require.EqualValues(t, 2, st.GetEpoch())
	require.EqualValues(t, 2, st.GetLossyEpoch())
	require.NoError(t, sitePublish(t.Context(), west[0], "q", "one"))
	waitReplicated(w, west[0], replica)
	require.Equal(t, contentOf(t, west[0]), contentOf(t, replica))
}

// Seed rejects a replica as the source, a source with the same site name, and a directory that contains files.
func TestSeedRefused(t *testing.T) { simpair.Test(t, testSeedRefused) }

func testSeedRefused(t *testing.T, w *simpair.World) {
	_, west := pairsOfSites(t, w)
	third := siteNodes(w, "third", []string{"third"}, []string{"west-a", "west-b"})[0]
	_, err := site.Seed(t.Context(), seedOptions(w, &third))
	require.ErrorIs(t, err, site.ErrRole)
	_, err = w.Disk.Stat(third.Data.Dir)
	require.ErrorIs(t, err, os.ErrNotExist)

	same := siteNodes(w, "east", []string{"third"}, []string{"east-a"})[0]
	_, err = site.Seed(t.Context(), seedOptions(w, &same))
	require.ErrorIs(t, err, site.ErrRole)

	full := seedOptions(w, &third)
	full.From, full.Dir = []string{fmt.Sprintf("%s:%d", w.Host("east-a"), sitePort)}, west[0].Config.Data.Dir
	_, err = site.Seed(t.Context(), full)
	require.ErrorIs(t, err, datadir.ErrNotEmpty)
}

// cutReader is a snapshot stream that fails after some responses, or in which one response is changed.
type cutReader struct {
	grpc.ClientStream

	left   int
	change func(*pb.PullSnapshotResponse)
}

func (c *cutReader) RecvMsg(m any) error {
	resp, is := m.(*pb.PullSnapshotResponse)
	if !is {
		return c.ClientStream.RecvMsg(m)
	}
	c.left--
	if c.left == 0 && c.change == nil {
		return io.EOF
	}
	err := c.ClientStream.RecvMsg(m)
	if c.left == 0 {
		c.change(resp)
	}
	return err
}

// If the stream breaks or contains corrupt data, Seed leaves an empty directory, and the next attempt succeeds.
func TestSeedAfterBrokenStream(t *testing.T) { simpair.Test(t, testSeedAfterBrokenStream) }

func testSeedAfterBrokenStream(t *testing.T, w *simpair.World) {
	seedPrimary(t, w)
	c := siteNodes(w, "west", []string{"w"}, []string{"e"})[0]
	for name, tc := range map[string]struct {
		left   int
		change func(*pb.PullSnapshotResponse)
		want   error
	}{
		"stream ends": {left: 3, want: site.ErrUnreachable},
		"other position": {
			left: 1, change: func(r *pb.PullSnapshotResponse) { r.GetSnapshot().Position = nil }, want: backup.ErrCorrupt,
		},
		"bit flip": {
			left: 3, change: func(r *pb.PullSnapshotResponse) { r.Checksum ^= 1 }, want: backup.ErrCorrupt,
		},
		"last chunk lost": {
			left: 3, change: func(r *pb.PullSnapshotResponse) { r.Finished, r.Data = true, nil }, want: backup.ErrCorrupt,
		},
		"other lineage": {
			left: 1, want: backup.ErrCorrupt,
			change: func(r *pb.PullSnapshotResponse) {
				r.GetSnapshot().GetPrimary().Lineage = "11111111-1111-1111-1111-111111111111"
			},
		},
	} {
		section(t, name, func(t *testing.T) {
			o := seedOptions(w, &c)
			o.Dial = append(o.Dial, grpc.WithStreamInterceptor(func(
				ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer,
				opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				s, err := streamer(ctx, desc, cc, method, opts...)
				return &cutReader{ClientStream: s, left: tc.left, change: tc.change}, err
			}))
			_, err := site.Seed(t.Context(), o)
			require.ErrorIs(t, err, tc.want)
			names, err := w.Disk.ReadDir(c.Data.Dir)
			require.NoError(t, err)
			require.Subset(t, []string{datadir.LockName}, names)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	o := seedOptions(w, &c)
	o.Progress = func(checkpoint.Progress) { cancel() }
	_, err := site.Seed(ctx, o)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, datadir.CheckRestore(w.Disk, c.Data.Dir))
	_, err = site.Seed(t.Context(), seedOptions(w, &c))
	require.NoError(t, err)
}

// Only a caller with a secret of the sites or with the operate right receives a snapshot.
func TestSeedToken(t *testing.T) { simpair.Test(t, testSeedToken) }

func testSeedToken(t *testing.T, w *simpair.World) {
	dir := t.TempDir()
	secrets := map[string]*secretfile.File{}
	for _, name := range []string{"right", "wrong"} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte("secret-of-the-sites-"+name), 0o600))
		var err error
		secrets[name], err = secretfile.Open(path, nil)
		require.NoError(t, err)
	}
	c := siteNodes(w, "east", []string{"e"}, []string{"w"})[0]
	c.Site.TokenFile, c.Access.Operators = filepath.Join(dir, "right"), []string{"root"}
	east := w.Start(c, node.Options{Environment: node.Environment{Authenticators: []calls.Authenticator{byName}}})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := pb.NewAccessServiceClient(east.Conn()).Grant(as(t.Context(), "root"), &pb.GrantRequest{Rule: &pb.AccessRule{
		Principal: "alice", Queue: "q", Rights: []pb.AccessRight{mayPublish},
	}})
	require.NoError(t, err)
	replica := siteNodes(w, "west", []string{"w"}, []string{"e"})[0]
	o := seedOptions(w, &replica)
	plain := o.Dial
	_, err = site.Seed(t.Context(), o)
	require.ErrorIs(t, err, site.ErrUnreachable)
	o.Dial = append(site.DialOptions(nil, secrets["wrong"]), plain...)
	_, err = site.Seed(t.Context(), o)
	require.ErrorIs(t, err, site.ErrUnreachable)
	stream, err := siteService(east).PullSnapshot(t.Context(), &pb.PullSnapshotRequest{Site: "west"})
	require.NoError(t, err)
	_, err = stream.Recv()
	denied(t, err)
	o.Dial = append(site.DialOptions(nil, secrets["right"]), plain...)
	_, err = site.Seed(t.Context(), o)
	require.NoError(t, err)
}
