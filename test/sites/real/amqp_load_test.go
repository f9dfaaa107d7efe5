// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package real

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Queues of the AMQP load, with a dedup window: messages in amqpKept are not consumed, and messages in amqpWork are
// consumed.
const (
	amqpKept = "amqp-kept"
	amqpWork = "amqp-work"
)

const (
	amqpProducers   = 2
	amqpConsumers   = 2
	amqpBatch       = 8 // messages that are sent before their outcomes are read
	amqpInterval    = 20 * time.Millisecond
	amqpCredit      = 50
	amqpBackoff     = 50 * time.Millisecond
	amqpDialTimeout = 5 * time.Second
)

// amqpDelivery is a delivery of a message to a consumer.
type amqpDelivery struct {
	consumer  int
	confirmed bool // the node has confirmed that it is accepted
}

// amqpLoad is a set of AMQP clients of two sites. Each client has a connection, and follows the recipe for go-amqp
// in docs/reference/amqp.md: it tries all addresses one after another, recreates its links, and resends messages
// without an outcome.
//
// Message n is published by producer n % amqpProducers, with the message ID "amqp-n".
type amqpLoad struct {
	t         *testing.T
	addresses []string
	stop      chan struct{}
	end       context.CancelFunc
	senders,
	readers sync.WaitGroup

	mu         sync.Mutex // guards the fields below
	accepted   map[string][]int
	resent     int
	connects   int
	deliveries map[int][]*amqpDelivery // by number, in the order of their arrival
	lastAccept time.Time
	gap        time.Duration   // longest time without an accepted message, since the last call of continued
	gaps       []time.Duration // by call of continued
	errs       []error
}

// createDedup creates queues that store messages with the same ID once.
func (w *world) createDedup(queues ...string) {
	w.t.Helper()
	n, _ := w.active(w.t.Context(), w.east)
	for _, q := range queues {
		_, err := pb.NewQueueServiceClient(n.Conn()).CreateQueue(w.t.Context(), &pb.CreateQueueRequest{
			Name: q, Config: &pb.QueueConfig{DedupWindow: durationpb.New(24 * time.Hour)},
		})
		require.NoError(w.t, err)
	}
}

// newAMQPLoad starts producers and consumers.
func newAMQPLoad(w *world) *amqpLoad {
	w.t.Helper()
	w.createDedup(amqpKept, amqpWork)
	l := &amqpLoad{
		t: w.t, stop: make(chan struct{}), accepted: map[string][]int{}, deliveries: map[int][]*amqpDelivery{},
	}
	for _, s := range w.sites() {
		for i := range 2 {
			l.addresses = append(l.addresses, "amqp://"+s.amqp[i].Address())
		}
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	l.end = cancel
	w.t.Cleanup(func() {
		cancel()
		l.senders.Wait()
		l.readers.Wait()
	})
	for i := range amqpProducers {
		l.senders.Go(func() { l.publish(ctx, i) })
	}
	for i := range amqpConsumers {
		l.readers.Go(func() { l.consume(ctx, i) })
	}
	return l
}

func (l *amqpLoad) failed(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, fmt.Errorf("%s: %w", what, err))
}

// onSessions calls run with a session on a node that serves. After an error of the connection, it calls run again
// with another session. It returns when run succeeds or returns another error, or when ctx ends.
func (l *amqpLoad) onSessions(ctx context.Context, run func(*amqp.Session) error) error {
	tick := time.NewTicker(amqpBackoff)
	defer tick.Stop()
	for n := 0; ; n++ {
		err := l.onSession(ctx, l.addresses[n%len(l.addresses)], run)
		if err == nil || !lostConnection(err) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// onSession calls run with a session on a node. A node that does not serve closes the connection.
func (l *amqpLoad) onSession(ctx context.Context, address string, run func(*amqp.Session) error) error {
	dialing, cancel := context.WithTimeout(ctx, amqpDialTimeout)
	defer cancel()
	conn, err := amqp.Dial(dialing, address, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	if err != nil {
		return &connectError{err}
	}
	defer func() { _ = conn.Close() }()
	session, err := conn.NewSession(dialing, nil)
	if err != nil {
		return &connectError{err}
	}
	l.mu.Lock()
	l.connects++
	l.mu.Unlock()
	return run(session)
}

// connectError is an error of an attempt to connect.
type connectError struct{ error }

// lostConnection reports whether the client must connect again: it could not connect, the connection was lost, or the
// node has closed the connection or the link because its role has changed.
func lostConnection(err error) bool {
	var connect *connectError
	var link *amqp.LinkError
	if errors.As(err, &link) && link.RemoteErr != nil {
		condition := link.RemoteErr.Condition
		return condition == amqp.ErrCondConnectionForced || condition == amqp.ErrCondDetachForced
	}
	var conn *amqp.ConnError
	var session *amqp.SessionError
	return errors.As(err, &connect) || errors.As(err, &link) || errors.As(err, &conn) || errors.As(err, &session)
}

// publish publishes batches until the load is stopped. A batch is sent until all its messages are accepted.
func (l *amqpLoad) publish(ctx context.Context, producer int) {
	queues := []string{amqpKept, amqpWork}
	batch, next := 0, producer
	var open []int // messages of the batch that are not accepted
	err := l.onSessions(ctx, func(session *amqp.Session) error {
		senders := map[string]*amqp.Sender{}
		for _, q := range queues {
			s, err := session.NewSender(ctx, q, nil)
			if err != nil {
				return fmt.Errorf("attach: %w", err)
			}
			senders[q] = s
		}
		l.mu.Lock()
		l.resent += len(open)
		l.mu.Unlock()
		tick := time.NewTicker(amqpInterval)
		defer tick.Stop()
		for {
			if len(open) == 0 {
				select {
				case <-tick.C:
				case <-l.stop:
					return nil
				case <-ctx.Done():
					return nil
				}
				batch++
				for range amqpBatch {
					open = append(open, next)
					next += amqpProducers
				}
			}
			queue := queues[batch%len(queues)]
			if err := l.send(ctx, senders[queue], queue, &open); err != nil {
				return err
			}
		}
	})
	if err != nil && ctx.Err() == nil {
		l.failed(fmt.Sprintf("producer %d", producer), err)
	}
}

// send sends the messages in open, and removes the accepted messages from open.
func (l *amqpLoad) send(ctx context.Context, s *amqp.Sender, queue string, open *[]int) error {
	receipts := make([]amqp.SendReceipt, 0, len(*open))
	var failure error
	for _, n := range *open {
		id := fmt.Sprintf("amqp-%d", n)
		m := amqp.NewMessage(body(n, smallBody))
		m.Properties = &amqp.MessageProperties{MessageID: id}
		r, err := s.SendWithReceipt(ctx, m, nil)
		if err != nil {
			failure = err
			break
		}
		receipts = append(receipts, r)
	}
	for _, r := range receipts {
		state, err := r.Wait(ctx)
		if err != nil {
			return fmt.Errorf("send %d: %w", (*open)[0], err)
		}
		if _, is := state.(*amqp.StateAccepted); !is {
			return fmt.Errorf("message %d was not accepted: %T %v", (*open)[0], state, state)
		}
		l.mu.Lock()
		l.accepted[queue] = append(l.accepted[queue], (*open)[0])
		now := time.Now()
		if !l.lastAccept.IsZero() {
			l.gap = max(l.gap, now.Sub(l.lastAccept))
		}
		l.lastAccept = now
		l.mu.Unlock()
		*open = (*open)[1:]
	}
	return failure
}

// consume accepts the messages in amqpWork until the context ends.
func (l *amqpLoad) consume(ctx context.Context, consumer int) {
	err := l.onSessions(ctx, func(session *amqp.Session) error {
		r, err := session.NewReceiver(ctx, amqpWork, &amqp.ReceiverOptions{
			Credit: amqpCredit, SettlementMode: amqp.ReceiverSettleModeSecond.Ptr(),
		})
		if err != nil {
			return fmt.Errorf("attach: %w", err)
		}
		var accepts sync.WaitGroup
		defer accepts.Wait()
		for {
			m, err := r.Receive(ctx, nil)
			if err != nil {
				return fmt.Errorf("receive: %w", err)
			}
			n, err := number(m.GetData())
			if err != nil {
				return err
			}
			d := l.received(n, consumer)
			accepts.Go(func() {
				if r.AcceptMessage(ctx, m) == nil {
					l.mu.Lock()
					defer l.mu.Unlock()
					d.confirmed = true
				}
			})
		}
	})
	if err != nil && ctx.Err() == nil {
		l.failed(fmt.Sprintf("consumer %d", consumer), err)
	}
}

// received records a delivery. If the node has confirmed an earlier acceptance of the message, received records an
// error.
func (l *amqpLoad) received(n, consumer int) *amqpDelivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.deliveries[n] {
		if d.confirmed {
			l.errs = append(l.errs, fmt.Errorf("message %d was delivered again to consumer %d after consumer %d had "+
				"accepted it", n, consumer, d.consumer))
		}
	}
	d := &amqpDelivery{consumer: consumer}
	l.deliveries[n] = append(l.deliveries[n], d)
	return d
}

// continued waits until a message is accepted after a time, and records the longest gap since its last call.
func (l *amqpLoad) continued(since time.Time) {
	l.t.Helper()
	eventually(l.t, "acceptance of an AMQP message", func(context.Context) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.errs) > 0 || l.lastAccept.After(since)
	})
	l.check()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gaps = append(l.gaps, l.gap)
	l.gap = 0
}

func (l *amqpLoad) check() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.NoError(l.t, errors.Join(l.errs...))
}

// finish stops the producers, and waits until all messages are consumed.
func (l *amqpLoad) finish(c *client.Client) {
	l.t.Helper()
	close(l.stop)
	waitFor(l.t, &l.senders, "outcome of all AMQP messages")
	eventually(l.t, "all AMQP messages consumed", func(context.Context) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.errs) > 0 || len(l.deliveries) >= len(l.accepted[amqpWork])
	})
	eventually(l.t, "all AMQP messages acknowledged", func(ctx context.Context) bool {
		q, err := admin.New(c).GetQueue(ctx, amqpWork)
		return err == nil && q.Messages == 0
	})
	l.end()
	waitFor(l.t, &l.readers, "end of the AMQP consumers")
	l.check()
}

// verify compares the stored messages with the outcomes. All producers have ended, so that each message has been
// accepted, some of them after several attempts. It verifies that
//   - each message is stored once, in the order of its producer,
//   - each message in amqpWork was delivered, and nothing else was,
//   - no message was delivered again after the node had confirmed its acceptance (see received).
func (l *amqpLoad) verify(c *client.Client) {
	l.t.Helper()
	got := map[int][]int{}
	for _, m := range content(l.t, c, amqpKept, false) {
		got[m.n%amqpProducers] = append(got[m.n%amqpProducers], m.n)
	}
	want := map[int][]int{}
	for _, n := range l.accepted[amqpKept] {
		want[n%amqpProducers] = append(want[n%amqpProducers], n)
	}
	require.Equal(l.t, want, got, "messages in %s by producer", amqpKept)

	q, err := admin.New(c).GetQueue(limited(l.t), amqpWork)
	require.NoError(l.t, err)
	require.Equal(l.t, uint64(len(l.accepted[amqpWork])), q.NextSequence-1, "messages stored in %s", amqpWork)
	again := 0
	for _, n := range l.accepted[amqpWork] {
		require.NotEmpty(l.t, l.deliveries[n], "message %d was not delivered", n)
		again += len(l.deliveries[n]) - 1
	}
	require.Len(l.t, l.deliveries, len(l.accepted[amqpWork]), "messages delivered from %s", amqpWork)
	slices.Sort(l.gaps)
	l.t.Logf("AMQP: median pause %v, maximum %v", l.gaps[len(l.gaps)/2].Round(time.Millisecond),
		l.gaps[len(l.gaps)-1].Round(time.Millisecond))
	l.t.Logf("AMQP: %d publishes, %d resent, %d consumed, %d redelivered, %d connections",
		len(l.accepted[amqpKept])+len(l.accepted[amqpWork]), l.resent, len(l.deliveries), again, l.connects)
}
