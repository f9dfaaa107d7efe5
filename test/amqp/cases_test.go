// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// cases returns the cases without a failover.
func cases() []testCase {
	return []testCase{
		{name: "publish and consume", run: publishAndConsume},
		{name: "gRPC to AMQP", run: fromGRPC},
		{name: "message of many frames", run: largeMessage},
		{name: "full queue", run: fullQueue},
		{name: "delivery outcomes", needs: []string{"answer"}, run: outcomes},
		{name: "dead letters", needs: []string{"answer"}, run: deadLetters},
		{name: "browse", needs: []string{"browse"}, run: browse},
		{name: "selector", needs: []string{"selector"}, run: selector},
		{name: "transaction", needs: []string{"transact"}, run: transaction},
		{name: "topic", run: topic},
		{name: "durable subscription", needs: []string{"durable"}, run: durableSubscription},
		{name: "shared subscription", needs: []string{"shared"}, run: sharedSubscription},
		{name: "delay and expiry", long: true, needs: []string{"delay"}, run: delayAndExpiry},
		{name: "no-local", needs: []string{"no-local"}, run: noLocal},
		{name: "request and reply", needs: []string{"temporary"}, run: requestAndReply},
		{name: "priority", run: priority},
		{name: "redirect by the standby", needs: []string{"follow"}, run: standby},
	}
}

// with merges requests.
func with(all ...request) request {
	out := request{}
	for _, r := range all {
		maps.Copy(out, r)
	}
	return out
}

var (
	onC  = request{"client": "c"}
	ofC  = request{"client": "c", "consumer": "k"}
	ofC2 = request{"client": "c", "consumer": "k2"}
)

// publishAndConsume: sent messages are stored with their fields, delivered unchanged and in order, and removed when
// accepted.
func publishAndConsume(r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	first := request{
		"body": "m0", "correlation_id": "corr", "subject": "kind", "priority": 7, "group": "g1",
		"properties": request{"region": "eu", "count": 3, "ratio": 1.5, "good": true},
	}
	r.send(with(onC, request{"to": q}), append([]request{first}, bodies(1, 20)...)...)
	all := r.stored(r.t, q)
	require.Len(r.t, all, 20)
	m := all[0].GetMessage()
	require.Equal(r.t, "corr", m.GetCorrelationId())
	require.Equal(r.t, "kind", m.GetSubject())
	require.Equal(r.t, "g1", m.GetGroup())
	require.Equal(r.t, uint32(7), m.GetPriority())
	require.Equal(r.t, "eu", m.GetProperties()["region"])
	require.Equal(r.t, int64(3), m.GetTypedProperties()["count"].GetIntValue())
	require.InDelta(r.t, 1.5, m.GetTypedProperties()["ratio"].GetDoubleValue(), 0)
	require.True(r.t, m.GetTypedProperties()["good"].GetBoolValue())

	r.a.do("consume", with(ofC, request{"from": q}))
	delivery, got := r.receive(ofC)
	require.Equal(r.t, "m0", got.Body)
	require.Equal(r.t, "corr", got.CorrelationID)
	require.Equal(r.t, "kind", got.Subject)
	require.Equal(r.t, "g1", got.Group)
	require.Equal(r.t, 7, got.Priority)
	require.Equal(r.t, map[string]any{"region": "eu", "count": 3.0, "ratio": 1.5, "good": true}, got.Properties)
	require.NotEmpty(r.t, got.MessageID)
	r.answer(ofC, delivery, "accept")
	for _, want := range bodies(1, 20) {
		require.Equal(r.t, want["body"], r.take(ofC))
	}
	r.quiet(ofC)
	r.empty(q)
}

// fromGRPC: a message from a gRPC publisher is delivered as text with its fields.
func fromGRPC(r *run) {
	q := r.queue("", nil)
	_, err := r.queues(r.t).Publish(r.t.Context(), &pb.PublishRequest{Queue: q, Messages: []*pb.Message{{
		Body: []byte("Grüße"), ContentType: "text/plain;charset=utf-8", CorrelationId: "corr", Subject: "kind",
		ReplyTo: "answers", Properties: map[string]string{"region": "eu"},
		TypedProperties: map[string]*pb.PropertyValue{"n": {Kind: &pb.PropertyValue_IntValue{IntValue: 1 << 40}}},
	}}})
	require.NoError(r.t, err)
	r.open("c", nil)
	r.a.do("consume", with(ofC, request{"from": q}))
	delivery, m := r.receive(ofC)
	require.Equal(r.t, "Grüße", m.Body)
	require.Equal(r.t, "corr", m.CorrelationID)
	require.Equal(r.t, "kind", m.Subject)
	require.Equal(r.t, "answers", m.ReplyTo)
	require.Equal(r.t, "eu", m.Properties["region"])
	require.InDelta(r.t, float64(1<<40), m.Properties["n"], 0)
	r.answer(ofC, delivery, "accept")
	r.empty(q)
}

// largeMessage: a message of many frames is delivered.
func largeMessage(r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	body := strings.Repeat("0123456789abcdef", 3<<16)
	r.send(with(onC, request{"to": q}), request{"body": body})
	r.a.do("consume", with(ofC, request{"from": q}))
	require.Equal(r.t, body, r.take(ofC))
	r.empty(q)
}

// fullQueue: a full queue rejects messages with the reason, and accepts messages again when it has space.
func fullQueue(r *run) {
	q := r.queue("", &pb.QueueConfig{MaxMessages: 2})
	r.open("c", nil)
	got := r.a.do("send", with(onC, request{"to": q, "messages": bodies(0, 3)}))
	require.Len(r.t, got.Results, 3)
	require.Equal(r.t, "accepted", got.Results[1].Outcome)
	require.Equal(r.t, "failed", got.Results[2].Outcome)
	require.Contains(r.t, got.Results[2].Text, "full")
	r.a.do("consume", with(ofC, request{"from": q}))
	require.Equal(r.t, "m0", r.take(ofC))
	require.Equal(r.t, "m1", r.take(ofC))
	r.empty(q)
	r.send(with(onC, request{"to": q}), bodies(3, 4)...)
	require.Equal(r.t, "m3", r.take(ofC))
}

// outcomes: released messages are redelivered, and failed deliveries are counted.
func outcomes(r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	r.send(with(onC, request{"to": q}), bodies(0, 1)...)
	r.a.do("consume", with(ofC, request{"from": q}))
	delivery, m := r.receive(ofC)
	require.Equal(r.t, 0, m.DeliveryCount)
	r.answer(ofC, delivery, "release")
	delivery, m = r.receive(ofC)
	require.Equal(r.t, "m0", m.Body)
	require.Equal(r.t, 0, m.DeliveryCount)
	r.answer(ofC, delivery, "fail")
	delivery, m = r.receive(ofC)
	require.Equal(r.t, "m0", m.Body)
	require.Equal(r.t, 1, m.DeliveryCount)
	r.answer(ofC, delivery, "accept")
	r.quiet(ofC)
	r.empty(q)
}

// deadLetters: rejected messages are dead-lettered immediately, and failed messages after the delivery limit.
func deadLetters(r *run) {
	dead := r.queue(".dead", nil)
	q := r.queue("", &pb.QueueConfig{DeadLetter: dead, MaxDeliveries: 2})
	r.open("c", nil)
	r.send(with(onC, request{"to": q}), bodies(0, 3)...)
	r.a.do("consume", with(ofC, request{"from": q}))
	for range 4 {
		delivery, m := r.receive(ofC)
		r.answer(ofC, delivery, map[string]string{"m0": "reject", "m1": "fail", "m2": "accept"}[m.Body])
	}
	r.quiet(ofC)
	r.empty(q)
	r.a.do("consume", with(ofC2, request{"from": dead}))
	got := []string{r.take(ofC2), r.take(ofC2)}
	slices.Sort(got)
	require.Equal(r.t, []string{"m0", "m1"}, got)
	r.quiet(ofC2)
}

// browse: messages remain in the queue, even after two passes of a browser.
func browse(r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	r.send(with(onC, request{"to": q}), bodies(0, 5)...)
	for range 2 {
		got := r.a.do("browse", with(onC, request{"from": q}))
		require.Len(r.t, got.Messages, 5)
		require.Equal(r.t, "m4", got.Messages[4].Body)
	}
	r.a.do("consume", with(ofC, request{"from": q}))
	for _, want := range bodies(0, 5) {
		require.Equal(r.t, want["body"], r.take(ofC))
	}
	r.empty(q)
}

// selector: a consumer receives the matching messages; the others remain.
func selector(r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	var all []request
	for i, region := range []string{"eu", "us", "eu", "asia"} {
		all = append(all, request{"body": region, "properties": request{"region": region, "n": i}})
	}
	r.send(with(onC, request{"to": q}), all...)
	r.a.do("consume", with(ofC, request{"from": q, "selector": "region LIKE 'e%' AND n BETWEEN 1 AND 3"}))
	require.Equal(r.t, "eu", r.take(ofC))
	r.quiet(ofC)
	r.a.do("consumer_close", ofC)
	r.a.do("consume", with(ofC2, request{"from": q}))
	require.Equal(r.t, []string{"eu", "us", "asia"}, []string{r.take(ofC2), r.take(ofC2), r.take(ofC2)})
	_, failed := r.a.try("consume", request{"client": "c", "consumer": "bad", "from": q, "selector": "region LIKE"})
	require.NotEmpty(r.t, failed, "an invalid selector is rejected")
}

// transaction: messages are visible only after the commit, and a rollback requeues received messages.
func transaction(r *run) {
	in, out := r.queue(".in", nil), r.queue(".out", nil)
	r.open("c", nil)
	r.send(with(onC, request{"to": in}), bodies(0, 4)...)
	tx := request{"client": "c", "session": "t"}
	k := with(tx, request{"consumer": "k"})
	r.a.do("session", with(tx, request{"transacted": true}))
	r.a.do("consume", with(k, request{"from": in}))
	for _, end := range []string{"rollback", "commit"} {
		for i := range 4 {
			_, m := r.receive(k)
			require.Equal(r.t, bodies(i, i+1)[0]["body"], m.Body)
			r.send(with(tx, request{"to": out}), request{"body": end + m.Body})
		}
		require.Empty(r.t, r.stored(r.t, out), "visible before the commit")
		r.a.do(end, tx)
	}
	r.empty(in)
	all := r.stored(r.t, out)
	require.Len(r.t, all, 4)
	for i, m := range all {
		require.Equal(r.t, "commit"+bodies(i, i+1)[0]["body"].(string), text(m))
	}
	// Received and uncommitted messages are requeued when the connection ends.
	r.send(with(onC, request{"to": in}), bodies(4, 5)...)
	_, m := r.receive(k)
	require.Equal(r.t, "m4", m.Body)
	r.a.do("close", onC)
	r.open("c", nil)
	r.a.do("consume", with(ofC, request{"from": in}))
	require.Equal(r.t, "m4", r.take(ofC))
	r.empty(in)
}

// topic: each subscriber receives all messages published while it is attached.
func topic(r *run) {
	name := r.topic("")
	r.open("c", nil)
	to := with(onC, request{"to": name, "kind": "topic"})
	r.send(to, bodies(0, 1)...)
	r.a.do("consume", with(ofC, request{"from": name, "kind": "topic"}))
	r.a.do("consume", with(ofC2, request{"from": name, "kind": "topic"}))
	r.send(to, bodies(1, 3)...)
	for _, k := range []request{ofC, ofC2} {
		require.Equal(r.t, []string{"m1", "m2"}, []string{r.take(k), r.take(k)})
		r.quiet(k)
	}
	r.a.do("consumer_close", ofC2)
	r.a.do("close", onC)
	eventually(r.t, "the subscriptions are deleted", func() bool {
		return len(r.get(r.t, name).GetSubscriptions()) == 0
	})
}

// durableSubscription: a subscription remains while its subscriber is detached, until the subscription is deleted.
func durableSubscription(r *run) {
	name := r.topic("")
	id := request{"client_id": r.queueName(".id")}
	sub := with(ofC, request{"from": name, "kind": "topic", "durable": "audit"})
	r.open("c", id)
	r.a.do("consume", sub)
	r.a.do("close", onC)
	r.open("p", nil)
	r.send(request{"client": "p", "to": name, "kind": "topic"}, bodies(0, 3)...)
	r.open("c", id)
	r.a.do("consume", sub)
	for _, want := range bodies(0, 3) {
		require.Equal(r.t, want["body"], r.take(ofC))
	}
	r.quiet(ofC)
	r.a.do("consumer_close", ofC)
	require.Len(r.t, r.get(r.t, name).GetSubscriptions(), 1)
	r.a.do("unsubscribe", with(onC, request{"durable": "audit", "from": name}))
	require.Empty(r.t, r.get(r.t, name).GetSubscriptions())
}

// sharedSubscription: consumers of one subscription share its messages.
func sharedSubscription(r *run) {
	name := r.topic("")
	id := request{"client_id": r.queueName(".id")}
	sub := request{"from": name, "kind": "topic", "durable": "workers", "shared": true}
	r.open("c", id)
	r.a.do("consume", with(ofC, sub))
	r.a.do("consume", with(ofC2, sub))
	require.Len(r.t, r.get(r.t, name).GetSubscriptions(), 1)
	r.open("p", nil)
	r.send(request{"client": "p", "to": name, "kind": "topic"}, bodies(0, 40)...)
	got := map[string]int{}
	each := []int{0, 0}
	eventually(r.t, "all 40 messages were received", func() bool {
		for i, k := range []request{ofC, ofC2} {
			if one := r.a.do("receive", with(k, request{"timeout_ms": 50})); one.Message != nil {
				r.answer(k, one.Delivery, "accept")
				got[one.Message.Body]++
				each[i]++
			}
		}
		return len(got) == 40
	})
	for body, times := range got {
		require.Equal(r.t, 1, times, body)
	}
	require.NotZero(r.t, each[0])
	require.NotZero(r.t, each[1])
	r.a.do("close", onC)
	require.Len(r.t, r.get(r.t, name).GetSubscriptions(), 1, "the subscription is durable")
}

// delayAndExpiry: a delayed message is delivered when it is due; an expired message is not delivered.
func delayAndExpiry(r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	start := time.Now()
	r.send(with(onC, request{"to": q}), request{"body": "late", "delay_ms": 1500}, request{"body": "gone", "ttl_ms": 100})
	sent := time.Now() // acceptance starts the TTL of 100 ms
	eventually(r.t, "the message has expired", func() bool { return time.Since(sent) > 300*time.Millisecond })
	r.a.do("consume", with(ofC, request{"from": q}))
	require.Equal(r.t, "late", r.take(ofC))
	require.GreaterOrEqual(r.t, time.Since(start), 1500*time.Millisecond)
	r.quiet(ofC)
	r.empty(q)
}

// noLocal: a subscriber does not receive messages published on its own connection.
func noLocal(r *run) {
	name := r.topic("")
	r.open("c", nil)
	r.open("p", nil)
	r.a.do("consume", with(ofC, request{"from": name, "kind": "topic", "no_local": true}))
	r.send(request{"client": "c", "to": name, "kind": "topic"}, request{"body": "own"})
	r.send(request{"client": "p", "to": name, "kind": "topic"}, request{"body": "another's"})
	require.Equal(r.t, "another's", r.take(ofC))
	r.quiet(ofC)
}

// requestAndReply: the reply is delivered to the temporary queue in the request's reply-to field.
func requestAndReply(r *run) {
	q := r.queue("", nil)
	r.open("c", nil)
	r.open("server", nil)
	address := r.a.do("temporary", onC).Address
	require.NotEmpty(r.t, address)
	r.a.do("consume", with(ofC, request{"from": address}))
	r.send(with(onC, request{"to": q}), request{"body": "question", "reply_to": address, "correlation_id": "1"})
	server := request{"client": "server", "consumer": "s"}
	r.a.do("consume", with(server, request{"from": q}))
	delivery, m := r.receive(server)
	require.Equal(r.t, address, m.ReplyTo)
	r.send(request{"client": "server", "to": m.ReplyTo}, request{"body": "answer", "correlation_id": m.CorrelationID})
	r.answer(server, delivery, "accept")
	delivery, m = r.receive(ofC)
	require.Equal(r.t, "answer", m.Body)
	require.Equal(r.t, "1", m.CorrelationID)
	r.answer(ofC, delivery, "accept")
	r.a.do("close", onC)
	r.waitDeleted(address)
}

// waitDeleted waits until a temporary queue is deleted.
func (r *run) waitDeleted(address string) {
	r.t.Helper()
	eventually(r.t, "the temporary queue is deleted", func() bool {
		_, err := r.queues(r.t).GetQueue(r.t.Context(), &pb.GetQueueRequest{Name: address})
		return err != nil
	})
}

// priority: a queue with priorities delivers messages of higher priority first.
func priority(r *run) {
	q := r.queue("", &pb.QueueConfig{Priorities: true, Ttl: durationpb.New(time.Hour)})
	r.open("c", nil)
	r.send(with(onC, request{"to": q}), request{"body": "low", "priority": 1}, request{"body": "high", "priority": 9})
	r.a.do("consume", with(ofC, request{"from": q}))
	require.Equal(r.t, []string{"high", "low"}, []string{r.take(ofC), r.take(ofC)})
}

// standby: a client with the standby as its first address connects to the active automatically.
func standby(r *run) {
	q := r.queue("", nil)
	_, other := r.inSync(r.t)
	active := r.pair.Other(other)
	r.open("c", request{"urls": []string{r.urls[other.Name], r.urls[active.Name]}})
	r.send(with(onC, request{"to": q}), bodies(0, 1)...)
	require.Len(r.t, r.stored(r.t, q), 1)
}

// text returns the body of a stored message: data sections as they are, other body types as the client sent them.
func text(m *pb.StoredMessage) string { return string(m.GetMessage().GetBody()) }
