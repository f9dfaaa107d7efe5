// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

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
)

const (
	amqpBatch       = 4 // messages that are sent before their outcomes are read
	amqpInterval    = 40 * time.Millisecond
	amqpBackoff     = 50 * time.Millisecond
	amqpDialTimeout = 5 * time.Second
	amqpSendTimeout = time.Minute
)

// amqpProducer publishes to one queue with an AMQP client. It follows the recipe for go-amqp in docs/reference/amqp.md:
// if the connection is lost or a message is rejected, because the node does not own the queue, it connects to the next
// node of the fleet, and resends the messages without an outcome. Its messages have IDs, by which the queue detects
// messages that were sent twice.
type amqpProducer struct {
	t         *testing.T
	queue     string
	addresses []string
	stop      chan struct{}
	ended     sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	accepted []int
	last     time.Time
	resent   int
	connects int
	errs     map[string]int // number of errors by text
}

func newAMQPProducer(w *world, queue string) *amqpProducer {
	w.t.Helper()
	l := &amqpProducer{
		t: w.t, queue: queue, addresses: w.amqpAddresses(), stop: make(chan struct{}), errs: map[string]int{},
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(func() {
		cancel()
		l.ended.Wait()
		if w.t.Failed() {
			w.t.Logf("AMQP errors for %s: %v", queue, l.errs)
		}
	})
	l.ended.Go(func() { l.run(ctx) })
	return l
}

// run publishes batches until the load is stopped. A batch is sent until all its messages are accepted.
func (l *amqpProducer) run(ctx context.Context) {
	tick := time.NewTicker(amqpInterval)
	defer tick.Stop()
	backoff := time.NewTicker(amqpBackoff)
	defer backoff.Stop()
	next := 0
	var open []int // messages of the batch that are not accepted
	for i := 0; ctx.Err() == nil; i++ {
		err := l.onSession(ctx, l.addresses[i%len(l.addresses)], func(s *amqp.Sender) error {
			for {
				if len(open) == 0 {
					select {
					case <-tick.C:
					case <-l.stop:
						return nil
					case <-ctx.Done():
						return nil
					}
					for range amqpBatch {
						open = append(open, next)
						next++
					}
				}
				if err := l.send(ctx, s, &open); err != nil {
					return err
				}
			}
		})
		if err == nil {
			return
		}
		l.mu.Lock()
		l.errs[err.Error()]++
		l.resent += len(open)
		l.mu.Unlock()
		select {
		case <-backoff.C:
		case <-ctx.Done():
		}
	}
}

// onSession calls run with a sender on a node.
func (l *amqpProducer) onSession(ctx context.Context, address string, run func(*amqp.Sender) error) error {
	return amqpSession(ctx, address, func(dialing context.Context, session *amqp.Session) error {
		s, err := session.NewSender(dialing, l.queue, nil)
		if err != nil {
			return fmt.Errorf("attach: %w", err)
		}
		l.mu.Lock()
		l.connects++
		l.mu.Unlock()
		return run(s)
	})
}

// send sends the messages in open, and removes the accepted messages from open, up to the first one that is not
// accepted.
func (l *amqpProducer) send(ctx context.Context, s *amqp.Sender, open *[]int) error {
	ctx, cancel := context.WithTimeout(ctx, amqpSendTimeout)
	defer cancel()
	receipts := make([]amqp.SendReceipt, 0, len(*open))
	var failure error
	for _, n := range *open {
		m := amqp.NewMessage(body(l.name(), n))
		m.Properties = &amqp.MessageProperties{MessageID: fmt.Sprintf("%s-%d", l.queue, n)}
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
			return fmt.Errorf("send: %w", err)
		}
		if rejected, is := state.(*amqp.StateRejected); is {
			if rejected.Error == nil {
				return errors.New("rejected")
			}
			return fmt.Errorf("rejected: %s %s", rejected.Error.Condition, rejected.Error.Description)
		}
		if _, is := state.(*amqp.StateAccepted); !is {
			return fmt.Errorf("not accepted: %T", state)
		}
		l.mu.Lock()
		l.accepted = append(l.accepted, (*open)[0])
		l.last = time.Now()
		l.mu.Unlock()
		*open = (*open)[1:]
	}
	return failure
}

func (l *amqpProducer) name() string { return "amqp-" + l.queue }

func (l *amqpProducer) continued(since time.Time) {
	l.t.Helper()
	eventually(l.t, "acceptance of a message of "+l.name(), func(context.Context) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.last.After(since)
	})
}

func (l *amqpProducer) finish() {
	l.t.Helper()
	close(l.stop)
	waitFor(l.t, &l.ended, "outcome of all messages of "+l.name())
	require.NotEmpty(l.t, l.accepted)
	l.t.Logf("%s: %d messages, %d resent, %d connections", l.name(), len(l.accepted), l.resent, l.connects)
}

func (*amqpProducer) receipts(string) []receipt { return nil }

func (l *amqpProducer) confirmed(queue string) []int {
	if queue != l.queue {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.accepted)
}
