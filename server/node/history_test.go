// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/history"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// afterSample waits until d after the end of the current interval, and returns the end of that interval.
func afterSample(d time.Duration) time.Time {
	end := time.Now().Truncate(history.Interval).Add(history.Interval)
	<-time.After(time.Until(end.Add(d)))
	return end
}

func historyOf(t *testing.T, queues pb.QueueServiceClient, queue string, since time.Duration) []*pb.HistoryPoint {
	t.Helper()
	resp, err := queues.GetHistory(t.Context(), &pb.GetHistoryRequest{Queue: queue, Since: durationpb.New(since)})
	require.NoError(t, err)
	return resp.GetPoints()
}

// The points of a queue and of the pair contain the traffic of their intervals, including the traffic of detached
// consumers.
func TestHistory(t *testing.T) { simulated(t, testHistory) }

func testHistory(t *testing.T) {
	n := startAlone(t, nil)
	afterSample(time.Second)
	n.createQueue("q")
	n.publish("q", "1", "2", "3", "4", "5")
	published := time.Now()
	first := afterSample(time.Second)
	c := n.consume("q", 4)
	got := c.take(4)
	c.confirm(&pb.ConsumeRequest{Ack: span(got[0].GetSequence(), got[1].GetSequence()), Confirm: 1})
	require.NoError(t, c.stream.CloseSend())
	second := afterSample(time.Second)
	third := afterSample(time.Second)

	for _, queue := range []string{"q", ""} {
		points := historyOf(t, n.queues, queue, 35*time.Second)
		points = points[len(points)-3:]
		for i, at := range []time.Time{first, second, third} {
			require.True(t, at.Equal(points[i].GetAt().AsTime()), "%s, not %s", points[i].GetAt().AsTime(), at)
		}
		require.InDelta(t, 0.5, points[0].GetPublishedPerSecond(), 0)
		require.Equal(t, uint64(5), points[0].GetMessages())
		require.Positive(t, points[0].GetBytes())
		require.InDelta(t, first.Sub(published).Seconds(), points[0].GetOldestAge().AsDuration().Seconds(), 0.05)
		require.InDelta(t, 0.4, points[1].GetDeliveredPerSecond(), 0)
		require.InDelta(t, 0.2, points[1].GetAcknowledgedPerSecond(), 0)
		require.Equal(t, uint64(3), points[2].GetMessages())
		require.NotNil(t, points[2].PublishedPerSecond)
		require.Zero(t, points[2].GetPublishedPerSecond()+points[2].GetDeliveredPerSecond())
	}
	_, err := n.queues.GetHistory(t.Context(), &pb.GetHistoryRequest{Queue: "none"})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND, reasonOf(err))
	for _, since := range []time.Duration{-time.Second, 0, 24*time.Hour + 1} {
		_, err = n.queues.GetHistory(t.Context(), &pb.GetHistoryRequest{Since: durationpb.New(since)})
		require.Equal(t, pb.ErrorReason_ERROR_REASON_INVALID, reasonOf(err))
	}
}

// After the active was killed, the new active has the history of the old active, except for at most the last one and
// a half intervals. The time without an active is a gap.
func TestHistorySurvivesFailover(t *testing.T) {
	simpair.Test(t, func(t *testing.T, w *simpair.World) {
		a, b := w.StartPair()
		_, err := a.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
		require.NoError(t, err)
		publish := func(n *simpair.Node) {
			_, err := n.Queues().Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: batch("1", "2", "3")})
			require.NoError(t, err)
		}
		same := func(want, got []*pb.HistoryPoint) {
			t.Helper()
			require.GreaterOrEqual(t, len(got), len(want))
			for i := range want {
				require.True(t, proto.Equal(want[i], got[i]), "%v, not %v", got[i], want[i])
			}
		}
		afterSample(time.Second)
		for range 12 {
			publish(a)
			afterSample(4 * time.Second)
		}
		before := historyOf(t, a.Queues(), "q", time.Hour)
		require.GreaterOrEqual(t, len(before), 12)
		require.InDelta(t, 0.3, before[len(before)-1].GetPublishedPerSecond(), 0)
		a.Kill() // before the standby has copied the last sample
		b.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		publish(b)
		resumed := afterSample(time.Second)

		after := historyOf(t, b.Queues(), "q", time.Hour)
		kept := before[:len(before)-1]
		same(kept, after)
		require.Len(t, after, len(kept)+1)
		last := after[len(kept)]
		require.True(t, resumed.Equal(last.GetAt().AsTime()))
		require.Positive(t, last.GetPublishedPerSecond())
		require.Equal(t, uint64(39), last.GetMessages())
		gap := last.GetAt().AsTime().Sub(kept[len(kept)-1].GetAt().AsTime())
		require.Greater(t, gap, history.Interval)
		require.LessOrEqual(t, gap, 3*history.Interval)

		a = a.Restart() // without history
		w.WaitInSync(b, a)
		afterSample(6 * time.Second)
		before = historyOf(t, b.Queues(), "q", time.Hour)
		day := historyOf(t, b.Queues(), "q", 24*time.Hour)
		require.NotEmpty(t, day)
		b.Kill()
		a.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		same(before, historyOf(t, a.Queues(), "q", time.Hour))
		same(day, historyOf(t, a.Queues(), "q", 24*time.Hour))
	})
}

// An active that restarts before the standby takes over copies its history from the standby.
func TestHistorySurvivesRestart(t *testing.T) {
	simpair.Test(t, func(t *testing.T, w *simpair.World) {
		a, b := w.StartPair()
		_, err := a.Admin().SetPaused(t.Context(), &pb.SetPausedRequest{Paused: true})
		require.NoError(t, err)
		for range 3 {
			afterSample(6 * time.Second)
		}
		before := historyOf(t, a.Queues(), "", time.Hour)
		a.Kill()
		a = a.Restart()
		a.WaitFor(pb.Role_ROLE_ACTIVE)
		require.Equal(t, pb.Role_ROLE_STANDBY, b.Role())
		afterSample(time.Second)
		after := historyOf(t, a.Queues(), "", time.Hour)
		require.GreaterOrEqual(t, len(after), len(before))
		require.True(t, proto.Equal(before[0], after[0]))
	})
}
