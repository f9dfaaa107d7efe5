// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
)

func in(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

func (n *testNode) queue(name string) *pb.Queue {
	n.t.Helper()
	resp, err := n.queues.GetQueue(n.t.Context(), &pb.GetQueueRequest{Name: name})
	require.NoError(n.t, err)
	return resp.GetQueue()
}

// Delayed messages are delivered when they are due, not earlier, in the order of their due times. The default delay
// of the queue applies to messages without a delay, even in a transaction.
func TestDelay(t *testing.T) { simulated(t, testDelay) }

func testDelay(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("q", &pb.QueueConfig{Delay: in(3 * time.Second)}))
	begin := time.Now()
	n.publishAll("q", &pb.Message{Body: []byte("default")},
		&pb.Message{Body: []byte("soon"), Delay: in(time.Second)},
		&pb.Message{Body: []byte("now"), Delay: in(0)})
	_, err := n.queues.Commit(t.Context(), &pb.CommitRequest{Operations: []*pb.Operation{{
		Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{
			Queue: "q", Messages: []*pb.Message{{Body: []byte("committed"), Subject: "s"}},
		}},
	}}})
	require.NoError(t, err)
	require.Equal(t, uint64(3), n.queue("q").GetDelayed())
	c := n.consume("q", 100)
	require.Equal(t, []string{"now"}, bodies(c.take(1)))
	require.Equal(t, []string{"soon"}, bodies(c.take(1)))
	took(t, time.Second, begin)
	require.Equal(t, []string{"default", "committed"}, bodies(c.take(2)))
	took(t, 3*time.Second, begin)
	require.Zero(t, n.queue("q").GetDelayed())
	c.settle(&pb.ConsumeRequest{Ack: span(1, 4)})
	require.Zero(t, n.queue("q").GetMessages())
}

// Messages expire after their TTL or after the TTL of their queue. Messages in flight do not expire.
func TestExpiry(t *testing.T) { simulated(t, testExpiry) }

func testExpiry(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("q", &pb.QueueConfig{}))
	c := n.consume("q", 1)
	n.publishAll("q", &pb.Message{Body: []byte("held"), Ttl: in(time.Second)},
		&pb.Message{Body: []byte("over"), Ttl: in(time.Second)}, &pb.Message{Body: []byte("stays")},
		&pb.Message{Body: []byte("never due"), Ttl: in(time.Second), Delay: in(time.Hour)})
	require.Equal(t, []string{"held"}, bodies(c.take(1)))
	require.Eventually(t, func() bool { return n.queue("q").GetExpired() == 2 }, testTimeout, 5*time.Millisecond)
	require.Equal(t, uint64(2), n.queue("q").GetMessages())
	c.confirm(&pb.ConsumeRequest{Ack: span(1, 1), Credit: 1, Confirm: 1})
	require.Equal(t, []string{"stays"}, bodies(c.take(1)))
	c.confirm(&pb.ConsumeRequest{Nack: span(3, 3), Confirm: 2})

	require.NoError(t, c.stream.CloseSend())
	require.NoError(t, n.alter("q", &pb.QueueConfig{Ttl: in(50 * time.Millisecond)}, "ttl"))
	require.Eventually(t, func() bool { return n.queue("q").GetMessages() == 0 }, testTimeout, 5*time.Millisecond)
	require.Equal(t, uint64(3), n.queue("q").GetExpired())
}

// All messages that expire at the same time are removed, even if they exceed one batch and messages with an
// earlier expiry are published in the meantime. Delayed messages are delivered concurrently.
func TestManyMessagesExpire(t *testing.T) { simulated(t, testManyMessagesExpire) }

func testManyMessagesExpire(t *testing.T) {
	const each, times = 5000, 5
	n := startAlone(t, nil)
	for _, name := range []string{"a", "b", "due"} {
		require.NoError(t, n.createWith(name, &pb.QueueConfig{}))
	}
	at := time.Now().Add(time.Second)
	for i := range times {
		messages := make([]*pb.Message, each)
		for k := range messages {
			over := at
			if k%100 == 0 {
				over = at.Add(time.Duration(k-each/2) * time.Microsecond)
			}
			messages[k] = &pb.Message{ExpiresAt: timestamppb.New(over)}
		}
		n.publishAll([]string{"a", "b"}[i%2], messages...)
	}
	due := at.Add(20 * time.Millisecond)
	n.publishAll("due", &pb.Message{Body: []byte("due"), DeliverAt: timestamppb.New(due)})
	c := n.consume("due", 1)
	require.Equal(t, []string{"due"}, bodies(c.take(1)))
	n.publishAll("b", &pb.Message{ExpiresAt: timestamppb.New(at)}, &pb.Message{Body: []byte("stays")})
	require.Eventually(t, func() bool {
		return n.queue("a").GetExpired()+n.queue("b").GetExpired() == each*times+1
	}, testTimeout, 5*time.Millisecond)
	require.Zero(t, n.queue("a").GetMessages())
	require.Equal(t, uint64(1), n.queue("b").GetMessages())
}

// With dead_letter_expired, an expired message is moved once for each subscription that needs it. While the
// dead-letter queue is full, expired messages remain in their queue and are not delivered.
func TestExpiredDeadLetters(t *testing.T) { simulated(t, testExpiredDeadLetters) }

func testExpiredDeadLetters(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("dead", &pb.QueueConfig{MaxMessages: 3}))
	require.NoError(t, n.createWith("q", &pb.QueueConfig{
		DeadLetter: "dead", DeadLetterExpired: true, Ttl: in(time.Hour),
	}))
	require.NoError(t, n.subscribe("q", "second", ""))
	n.publishAll("q", &pb.Message{Body: []byte("a"), Ttl: in(time.Millisecond), Subject: "s"},
		&pb.Message{Body: []byte("b"), Ttl: in(100 * time.Millisecond)})
	require.Eventually(t, func() bool { return len(n.browse("dead")) == 3 }, testTimeout, 5*time.Millisecond)
	c := n.consume("q", 10)
	n.publishAll("q", &pb.Message{Body: []byte("c")})
	require.Equal(t, []string{"c"}, bodies(c.take(1)))
	dead := n.browse("dead")
	letters := map[string]int{}
	for _, m := range dead {
		require.Equal(t, pb.DeadLetterReason_DEAD_LETTER_REASON_EXPIRED, m.GetDeadLetter().GetReason())
		require.Nil(t, m.GetMessage().GetExpiresAt(), "a dead letter does not expire")
		letters[string(m.GetMessage().GetBody())+" of "+m.GetDeadLetter().GetSubscription()]++
	}
	require.Equal(t, uint64(2), n.queue("q").GetMessages())
	_, err := n.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "dead"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(n.browse("dead")) == 1 }, testTimeout, 5*time.Millisecond)
	last := n.browse("dead")[0]
	letters[string(last.GetMessage().GetBody())+" of "+last.GetDeadLetter().GetSubscription()]++
	require.Equal(t, map[string]int{"a of default": 1, "a of second": 1, "b of default": 1, "b of second": 1}, letters)
	require.Zero(t, n.queue("q").GetExpired(), "no message was dropped")
}

// A nack can contain a delay. An invalid delay ends the stream, and the nack has no effect.
func TestNackDelay(t *testing.T) { simulated(t, testNackDelay) }

func testNackDelay(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("q", &pb.QueueConfig{RedeliveryDelay: in(time.Hour)}))
	n.publish("q", "1", "2")
	c := n.consume("q", 10)
	c.take(2)
	begin := time.Now()
	c.confirm(&pb.ConsumeRequest{Nack: span(1, 1), Confirm: 1})
	c.confirm(&pb.ConsumeRequest{Nack: span(2, 2), NackDelay: in(200 * time.Millisecond), Confirm: 2})
	messages := c.take(1)
	require.Equal(t, []string{"2"}, bodies(messages))
	require.Equal(t, uint32(1), messages[0].GetDeliveryCount())
	took(t, 200*time.Millisecond, begin)
	for _, bad := range []*durationpb.Duration{in(-1), in(25 * time.Hour), {Seconds: 1, Nanos: -1}} {
		c := n.consume("q", 0)
		require.NoError(t, c.stream.Send(&pb.ConsumeRequest{Nack: span(2, 2), NackDelay: bad}))
		_, err := c.stream.Recv()
		require.ErrorIs(t, kind(err), apierror.ErrInvalid)
		require.Contains(t, err.Error(), "nack_delay")
	}
}

// Delays and expiries survive a failover.
func TestDelaySurvivesFailover(t *testing.T) { simulated(t, testDelaySurvivesFailover) }

func testDelaySurvivesFailover(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("q")
	messages := make([]*pb.Message, 200)
	for i := range messages {
		messages[i] = &pb.Message{Body: []byte{byte(i)}, Delay: in(time.Duration(20*i) * time.Millisecond)}
		if i%2 == 1 {
			messages[i].Ttl = in(time.Duration(10*i) * time.Millisecond)
		}
	}
	active.publishAll("q", messages...)
	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	c := standby.consume("q", 1000)
	var got []string
	for _, m := range c.take(100) {
		got = append(got, string(m.GetMessage().GetBody()))
	}
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(got))), 100)
	for _, body := range got {
		require.Zero(t, body[0]%2, "it expires before its delivery time")
	}
	require.Eventually(t, func() bool { return standby.queue("q").GetExpired() == 100 }, testTimeout, 5*time.Millisecond)
	require.Zero(t, standby.queue("q").GetDelayed())
}

// TestDueIsPrompt measures the delivery latency of messages that become due at a steady rate on a pair.
// LOCKSTEP_DUE_RATE is the rate per second. If it is set, the test lasts 5 s; otherwise, it lasts 1 s.
func TestDueIsPrompt(t *testing.T) { simulated(t, testDueIsPrompt) }

func testDueIsPrompt(t *testing.T) {
	rate, seconds := 500, 1
	if env := os.Getenv("LOCKSTEP_DUE_RATE"); env != "" {
		var err error
		rate, err = strconv.Atoi(env)
		require.NoError(t, err)
		seconds = 5
	}
	active, _ := startPair(t, startEtcd(t))
	active.createQueue("q")
	first := time.Now().Add(time.Duration(1+rate*seconds/20_000) * time.Second)
	step := time.Second / time.Duration(rate)
	for sent := 0; sent < rate*seconds; {
		var batch []*pb.Message
		for ; len(batch) < 1000 && sent < rate*seconds; sent++ {
			batch = append(batch, &pb.Message{DeliverAt: timestamppb.New(first.Add(time.Duration(sent) * step))})
		}
		active.publishAll("q", batch...)
	}
	require.Less(t, time.Now(), first, "all of them are delayed")
	c := active.consume("q", 1000)
	var late []time.Duration
	for len(late) < rate*seconds {
		resp, err := c.stream.Recv()
		require.NoError(t, err)
		now, n := time.Now(), len(resp.GetMessages())
		for _, m := range resp.GetMessages() {
			wait := now.Sub(m.GetMessage().GetDeliverAt().AsTime())
			require.GreaterOrEqual(t, wait, -time.Millisecond, "delivered before the due time")
			late = append(late, wait)
		}
		if n > 0 {
			last := resp.GetMessages()[n-1].GetSequence()
			require.NoError(t, c.stream.Send(&pb.ConsumeRequest{Ack: span(1, last), Credit: uint32(n)}))
		}
	}
	slices.Sort(late)
	t.Logf("%d due per second for %d s: delay %v at p50, %v at p99, %v at most", rate, seconds, late[len(late)/2],
		late[len(late)*99/100], late[len(late)-1])
	require.Less(t, late[len(late)*99/100], 2*time.Second)
}
