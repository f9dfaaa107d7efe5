// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func consumeCases() []testCase {
	return []testCase{
		{name: "credit limits deliveries", run: credit},
		{name: "unacknowledged messages are redelivered", run: redelivery},
		{name: "nack and nack after", run: nacks},
		{name: "reject dead-letters a message", run: rejects},
		{name: "acknowledgement deadline", run: deadline},
		{name: "filters", run: filters},
		{name: "priorities", run: priorities},
		{name: "time to live and delay", run: ttlAndDelay},
		{name: "reset of a subscription", run: resetSubscription},
		{name: "missing queue", run: missingQueue},
		{name: "paused queue", run: pausedQueue},
		{name: "messages of a schedule", run: scheduleMessages},
	}
}

// inFlight returns the in-flight count of the subscription "default" on the active.
func (r *run) inFlight(queue string) uint64 {
	r.t.Helper()
	active, _ := r.inSync(r.t)
	got, err := pb.NewQueueServiceClient(active.Conn()).GetQueue(r.t.Context(), &pb.GetQueueRequest{Name: queue})
	require.NoError(r.t, err)
	for _, s := range got.GetQueue().GetSubscriptions() {
		if s.GetName() == "default" {
			return s.GetInFlight()
		}
	}
	require.Fail(r.t, "no subscription")
	return 0
}

func credit(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	const prefetch, total = 4, 40
	for range total {
		r.stored(q, nil)
	}
	r.consume("k", q, request{"prefetch": prefetch})
	require.Eventually(t, func() bool { return r.inFlight(q) == prefetch }, bound, 10*time.Millisecond)
	const held = 10
	var deliveries []uint64
	for i := range held {
		d, m := r.receive("k")
		require.Equal(t, uint64(i+1), m.Sequence)
		deliveries = append(deliveries, d)
		require.LessOrEqual(t, r.inFlight(q), uint64(prefetch+i+1), "credit is replenished as messages are consumed")
	}
	for i := range total - held {
		r.answer("k", deliveries[0], "ack", nil)
		d, m := r.receive("k")
		require.Equal(t, uint64(held+i+1), m.Sequence)
		deliveries = append(deliveries[1:], d)
	}
	for _, d := range deliveries {
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	require.Zero(t, r.inFlight(q))
	r.verify()
}

func redelivery(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	for range 5 {
		r.stored(q, nil)
	}
	r.consume("k", q, nil)
	for i := range 5 {
		d, _ := r.receive("k")
		if i == 1 {
			r.answer("k", d, "ack", nil)
		}
	}
	r.flush("k")
	r.a.do("consumer_close", request{"consumer": "k"})
	r.consume("again", q, nil)
	seen := map[uint64]bool{}
	for range 4 {
		d, m := r.receive("again")
		require.False(t, seen[m.Sequence])
		seen[m.Sequence] = true
		require.Equal(t, 1, m.DeliveryCount)
		r.answer("again", d, "ack", nil)
	}
	require.False(t, seen[2], "an acknowledged message was redelivered")
	r.flush("again")
	r.requireIdle("again")
	r.verify()
}

func nacks(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	r.stored(q, nil)
	r.consume("k", q, nil)
	d, m := r.receive("k")
	require.Zero(t, m.DeliveryCount)
	r.answer("k", d, "nack", nil)
	d, m = r.receive("k")
	require.Equal(t, 1, m.DeliveryCount)
	start := time.Now()
	const delay = 400 * time.Millisecond
	r.answer("k", d, "nack", request{"delay_ms": delay.Milliseconds()})
	d, m = r.receive("k")
	require.Equal(t, 2, m.DeliveryCount)
	require.GreaterOrEqual(t, time.Since(start), delay)
	r.answer("k", d, "ack", nil)
	r.flush("k")
	r.requireIdle("k")
	r.verify()
}

// deadline: a message is not redelivered while its deadline is extended. After the deadline, it is redelivered, and a
// late ack of its first delivery has no effect.
func deadline(_ *testing.T, r *run) {
	r.open("c", nil)
	const timeout = time.Second
	for i := 0; ; i++ {
		q := r.queue(fmt.Sprintf("-%d", i), &pb.QueueConfig{AckTimeout: durationpb.New(timeout)})
		k := fmt.Sprintf("k%d", i)
		r.consume(k, q, nil)
		published := time.Now()
		r.stored(q, nil)
		late, first := r.receive(k)
		if r.extends(k, late, published, timeout) {
			r.expires(k, late, first)
			break
		}
	}
	r.verify()
}

// extends repeatedly extends the deadline of a message for twice the timeout, and requires that the message is not
// redelivered. It returns false if the machine is too slow for a result: the deadline may have passed before it was
// extended.
func (r *run) extends(consumer string, delivery uint64, since time.Time, timeout time.Duration) bool {
	r.t.Helper()
	for start := time.Now(); time.Since(start) < 2*timeout; {
		next := time.Now()
		got := r.a.call("answer", request{
			"consumer": consumer, "delivery": delivery, "how": "extend", "timeout_ms": bound.Milliseconds(),
		})
		again := r.a.do("receive", request{"consumer": consumer, "timeout_ms": 150})
		if time.Since(since) >= timeout {
			return false
		}
		require.Nil(r.t, got.Error)
		require.Nil(r.t, again.Message)
		since = next
	}
	return true
}

// expires waits until a message is redelivered after its deadline, and acknowledges its first delivery, which must
// have no effect. Then it acknowledges a later delivery before the deadline.
func (r *run) expires(consumer string, late uint64, first *message) {
	r.t.Helper()
	d, m := r.receive(consumer)
	require.Greater(r.t, m.DeliveryCount, first.DeliveryCount)
	r.answer(consumer, late, "ack", nil)
	r.answer(consumer, d, "nack", nil)
	for count := m.DeliveryCount; ; count = m.DeliveryCount {
		d, m = r.receive(consumer)
		require.Greater(r.t, m.DeliveryCount, count)
		r.answer(consumer, d, "ack", nil)
		got := r.a.call("flush", request{"consumer": consumer, "timeout_ms": bound.Milliseconds()})
		if got.Error == nil {
			break
		}
		// On a slow machine, the deadline may pass before the ack.
		require.Equal(r.t, "ACK_DEADLINE_EXPIRED", got.Error.Reason)
	}
	r.requireIdle(consumer)
}

func rejects(t *testing.T, r *run) {
	r.open("c", nil)
	dead := r.queue("-dead", nil)
	q := r.queue("", &pb.QueueConfig{DeadLetter: dead, MaxDeliveries: 2})
	rejected := r.body()
	r.stored(q, nil, request{"body": rejected})
	r.consume("k", q, nil)
	d, _ := r.receive("k")
	r.answer("k", d, "reject", nil)
	r.flush("k")
	r.stored(q, nil)
	for range 2 { // nack the message up to the delivery limit
		d, _ = r.receive("k")
		r.answer("k", d, "nack", nil)
	}
	r.flush("k")
	r.requireIdle("k")
	r.consume("d", dead, nil)
	for range 2 {
		d, m := r.receive("d")
		require.Equal(t, q, m.DeadLetterOf)
		r.answer("d", d, "ack", nil)
	}
	r.flush("d")
	r.queues = []string{q} // the dead letters were published to q
	r.verify()
}

func filters(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	active, _ := r.inSync(t)
	_, err := pb.NewQueueServiceClient(active.Conn()).CreateSubscription(t.Context(), &pb.CreateSubscriptionRequest{
		Queue: q, Name: "eu", Filter: `properties.region == "eu"`,
	})
	require.NoError(t, err)
	for i := range 6 {
		region := []string{"eu", "us", "asia"}[i%3]
		r.stored(q, nil, request{"properties": map[string]string{"region": region}})
	}
	r.consume("k", q, request{"subscription": "eu"})
	for _, want := range []uint64{1, 4} {
		d, m := r.receive("k")
		require.Equal(t, want, m.Sequence)
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	r.requireIdle("k")
	r.consume("us", q, request{"filter": `properties.region == "us"`})
	for _, want := range []uint64{2, 5} {
		d, m := r.receive("us")
		require.Equal(t, want, m.Sequence)
		r.answer("us", d, "ack", nil)
	}
	r.flush("us")
	r.requireIdle("us")
	got := r.a.call("consume", request{"client": "c", "consumer": "wrong", "queue": q, "filter": "no expression ("})
	require.NotNil(t, got.Error)
	require.Equal(t, "INVALID_FILTER", got.Error.Reason)
	r.verify()
}

func priorities(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", &pb.QueueConfig{Priorities: true})
	for _, p := range []int{1, 9, 4, 9, 0} {
		r.stored(q, nil, request{"priority": p})
	}
	r.consume("k", q, request{"prefetch": 1})
	for _, want := range []uint64{2, 4, 3, 1, 5} {
		d, m := r.receive("k")
		require.Equal(t, want, m.Sequence)
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	r.verify()
}

func ttlAndDelay(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	const ttl, delay = 50 * time.Millisecond, 500 * time.Millisecond
	r.stored(q, nil, request{"ttl_ms": ttl.Milliseconds()})
	accepted := time.Now() // the time to live started at this time, or slightly earlier
	r.stored(q, nil, request{"delay_ms": time.Hour.Milliseconds()})
	r.stored(q, nil, request{"ttl_ms": time.Hour.Milliseconds()})
	require.Eventually(t, func() bool { return time.Since(accepted) > 2*ttl }, bound, time.Millisecond, "no expiry")
	r.consume("k", q, nil)
	d, m := r.receive("k")
	require.Equal(t, uint64(3), m.Sequence)
	r.answer("k", d, "ack", nil)
	start := time.Now()
	r.stored(q, nil, request{"delay_ms": delay.Milliseconds()})
	d, m = r.receive("k")
	require.Equal(t, uint64(4), m.Sequence)
	require.GreaterOrEqual(t, time.Since(start), delay)
	r.answer("k", d, "ack", nil)
	r.flush("k")
	r.requireIdle("k")
}

// resetSubscription: after a subscription is reset to an earlier position, all messages from there are redelivered,
// including acknowledged messages.
func resetSubscription(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	for range 3 {
		r.stored(q, nil)
	}
	r.consume("k", q, nil)
	d, _ := r.receive("k")
	r.answer("k", d, "ack", nil)
	r.flush("k")
	_, m := r.receive("k")
	require.Equal(t, uint64(2), m.Sequence)
	active, _ := r.inSync(t)
	_, err := pb.NewQueueServiceClient(active.Conn()).SeekSubscription(t.Context(), &pb.SeekSubscriptionRequest{
		Queue: q, Subscription: "default", To: &pb.SeekSubscriptionRequest_Time{Time: timestamppb.New(time.Unix(1, 0))},
	})
	require.NoError(t, err)
	// The first new message proves that the client has reattached. Until then, the client may deliver messages that it
	// received before.
	r.stored(q, nil)
	seen := map[uint64]int{}
	for seen[1] == 0 || seen[2] == 0 || seen[3] == 0 || seen[4] == 0 {
		d, m := r.receive("k")
		seen[m.Sequence]++
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	r.requireIdle("k")
	r.verify()
}

// pausedQueue: the client does not retry a publish that a paused queue rejects.
func pausedQueue(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	r.consume("k", q, nil)
	active, _ := r.inSync(t)
	queues := pb.NewQueueServiceClient(active.Conn())
	_, err := queues.PauseQueue(t.Context(), &pb.PauseQueueRequest{Queue: q})
	require.NoError(t, err)
	got := r.a.call("publish", request{"client": "c", "queue": q, "messages": []request{{"body": "1"}}})
	require.NotNil(t, got.Error)
	require.Equal(t, "not-done", got.Error.Outcome)
	require.Equal(t, "QUEUE_PAUSED", got.Error.Reason)

	_, err = queues.ResumeQueue(t.Context(), &pb.ResumeQueueRequest{Queue: q, Publish: true})
	require.NoError(t, err)
	r.stored(q, nil)
	r.requireIdle("k")
	_, err = queues.ResumeQueue(t.Context(), &pb.ResumeQueueRequest{Queue: q})
	require.NoError(t, err)
	d, _ := r.receive("k")
	r.answer("k", d, "ack", nil)
	r.flush("k")
	r.verify()
}

// scheduleMessages: each occurrence is one message, and its ID contains the time.
func scheduleMessages(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	r.consume("k", q, nil)
	active, _ := r.inSync(t)
	schedules := pb.NewScheduleServiceClient(active.Conn())
	_, err := schedules.PutSchedule(t.Context(), &pb.PutScheduleRequest{Schedule: &pb.Schedule{
		Name: "conformance", Queue: q, Every: durationpb.New(time.Second),
		Missed:  pb.MissedOccurrences_MISSED_OCCURRENCES_ALL,
		Message: &pb.Message{Body: []byte("tick"), Subject: "scheduled", Properties: map[string]string{"region": "eu"}},
	}})
	require.NoError(t, err)
	var last time.Time
	for range 3 {
		d, m := r.receive("k")
		require.Equal(t, "tick", m.Body)
		require.Equal(t, "scheduled", m.Subject)
		require.Equal(t, map[string]string{"region": "eu"}, m.Properties)
		name, text, _ := strings.Cut(m.MessageID, "@")
		require.Equal(t, "conformance", name)
		at, err := time.Parse(time.RFC3339Nano, text)
		require.NoError(t, err)
		if !last.IsZero() {
			require.Equal(t, time.Second, at.Sub(last))
		}
		last = at
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	_, err = schedules.DeleteSchedule(t.Context(), &pb.DeleteScheduleRequest{Name: "conformance"})
	require.NoError(t, err)
}

func missingQueue(t *testing.T, r *run) {
	r.open("c", nil)
	for op, q := range map[string]request{
		"consume": {"client": "c", "consumer": "k", "queue": "not-there"},
		"publish": {"client": "c", "queue": "not-there", "messages": []request{{"body": "1"}}},
		"browse":  {"client": "c", "queue": "not-there"},
	} {
		got := r.a.call(op, q)
		require.NotNil(t, got.Error, op)
		require.Equal(t, "not-done", got.Error.Outcome, op)
		require.Equal(t, "QUEUE_NOT_FOUND", got.Error.Reason, op)
	}
	q := r.queue("", nil)
	got := r.a.call("consume", request{"client": "c", "consumer": "k", "queue": q, "subscription": "not-there"})
	require.NotNil(t, got.Error)
	require.Equal(t, "SUBSCRIPTION_NOT_FOUND", got.Error.Reason)
}
