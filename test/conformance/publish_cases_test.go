// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package conformance

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// many is the number of messages that a case pipelines.
const many = 300

func publishCases() []testCase {
	return []testCase{
		{name: "queues are created, described and deleted", run: queuesAreManaged},
		{name: "publish and acknowledge", run: publishAndAck},
		{name: "a pipeline preserves the order", run: pipelineOrder},
		{name: "a batch is atomic", run: batches},
		{name: "fields are preserved", run: fields},
		{name: "messages larger than 4 MiB", run: large},
		{name: "transaction over two queues", run: transaction},
		{name: "a rejected transaction has no effect", run: rejectedTransaction},
		{name: "a full queue rejects publishes", run: fullQueue},
		{name: "a policy limits a queue", run: limitedByPolicy},
		{name: "a producer is fenced", run: fenced},
		{name: "a reused sequence is rejected", run: reusedSequence},
		{name: "a message ID is stored once", run: storesOnce},
		{name: "browse", run: browses},
	}
}

func queuesAreManaged(t *testing.T, r *run) {
	r.open("c", nil)
	q := request{"client": "c", "queue": "managed/by.the-client", "subscriptions": []string{"default", "other"}}
	require.True(t, r.a.do("queue_create", q).Created)
	got := r.a.call("queue_create", q)
	require.NotNil(t, got.Error, "the queue already exists")
	require.Equal(t, "not-done", got.Error.Outcome)
	require.Equal(t, "QUEUE_EXISTS", got.Error.Reason)
	q["if_not_exists"] = true
	require.False(t, r.a.do("queue_create", q).Created)
	r.a.do("publish", request{"client": "c", "queue": "managed/by.the-client", "messages": []request{{"body": "1"}}})
	shown := r.a.do("queue_get", q)
	require.Equal(t, uint64(1), shown.Stored)
	require.Equal(t, uint64(2), shown.NextSequence)
	require.Equal(t, uint64(1), r.a.do("queue_delete", q).Stored)
	got = r.a.call("queue_get", q)
	require.NotNil(t, got.Error)
	require.Equal(t, "QUEUE_NOT_FOUND", got.Error.Reason)
	got = r.a.call("publish", request{
		"client": "c", "queue": "managed/by.the-client", "messages": []request{{"body": "2"}},
	})
	require.NotNil(t, got.Error, "the queue is deleted")
	require.Equal(t, "not-done", got.Error.Outcome)
	require.Equal(t, "QUEUE_NOT_FOUND", got.Error.Reason)
}

func publishAndAck(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	require.Equal(t, uint64(1), r.stored(q, nil).Sequence)
	require.Equal(t, uint64(2), r.stored(q, nil).Sequence)
	r.consume("k", q, nil)
	for want := range uint64(2) {
		d, m := r.receive("k")
		require.Equal(t, want+1, m.Sequence)
		require.Zero(t, m.DeliveryCount)
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	r.requireIdle("k")
	r.a.do("consumer_close", request{"consumer": "k"})
	r.consume("again", q, nil)
	r.requireIdle("again")
	r.verify()
}

func pipelineOrder(_ *testing.T, r *run) {
	r.open("c", nil)
	q, other := r.queue("", nil), r.queue("-other", nil)
	var all []publication
	for i := range many {
		to := q
		if i%7 == 0 {
			to = other
		}
		all = append(all, r.publish(to, request{"producer": "p"}))
	}
	for _, p := range all {
		r.a.success("publish", r.recorded(p))
	}
	r.verify()
}

func batches(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	require.Equal(t, uint64(1), r.stored(q, nil, request{}, request{}, request{}).Sequence)
	require.Equal(t, uint64(4), r.stored(q, nil).Sequence)
	got := r.recorded(r.publish(q, nil, request{}, request{"properties": map[string]string{"": "a key without a name"}}))
	require.NotNil(t, got.Error, "a property without a key")
	require.Equal(t, "not-done", got.Error.Outcome)
	r.verify()
}

func fields(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	r.stored(q, nil, request{
		"properties": map[string]string{"region": "eu", "ключ": "välue"}, "correlation_id": "basket 17",
		"reply_to": "answers", "subject": "order.created", "priority": 7,
	})
	r.consume("k", q, nil)
	_, m := r.receive("k")
	require.Equal(t, map[string]string{"region": "eu", "ключ": "välue"}, m.Properties)
	require.Equal(t, "basket 17", m.CorrelationID)
	require.Equal(t, "answers", m.ReplyTo)
	require.Equal(t, "order.created", m.Subject)
	require.NotNil(t, m.Priority)
	require.Equal(t, 7, *m.Priority)
	r.verify()
}

// large: a client receives messages larger than gRPC's default limit of 4 MiB.
func large(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	const pad = 5 << 20
	b := r.body()
	sum := sha256.Sum256([]byte(b + strings.Repeat("x", pad)))
	r.stored(q, nil, request{"body": b, "pad": pad})
	r.stored(q, nil)
	r.stored(q, nil, request{"pad": pad}, request{"pad": pad})
	r.consume("k", q, nil)
	d, m := r.receive("k")
	require.Equal(t, len(b)+pad, m.Size)
	require.Equal(t, hex.EncodeToString(sum[:]), m.SHA256)
	r.answer("k", d, "ack", nil)
	for range 3 {
		d, _ := r.receive("k")
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	seen := r.a.do("browse", request{"client": "c", "queue": q, "limit": 1}).Messages
	require.Len(t, seen, 1)
	require.Equal(t, hex.EncodeToString(sum[:]), seen[0].SHA256)
	r.verify()
}

// transact executes a transaction that publishes one message, and acknowledges the deliveries in more, if any.
func (r *run) transact(queue string, more request) (publication, answer) {
	r.t.Helper()
	p := publication{bodies: []string{r.body()}}
	r.o.expect(queue, "", p.bodies...)
	q := request{
		"client":  "c",
		"publish": []request{{"queue": queue, "messages": []request{{"body": p.bodies[0]}}}},
	}
	for k, v := range more {
		q[k] = v
	}
	p.waiting = r.a.begin("transact", q)
	got := r.a.await(p.waiting)
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	m := r.o.messages[p.bodies[0]]
	switch {
	case got.Error == nil:
		m.recorded, m.sequence = success, r.nextOf(queue)
	case got.Error.Outcome == "unknown":
		m.recorded = unknown
	default:
		m.recorded = notDone
	}
	return p, got
}

// nextOf returns the sequence of the next message that is published to a queue. No other publisher uses the queue.
func (r *run) nextOf(queue string) (next uint64) {
	for _, m := range r.o.messages {
		if m.queue == queue && m.recorded == success {
			next = max(next, m.sequence)
		}
	}
	return next + 1
}

func transaction(t *testing.T, r *run) {
	r.open("c", nil)
	in, out := r.queue("-in", nil), r.queue("-out", nil)
	r.stored(in, nil, request{}, request{})
	r.consume("k", in, nil)
	d, _ := r.receive("k")
	_, got := r.transact(out, request{"ack": []request{{"consumer": "k", "delivery": d}}})
	require.Nil(t, got.Error)
	d, _ = r.receive("k")
	_, got = r.transact(out, request{"take": []request{{"consumer": "k", "delivery": d}}})
	require.Nil(t, got.Error)
	r.a.do("consumer_close", request{"consumer": "k"})
	r.consume("again", in, nil)
	r.requireIdle("again")
	r.verify()
}

func rejectedTransaction(t *testing.T, r *run) {
	r.open("c", nil)
	in, out := r.queue("-in", nil), r.queue("-out", nil)
	r.stored(in, nil)
	r.consume("k", in, nil)
	d, _ := r.receive("k")
	b := r.body()
	r.o.expect(out, "", b)
	got := r.a.call("transact", request{
		"client": "c", "ack": []request{{"consumer": "k", "delivery": d}},
		"publish": []request{
			{"queue": out, "messages": []request{{"body": b}}},
			{"queue": "there-is-no-such-queue", "messages": []request{{"body": "x"}}},
		},
	})
	require.NotNil(t, got.Error)
	require.Equal(t, "QUEUE_NOT_FOUND", got.Error.Reason)
	r.o.recorded(t, r.a, got, b)
	r.answer("k", d, "nack", nil)
	d, m := r.receive("k")
	require.Equal(t, 1, m.DeliveryCount, "unacknowledged messages are redelivered")
	r.answer("k", d, "ack", nil)
	r.flush("k")
	_, got = r.transact(out, request{"take": []request{{"consumer": "k", "delivery": d}}})
	require.NotNil(t, got.Error, "the message was acknowledged before")
	require.Equal(t, "not-done", got.Error.Outcome)
	require.Equal(t, "ALREADY_ACKNOWLEDGED", got.Error.Reason)
	r.verify()
}

func fullQueue(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", &pb.QueueConfig{MaxMessages: 3})
	r.stored(q, nil)
	r.stored(q, nil, request{}, request{})
	got := r.recorded(r.publish(q, nil))
	require.NotNil(t, got.Error)
	require.Equal(t, "not-done", got.Error.Outcome)
	require.Equal(t, "QUEUE_FULL", got.Error.Reason)
	r.verify()
}

// limitedByPolicy: a limit applies to a queue that the client creates without options, and to an existing queue.
func limitedByPolicy(t *testing.T, r *run) {
	r.open("c", nil)
	active, _ := r.inSync(t)
	queues := pb.NewQueueServiceClient(active.Conn())
	limit := func(messages uint64) {
		_, err := queues.PutPolicy(t.Context(), &pb.PutPolicyRequest{Policy: &pb.QueuePolicy{
			Pattern: "limited.*", Limits: &pb.QueueConfig{MaxMessages: messages},
		}})
		require.NoError(t, err)
	}
	limit(2)
	r.a.do("queue_create", request{"client": "c", "queue": "limited.1"})
	publish := request{"client": "c", "queue": "limited.1", "messages": []request{{"body": "1"}}}
	for _, messages := range []uint64{2, 3} {
		limit(messages)
		for r.a.do("queue_get", publish).Stored < messages {
			r.a.do("publish", publish)
		}
		got := r.a.call("publish", publish)
		require.NotNil(t, got.Error)
		require.Equal(t, "not-done", got.Error.Outcome)
		require.Equal(t, "QUEUE_FULL", got.Error.Reason)
	}
	_, err := queues.DeletePolicy(t.Context(), &pb.DeletePolicyRequest{Pattern: "limited.*"})
	require.NoError(t, err)
	r.a.do("publish", publish)
	r.a.do("queue_delete", publish)
}

func fenced(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	id := "fenced"
	r.stored(q, request{"producer": "old", "producer_id": id, "epoch": 1})
	r.stored(q, request{"producer": "new", "producer_id": id, "epoch": 2})
	got := r.recorded(r.publish(q, request{"producer": "old"}))
	require.NotNil(t, got.Error, "a higher epoch is in use")
	require.Equal(t, "not-done", got.Error.Outcome)
	require.Equal(t, "PRODUCER_FENCED", got.Error.Reason)
	r.stored(q, request{"producer": "new"})
	r.verify()
}

// reusedSequence: two producers have the same ID and epoch, which is an application error. The second producer sends
// a message with a sequence of the first producer. The message is not stored, and the client returns an error, even
// if the bodies are equal.
func reusedSequence(t *testing.T, r *run) {
	r.open("c", nil)
	r.open("c2", nil)
	q := r.queue("", nil)
	same := r.body()
	r.stored(q, request{"producer": "one", "producer_id": "twice", "epoch": 1}, request{"body": same})
	r.stored(q, request{"producer": "one"})
	for i, b := range []string{same, r.body()} {
		if i > 0 {
			r.o.expect(q, "", b)
		}
		got := r.a.call("publish", request{
			"client": "c2", "producer": "two", "producer_id": "twice", "epoch": 1, "queue": q,
			"messages": []request{{"body": b}},
		})
		require.NotNil(t, got.Error, "sequence %d was used before", i+1)
		require.Equal(t, "not-done", got.Error.Outcome)
		require.Equal(t, "SEQUENCE_REUSED", got.Error.Reason)
		if i > 0 {
			r.o.recorded(t, r.a, got, b)
		}
	}
	r.verify()
}

func storesOnce(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", &pb.QueueConfig{DedupWindow: durationpb.New(time.Hour)})
	publish := func(ids ...string) result {
		var messages []request
		for _, id := range ids {
			messages = append(messages, request{"body": id, "message_id": id})
		}
		return r.a.do("publish", request{"client": "c", "queue": q, "messages": messages})
	}
	require.False(t, publish("a").Duplicate)
	again := publish("a")
	require.True(t, again.Duplicate)
	require.Equal(t, uint64(1), again.Sequence)
	some := publish("a", "b", "c")
	require.False(t, some.Duplicate)
	require.Equal(t, uint64(2), some.Sequence)
	require.Equal(t, uint64(3), r.a.do("queue_get", request{"client": "c", "queue": q}).Stored)
}

func browses(t *testing.T, r *run) {
	r.open("c", nil)
	q := r.queue("", nil)
	for range 5 {
		r.stored(q, nil)
	}
	for range 2 {
		seen := r.a.do("browse", request{"client": "c", "queue": q}).Messages
		require.Len(t, seen, 5)
		for i, m := range seen {
			require.Equal(t, uint64(i+1), m.Sequence)
		}
	}
	require.Len(t, r.a.do("browse", request{"client": "c", "queue": q, "limit": 2}).Messages, 2)
	newest := r.a.do("browse", request{"client": "c", "queue": q, "newest": true, "limit": 2}).Messages
	require.Equal(t, []uint64{5, 4}, []uint64{newest[0].Sequence, newest[1].Sequence})
	require.Len(t, r.a.do("browse", request{"client": "c", "queue": q, "filter": "size > 0"}).Messages, 5)
	require.Empty(t, r.a.do("browse", request{"client": "c", "queue": q, "filter": "body.none == 1"}).Messages)
	r.consume("k", q, nil)
	d, _ := r.receive("k")
	r.answer("k", d, "ack", nil)
	r.flush("k")
	left := r.a.do("browse", request{"client": "c", "queue": q, "subscription": "default"}).Messages
	require.Len(t, left, 4)
	require.Equal(t, uint64(2), left[0].Sequence)
	r.verify()
}
