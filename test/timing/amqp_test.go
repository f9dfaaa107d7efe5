// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// receiver opens a receiving link on which the node confirms each acknowledgement.
func (p *pair) receiver(n *simpair.Node, queue string, credit int32) *amqp.Receiver {
	p.t.Helper()
	raw, err := p.w.Dial(p.t.Context(), n.Ready.AMQP)
	require.NoError(p.t, err)
	conn, err := amqp.NewConn(p.t.Context(), raw, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	session, err := conn.NewSession(p.t.Context(), nil)
	require.NoError(p.t, err)
	r, err := session.NewReceiver(p.t.Context(), queue, &amqp.ReceiverOptions{
		Credit: credit, SettlementMode: amqp.ReceiverSettleModeSecond.Ptr(),
	})
	require.NoError(p.t, err)
	return r
}

// If the active is killed while acknowledgements are in flight, no message is lost, and no message with a confirmed
// acknowledgement is redelivered.
func TestAMQPAcksInFlight(t *testing.T) {
	inFlight, confirmedCount := 0, 0
	for wait := range 8 {
		t.Run(fmt.Sprint(wait), func(t *testing.T) {
			run(t, func(t *testing.T, p *pair) {
				confirmed, open := killWithAcks(t, p, time.Duration(wait)*simpair.Latency)
				t.Logf("%d acknowledgements were confirmed, %d were in flight", confirmed, open)
				inFlight, confirmedCount = inFlight+open, confirmedCount+confirmed
			}, func(c *config.Config) { c.AMQP.Listen = net.JoinHostPort("127.0.0.1", "0") })
		})
	}
	require.Positive(t, inFlight, "no acknowledgement was in flight")
	require.Positive(t, confirmedCount, "no acknowledgement was confirmed")
}

func killWithAcks(t *testing.T, p *pair, wait time.Duration) (confirmed, inFlight int) {
	t.Helper()
	const messages, taken = 200, 100
	c := p.client()
	_, _, err := admin.New(c).CreateQueue(t.Context(), "orders", admin.CreateQueueOptions{})
	require.NoError(t, err)
	all := make([]client.Message, messages)
	for i := range all {
		all[i].Body = fmt.Append(nil, i)
		_, err := c.Publish(t.Context(), "orders", all[i])
		require.NoError(t, err)
	}
	active, standby := p.inSync()
	r := p.receiver(active, "orders", taken)
	var mu sync.Mutex
	received, acked := map[string]int{}, map[string]bool{}
	var acks sync.WaitGroup
	for i := range taken {
		if i%10 == 0 {
			sleep(simpair.Latency) // spreads the acknowledgements over all stages of their processing
		}
		m, err := r.Receive(t.Context(), nil)
		require.NoError(t, err)
		body := string(m.GetData())
		received[body]++
		acks.Go(func() {
			if r.AcceptMessage(context.WithoutCancel(t.Context()), m) == nil {
				mu.Lock()
				defer mu.Unlock()
				acked[body] = true
			}
		})
	}
	sleep(wait)
	mu.Lock()
	confirmed = len(acked)
	mu.Unlock()
	active.Kill()
	acks.Wait()
	standby.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	r = p.receiver(standby, "orders", 10)
	for {
		m, err := r.Receive(p.within(time.Second), nil)
		if err != nil {
			break
		}
		body := string(m.GetData())
		received[body]++
		require.False(t, acked[body], "%s was redelivered after its acknowledgement was confirmed", body)
		require.NoError(t, r.AcceptMessage(t.Context(), m))
	}
	require.Len(t, received, messages)
	q, err := admin.New(c).GetQueue(t.Context(), "orders")
	require.NoError(t, err)
	require.Zero(t, q.Messages)
	return confirmed, taken - confirmed
}
