// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

func (n *testNode) schedules() pb.ScheduleServiceClient { return pb.NewScheduleServiceClient(n.conn) }

func (n *testNode) putSchedule(s *pb.Schedule) *pb.Schedule {
	n.t.Helper()
	resp, err := n.schedules().PutSchedule(n.t.Context(), &pb.PutScheduleRequest{Schedule: s})
	require.NoError(n.t, err)
	return resp.GetSchedule()
}

func (n *testNode) schedule(name string) *pb.Schedule {
	n.t.Helper()
	resp, err := n.schedules().GetSchedule(n.t.Context(), &pb.GetScheduleRequest{Name: name})
	require.NoError(n.t, err)
	return resp.GetSchedule()
}

// Every occurrence is published exactly once, even if the active is killed every 30 seconds (INV-24). The
// failovers are so short that no occurrence is missed.
func TestScheduleAcrossFailovers(t *testing.T) {
	simpair.Test(t, func(t *testing.T, w *simpair.World) {
		const failovers = 40
		active, standby := w.StartPair()
		ctx := t.Context()
		_, err := active.Queues().CreateQueue(ctx, &pb.CreateQueueRequest{Name: "q"})
		require.NoError(t, err)
		schedules := pb.NewScheduleServiceClient(active.Conn())
		resp, err := schedules.PutSchedule(ctx, &pb.PutScheduleRequest{Schedule: &pb.Schedule{
			Name: "tick", Queue: "q", Every: durationpb.New(time.Second), Missed: pb.MissedOccurrences_MISSED_OCCURRENCES_SKIP,
			Message: &pb.Message{Body: []byte("tick"), Properties: map[string]string{"k": "v"}},
		}})
		require.NoError(t, err)
		first := resp.GetSchedule().GetNextAt().AsTime()
		for i := range failovers {
			<-time.After(time.Until(first.Add(time.Duration(i+1)*30*time.Second - time.Duration(i)*37*time.Millisecond)))
			active.Kill()
			standby.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
			active, standby = standby, active.Restart()
			w.WaitInSync(active, standby)
		}
		want := failovers * 30
		<-time.After(time.Until(first.Add(time.Duration(want-1)*time.Second + 500*time.Millisecond)))
		stream, err := active.Queues().Browse(ctx, &pb.BrowseRequest{Queue: "q"})
		require.NoError(t, err)
		n := 0
		for {
			resp, err := stream.Recv()
			if err == io.EOF { //nolint:errorlint // Recv documents it
				break
			}
			require.NoError(t, err)
			for _, m := range resp.GetMessages() {
				due := first.Add(time.Duration(n) * time.Second)
				require.Equal(t, "tick@"+due.Format(time.RFC3339Nano), m.GetMessage().GetMessageId(), "message %d", n)
				n++
			}
		}
		require.Equal(t, want, n)
	})
}

// A schedule and its history survive a failover. Occurrences that the queue refuses are recorded and retried. A
// schedule can be run, paused and deleted.
func TestSchedules(t *testing.T) { simulated(t, testSchedules) }

func testSchedules(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	ctx := t.Context()
	put := active.putSchedule(&pb.Schedule{
		Name: "nightly", Queue: "jobs", Cron: "*/5 * * * *", TimeZone: "Europe/Berlin",
		Message: &pb.Message{Body: []byte(`{"job":1}`), ContentType: "application/json"},
	})
	next := put.GetNextAt().AsTime()
	require.True(t, next.After(time.Now()))
	again := active.putSchedule(put)
	require.Equal(t, put.GetStartedAt().AsTime(), again.GetStartedAt().AsTime(), "a request that changes nothing")

	// The queue does not exist, so the occurrence fails. It is published when the queue exists.
	<-time.After(time.Until(next.Add(90 * time.Second)))
	s := active.schedule("nightly")
	require.Len(t, s.GetHistory(), 1)
	require.Equal(t, pb.ScheduleOutcome_SCHEDULE_OUTCOME_FAILED, s.GetHistory()[0].GetOutcome())
	require.NotEmpty(t, s.GetHistory()[0].GetError())
	require.NotNil(t, active.condition(conditions.ScheduleFailed, ""))
	active.createQueue("jobs")
	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	<-time.After(2 * time.Minute)
	s = standby.schedule("nightly")
	require.Len(t, s.GetHistory(), 1)
	run := s.GetHistory()[0]
	require.Equal(t, pb.ScheduleOutcome_SCHEDULE_OUTCOME_PUBLISHED, run.GetOutcome())
	require.Equal(t, next, run.GetDueAt().AsTime())
	require.Equal(t, uint64(1), run.GetSequence())
	require.Equal(t, next, s.GetLastAt().AsTime())
	require.Nil(t, standby.condition(conditions.ScheduleFailed, ""))
	m := standby.browse("jobs")[0].GetMessage()
	require.Equal(t, "nightly@"+next.Format(time.RFC3339), m.GetMessageId())
	require.Equal(t, "application/json", m.GetContentType())

	ran, err := standby.schedules().RunSchedule(ctx, &pb.RunScheduleRequest{
		Name: "nightly", Producer: &pb.Producer{Id: "p", Epoch: 1, Sequence: 1},
	})
	require.NoError(t, err)
	retried, err := standby.schedules().RunSchedule(ctx, &pb.RunScheduleRequest{
		Name: "nightly", Producer: &pb.Producer{Id: "p", Epoch: 1, Sequence: 1, Retry: true},
	})
	require.NoError(t, err)
	require.Equal(t, ran.GetSequence(), retried.GetSequence())
	require.Equal(t, "jobs", retried.GetQueue())
	require.Equal(t, uint64(2), ran.GetSequence())
	after := standby.schedule("nightly")
	require.Equal(t, s.GetNextAt().AsTime(), after.GetNextAt().AsTime(), "a run does not change the plan")
	require.True(t, after.GetHistory()[0].GetManual())
	require.Equal(t, uint64(2), after.GetHistory()[0].GetSequence())

	setPaused := func(paused bool) *pb.Schedule {
		resp, err := standby.schedules().SetSchedulePaused(ctx, &pb.SetSchedulePausedRequest{Name: "nightly", Paused: paused})
		require.NoError(t, err)
		return resp.GetSchedule()
	}
	require.Nil(t, setPaused(true).GetNextAt())
	<-time.After(11 * time.Minute)
	require.Len(t, standby.browse("jobs"), 2, "a paused schedule publishes nothing")
	require.True(t, setPaused(false).GetNextAt().AsTime().After(time.Now()))
	<-time.After(5 * time.Minute)
	require.Len(t, standby.browse("jobs"), 3)

	listed, err := standby.schedules().ListSchedules(ctx, &pb.ListSchedulesRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetSchedules(), 1)
	require.Len(t, listed.GetSchedules()[0].GetHistory(), 1)
	_, err = standby.schedules().DeleteSchedule(ctx, &pb.DeleteScheduleRequest{Name: "nightly"})
	require.NoError(t, err)
	_, err = standby.schedules().DeleteSchedule(ctx, &pb.DeleteScheduleRequest{Name: "nightly"})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SCHEDULE_NOT_FOUND, reasonOf(err))
	<-time.After(6 * time.Minute)
	require.Len(t, standby.browse("jobs"), 3)
}

// After a long outage, missed occurrences are published or skipped according to the policy of the schedule.
func TestMissedOccurrences(t *testing.T) { simulated(t, testMissedOccurrences) }

func testMissedOccurrences(t *testing.T) {
	n := startAlone(t, nil)
	rules := []pb.MissedOccurrences{
		pb.MissedOccurrences_MISSED_OCCURRENCES_SKIP, pb.MissedOccurrences_MISSED_OCCURRENCES_ONCE,
		pb.MissedOccurrences_MISSED_OCCURRENCES_ALL,
	}
	for _, rule := range rules {
		n.createQueue(rule.String())
		n.putSchedule(&pb.Schedule{
			Name: rule.String(), Queue: rule.String(), Every: durationpb.New(10 * time.Minute), Missed: rule,
		})
	}
	<-time.After(15 * time.Minute)
	n.stop()
	<-time.After(40 * time.Minute) // 20, 30, 40 and 50 minutes after the start are missed
	n = start(t, n.config)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	<-time.After(time.Minute)
	for i, published := range []int{1, 2, 5} {
		rule := rules[i]
		require.Len(t, n.browse(rule.String()), published, rule)
		s := n.schedule(rule.String())
		skipped := uint64(0)
		for _, run := range s.GetHistory() {
			skipped += run.GetSkipped()
		}
		require.Equal(t, uint64(5-published), skipped, rule)
		require.Equal(t, time.Hour, s.GetNextAt().AsTime().Sub(s.GetStartedAt().AsTime()), rule)
	}
	// While the queue is full, each occurrence is tried and recorded. The size of the history is limited.
	_, err := n.queues.AlterQueue(t.Context(), &pb.AlterQueueRequest{
		Name: rules[2].String(), Config: &pb.QueueConfig{MaxMessages: 5},
	})
	require.NoError(t, err)
	n.putSchedule(&pb.Schedule{Name: rules[2].String(), Queue: rules[2].String(), Every: durationpb.New(2 * time.Second)})
	<-time.After(time.Minute)
	s := n.schedule(rules[2].String())
	require.Len(t, s.GetHistory(), 20)
	for _, run := range s.GetHistory() {
		require.Equal(t, pb.ScheduleOutcome_SCHEDULE_OUTCOME_FAILED, run.GetOutcome())
	}
	require.Len(t, n.browse(rules[2].String()), 5)
}

// With the rule skip, a refused occurrence is retried for one minute. It remains failed, with its reason.
func TestRefusedOccurrence(t *testing.T) { simulated(t, testRefusedOccurrence) }

func testRefusedOccurrence(t *testing.T) {
	n := startAlone(t, nil)
	put := n.putSchedule(&pb.Schedule{
		Name: "s", Queue: "q", Every: durationpb.New(10 * time.Minute),
		Missed: pb.MissedOccurrences_MISSED_OCCURRENCES_SKIP,
	})
	due := put.GetNextAt().AsTime()
	<-time.After(time.Until(due.Add(5 * time.Minute)))
	n.createQueue("q")
	<-time.After(4 * time.Minute)
	s := n.schedule("s")
	require.Len(t, s.GetHistory(), 1)
	run := s.GetHistory()[0]
	require.Equal(t, pb.ScheduleOutcome_SCHEDULE_OUTCOME_FAILED, run.GetOutcome())
	require.NotEmpty(t, run.GetError())
	require.Equal(t, due, run.GetDueAt().AsTime())
	require.Equal(t, due, s.GetLastAt().AsTime())
	require.NotNil(t, n.condition(conditions.ScheduleFailed, ""))
	require.Empty(t, n.browse("q"))
	<-time.After(2 * time.Minute)
	require.Len(t, n.browse("q"), 1)
	require.Nil(t, n.condition(conditions.ScheduleFailed, ""))
}

// A failed occurrence is reported until a later occurrence is published, even if manual runs fill the history and a
// later occurrence is skipped.
func TestFailedOccurrenceStaysReported(t *testing.T) { simulated(t, testFailedOccurrenceStaysReported) }

func testFailedOccurrenceStaysReported(t *testing.T) {
	n := startAlone(t, nil)
	put := n.putSchedule(&pb.Schedule{
		Name: "s", Queue: "q", Every: durationpb.New(10 * time.Minute),
		Missed: pb.MissedOccurrences_MISSED_OCCURRENCES_SKIP,
	})
	due := put.GetNextAt().AsTime()
	<-time.After(time.Until(due.Add(5 * time.Minute))) // the retries have ended
	n.createQueue("q")
	const runs = 25
	for range runs {
		_, err := n.schedules().RunSchedule(t.Context(), &pb.RunScheduleRequest{Name: "s"})
		require.NoError(t, err)
	}
	<-time.After(time.Minute)
	history := n.schedule("s").GetHistory()
	require.Len(t, history, 20)
	require.Equal(t, pb.ScheduleOutcome_SCHEDULE_OUTCOME_FAILED, history[19].GetOutcome())
	require.Equal(t, due, history[19].GetDueAt().AsTime())
	require.True(t, history[18].GetManual())
	require.NotNil(t, n.condition(conditions.ScheduleFailed, ""))

	n.stop()
	<-time.After(time.Until(due.Add(15 * time.Minute)))
	n = start(t, n.config)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	<-time.After(time.Minute)
	require.Equal(t, pb.ScheduleOutcome_SCHEDULE_OUTCOME_SKIPPED, n.schedule("s").GetHistory()[0].GetOutcome())
	require.NotNil(t, n.condition(conditions.ScheduleFailed, ""))
	<-time.After(time.Until(due.Add(21 * time.Minute)))
	require.Len(t, n.browse("q"), runs+1)
	require.Nil(t, n.condition(conditions.ScheduleFailed, ""))
	history = n.schedule("s").GetHistory()
	require.Len(t, history, 20)
	require.Equal(t, pb.ScheduleOutcome_SCHEDULE_OUTCOME_PUBLISHED, history[0].GetOutcome())
}

// An invalid schedule is rejected with a reason. The number of schedules is limited.
func TestInvalidSchedules(t *testing.T) { simulated(t, testInvalidSchedules) }

func testInvalidSchedules(t *testing.T) {
	n := startAlone(t, nil)
	valid := func(change func(*pb.Schedule)) *pb.Schedule {
		s := &pb.Schedule{Name: "s", Queue: "q", Cron: "@daily"}
		change(s)
		return s
	}
	for name, c := range map[string]struct {
		s      *pb.Schedule
		reason pb.ErrorReason
	}{
		"no schedule": {nil, pb.ErrorReason_ERROR_REASON_INVALID_NAME},
		"name":        {valid(func(s *pb.Schedule) { s.Name = "a b" }), pb.ErrorReason_ERROR_REASON_INVALID_NAME},
		"queue":       {valid(func(s *pb.Schedule) { s.Queue = "" }), pb.ErrorReason_ERROR_REASON_INVALID_NAME},
		"two plans": {
			valid(func(s *pb.Schedule) { s.Every = durationpb.New(time.Hour) }), pb.ErrorReason_ERROR_REASON_INVALID,
		},
		"no plan":    {valid(func(s *pb.Schedule) { s.Cron = "" }), pb.ErrorReason_ERROR_REASON_INVALID},
		"expression": {valid(func(s *pb.Schedule) { s.Cron = "61 * * * *" }), pb.ErrorReason_ERROR_REASON_INVALID},
		"zone":       {valid(func(s *pb.Schedule) { s.TimeZone = "Europe/Nowhere" }), pb.ErrorReason_ERROR_REASON_INVALID},
		"id": {
			valid(func(s *pb.Schedule) { s.Message = &pb.Message{MessageId: "x"} }), pb.ErrorReason_ERROR_REASON_INVALID,
		},
		"priority": {
			valid(func(s *pb.Schedule) { s.Message = &pb.Message{Priority: new(uint32(10))} }),
			pb.ErrorReason_ERROR_REASON_INVALID,
		},
		"size": {
			valid(func(s *pb.Schedule) { s.Message = &pb.Message{Body: make([]byte, 32<<10)} }),
			pb.ErrorReason_ERROR_REASON_TOO_LARGE,
		},
	} {
		_, err := n.schedules().PutSchedule(t.Context(), &pb.PutScheduleRequest{Schedule: c.s})
		require.Error(t, err, name)
		require.Equal(t, c.reason, reasonOf(err), "%s: %v", name, err)
	}
	for i := range 500 {
		n.putSchedule(valid(func(s *pb.Schedule) { s.Name = fmt.Sprintf("s%d", i) }))
	}
	_, err := n.schedules().PutSchedule(t.Context(), &pb.PutScheduleRequest{Schedule: valid(func(*pb.Schedule) {})})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_TOO_MANY_SCHEDULES, reasonOf(err))
	n.putSchedule(valid(func(s *pb.Schedule) { s.Name, s.Queue = "s0", "other" }))
}

// A delayed message can be canceled by its sequence, even after a failover.
func TestCancelDelayedMessage(t *testing.T) { simulated(t, testCancelDelayedMessage) }

func testCancelDelayedMessage(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("q")
	for _, body := range []string{"canceled", "delivered"} {
		_, err := active.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: []*pb.Message{
			{Body: []byte(body), Delay: durationpb.New(10 * time.Second)},
		}})
		require.NoError(t, err)
	}
	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	removed, err := standby.queues.RemoveMessages(t.Context(), &pb.RemoveMessagesRequest{
		Queue: "q", Sequences: []*pb.SequenceRange{{First: 1, Last: 1}},
	})
	require.NoError(t, err)
	require.Equal(t, uint64(1), removed.GetRemoved())
	<-time.After(11 * time.Second)
	c := standby.attach(&pb.Attach{Queue: "q", Subscription: "default"}, 5)
	require.Equal(t, "delivered", string(c.take(1)[0].GetMessage().GetBody()))
	require.Empty(t, standby.browse("q")[1:])
}

// The creation of a schedule requires the manage and publish rights on its queue. A schedule is visible to
// callers that have any right on its queue.
func TestScheduleRights(t *testing.T) { simulated(t, testScheduleRights) }

func testScheduleRights(t *testing.T) {
	n := startNamedAlone(t, nil)
	n.grant("alice", "a/*", mayManage, mayPublish)
	n.grant("bob", "a/*", mayManage)
	n.grant("bob", "b/*", mayManage, mayPublish)
	put := func(principal, queue string) error {
		_, err := n.schedules().PutSchedule(as(t.Context(), principal), &pb.PutScheduleRequest{Schedule: &pb.Schedule{
			Name: "s", Queue: queue, Cron: "@daily",
		}})
		return err
	}
	run := func(principal string) error {
		_, err := n.schedules().RunSchedule(as(t.Context(), principal), &pb.RunScheduleRequest{Name: "s"})
		return err
	}
	listed := func(principal string) int {
		resp, err := n.schedules().ListSchedules(as(t.Context(), principal), &pb.ListSchedulesRequest{})
		require.NoError(t, err)
		return len(resp.GetSchedules())
	}
	require.NoError(t, n.createAs("root", "a/q"))
	denied(t, put("bob", "a/q"), "publish")
	denied(t, put("alice", "b/q"), "manage")
	require.NoError(t, put("alice", "a/q"))
	require.NoError(t, run("alice"))
	denied(t, run("bob"), "publish")
	require.Equal(t, []int{1, 1, 1}, []int{listed("alice"), listed("bob"), listed("root")})

	require.NoError(t, put("root", "b/q"))
	require.Equal(t, []int{0, 1}, []int{listed("alice"), listed("bob")})
	denied(t, put("alice", "a/q"), "manage")
	denied(t, run("alice"), "manage")
	_, err := n.schedules().GetSchedule(as(t.Context(), "alice"), &pb.GetScheduleRequest{Name: "s"})
	denied(t, err)
	_, err = n.schedules().DeleteSchedule(as(t.Context(), "alice"), &pb.DeleteScheduleRequest{Name: "s"})
	denied(t, err, "manage")
	_, err = n.schedules().DeleteSchedule(as(t.Context(), "bob"), &pb.DeleteScheduleRequest{Name: "s"})
	require.NoError(t, err)
}

// A snapshot contains the schedules. A node that joined with an empty store continues them.
func TestScheduleInSnapshot(t *testing.T) { simulated(t, testScheduleInSnapshot) }

func testScheduleInSnapshot(t *testing.T) {
	etcd := startEtcd(t)
	active := start(t, settingsOfPair(t, "a", etcd))
	active.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	active.createQueue("q")
	active.putSchedule(&pb.Schedule{Name: "s", Queue: "q", Every: durationpb.New(time.Second)})
	<-time.After(3500 * time.Millisecond)
	before := active.schedule("s")
	standby := start(t, settingsOfPair(t, "b", etcd))
	standby.waitFor(pb.Role_ROLE_STANDBY)
	active.waitFor(pb.Role_ROLE_ACTIVE)
	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	<-time.After(2 * time.Second)
	after := standby.schedule("s")
	require.True(t, proto.Equal(before.GetStartedAt(), after.GetStartedAt()))
	messages := standby.browse("q")
	require.Len(t, messages, len(after.GetHistory()))
	for i, m := range messages {
		run := after.GetHistory()[len(messages)-1-i]
		require.Equal(t, m.GetSequence(), run.GetSequence())
		require.Equal(t, "s@"+run.GetDueAt().AsTime().Format(time.RFC3339Nano), m.GetMessage().GetMessageId())
	}
}
