// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
)

func autoCreate(o *Options) {
	inMemory(o)
	o.AutoCreate = func() bool { return true }
}

func (s *store) madeQueues() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.created...)
}

// If a queue is deleted, its sending link is detached and the queue is not created again, until another link is
// attached.
func TestQueueOfSenderDeleted(t *testing.T) {
	for name, settled := range map[string]bool{"unsettled": false, "settled": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newStore().open()
				s, _, stop := serveFor(t, n, autoCreate)
				defer stop()
				p := dial(t, s, "c")
				p.attachSender(0, &wire.Node{Address: "q"})
				require.Equal(t, []string{"q"}, n.madeQueues())
				p.write(transfers(0, 0, 1, false, nil))
				require.Equal(t, wire.Accepted{}, next[*wire.Disposition](p).State)
				n.remove("q")
				p.write(transfers(0, 1, 1, settled, nil))
				if !settled {
					rejected, ok := next[*wire.Disposition](p).State.(*wire.Rejected)
					require.True(t, ok)
					require.Equal(t, session.ResourceDeleted, rejected.Error.Condition)
				}
				d := next[*wire.Detach](p)
				require.NotNil(t, d)
				require.True(t, d.Closed)
				require.Equal(t, session.ResourceDeleted, d.Error.Condition)
				require.Equal(t, []string{"q"}, n.madeQueues())

				p.attachSender(1, &wire.Node{Address: "q"})
				require.Equal(t, []string{"q", "q"}, n.madeQueues())
			})
		})
	}
}

// If a queue cannot be created on demand, its messages are rejected. If the client has settled them, the link is
// detached instead.
func TestQueueNotCreated(t *testing.T) {
	for name, settled := range map[string]bool{"unsettled": false, "settled": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newStore("other").open()
				n.createError = refused(codes.ResourceExhausted, "QUEUE_LIMIT")
				s, _, stop := serveFor(t, n, autoCreate)
				defer stop()
				p := dial(t, s, "c")
				p.attachSender(0, &wire.Node{})
				send := func(id uint32, queue string) {
					p.write(wire.AppendFrame(nil, 0, &wire.Transfer{
						Handle: 0, DeliveryID: wire.Some(id), DeliveryTag: []byte{byte(id)}, MessageFormat: wire.Some(uint32(0)),
						Settled: wire.Some(settled),
					}, wiretest.AppendData(wiretest.AppendTo(nil, queue), []byte("x"))))
				}
				send(0, "new")
				if settled {
					d := next[*wire.Detach](p)
					require.NotNil(t, d)
					require.Equal(t, session.ResourceLimitExceeded, d.Error.Condition)
					return
				}
				rejected, ok := next[*wire.Disposition](p).State.(*wire.Rejected)
				require.True(t, ok)
				require.Equal(t, session.ResourceLimitExceeded, rejected.Error.Condition)
				send(1, "other")
				require.Equal(t, wire.Accepted{}, next[*wire.Disposition](p).State)
				require.Equal(t, []string{"x"}, n.stored("other"))
			})
		})
	}
}

// discharged discharges a transaction, and returns the outcome.
func (p *peer) discharged(handle, delivery uint32, id []byte) wire.DeliveryState {
	p.t.Helper()
	p.write(discharge(handle, delivery, id))
	for {
		d := next[*wire.Disposition](p)
		require.NotNil(p.t, d)
		if d.Role == wire.RoleReceiver && d.First <= delivery && d.Last >= delivery {
			return d.State
		}
	}
}

// A transaction may contain many messages, alternating between several queues.
func TestLargeTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, batch = 100_000, 1000
		n := newStore("a", "b").open()
		s, _, stop := serveFor(t, n, inMemory)
		defer stop()
		p := dial(t, s, "c")
		p.attachSender(0, &wire.Coordinator{})
		p.attachSender(1, &wire.Node{Address: "a"})
		p.attachSender(2, &wire.Node{Address: "b"})
		id := p.declare(0, 0)
		state := &wire.TransactionalState{TxnID: id}
		sent := uint32(1)
		for sent < count {
			var b []byte
			for i := range uint32(2 * batch) { // alternating
				b = append(b, transfers(1+i%2, sent+i, 1, true, state)...)
			}
			sent += 2 * batch
			p.write(b)
			for refilled := map[uint32]bool{}; len(refilled) < 2; {
				f := next[*wire.Flow](p)
				require.NotNil(t, f)
				if f.Handle.Set {
					refilled[f.Handle.Value] = true
				}
			}
		}
		require.Equal(t, wire.Accepted{}, p.discharged(0, sent, id))
		for i, queue := range []string{"a", "b"} {
			list := n.stored(queue)
			require.Len(t, list, count/2)
			for j, body := range list {
				require.Equal(t, strconv.Itoa(1+i+2*j), body)
			}
		}
	})
}

// A transaction with more acknowledgements than the node accepts is rejected with a resource limit error.
func TestTransactionAcknowledgementLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, count := range []int{100_000, maxTaken + 1} {
			n := newStore().open()
			n.queues["q"] = numbered(count)
			s, _, stop := serveFor(t, n, inMemory)
			p := dial(t, s, "c")
			p.attachSender(0, &wire.Coordinator{})
			id := p.declare(0, 0)
			p.attachReceiver(1, &wire.Source{Address: "q"}, &wire.Flow{LinkCredit: wire.Some(uint32(count))})
			for i := range uint32(count) {
				require.NotNil(t, next[*wire.Transfer](p))
				if (i+1)%1024 == 0 { // in parts, because of the limit of unsettled messages
					p.accept(i-1023, i, id)
				}
			}
			p.accept(uint32(count-count%1024), uint32(count-1), id)
			outcome := p.discharged(0, 1, id)
			if count <= maxTaken {
				require.Equal(t, wire.Accepted{}, outcome)
				require.Len(t, n.commits[0].GetOperations()[0].GetAck().GetRanges(), 1)
			} else {
				rejected, ok := outcome.(*wire.Rejected)
				require.True(t, ok)
				require.Equal(t, session.ResourceLimitExceeded, rejected.Error.Condition)
				require.Empty(t, n.commits)
			}
			stop()
		}
	})
}

// accept accepts messages in a transaction.
func (p *peer) accept(first, last uint32, id []byte) {
	p.t.Helper()
	p.write(wire.AppendFrame(nil, 0, &wire.Disposition{
		Role: wire.RoleReceiver, First: first, Last: last, Settled: true,
		State: &wire.TransactionalState{TxnID: id, Outcome: wire.Accepted{}},
	}, nil))
}

// A queue that is named only by a message is created on demand in a transaction; a deleted queue is not created
// again.
func TestTransactionCreatesQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStore("q").open()
		s, _, stop := serveFor(t, n, autoCreate)
		defer stop()
		p := dial(t, s, "c")
		p.attachSender(0, &wire.Coordinator{})
		p.attachSender(1, &wire.Node{})
		p.attachSender(2, &wire.Node{Address: "q"})
		id := p.declare(0, 0)
		p.write(wire.AppendFrame(nil, 0, &wire.Transfer{
			Handle: 1, DeliveryID: wire.Some(uint32(1)), DeliveryTag: []byte{1}, MessageFormat: wire.Some(uint32(0)),
			Settled: wire.Some(true), State: &wire.TransactionalState{TxnID: id},
		}, wiretest.AppendData(wiretest.AppendTo(nil, "new"), []byte("x"))))
		require.Equal(t, wire.Accepted{}, p.discharged(0, 2, id))
		require.Equal(t, []string{"new"}, n.madeQueues())
		require.Equal(t, []string{"x"}, n.stored("new"))

		n.remove("q")
		id = p.declare(0, 3)
		p.write(transfers(2, 4, 1, true, &wire.TransactionalState{TxnID: id}))
		rejected, ok := p.discharged(0, 5, id).(*wire.Rejected)
		require.True(t, ok)
		require.Equal(t, session.NotFound, rejected.Error.Condition)
		require.Equal(t, []string{"new"}, n.madeQueues())
	})
}

// A commit without a response is retried under the same identity. If the outcome cannot be determined, the client
// receives no outcome.
func TestCommitWithoutResponse(t *testing.T) {
	lost := status.Error(codes.Unavailable, "the connection was lost")
	for name, c := range map[string]struct {
		errors []error
		known  bool
	}{
		"committed": {[]error{lost, lost}, true},
		"unknown":   {[]error{lost, refused(codes.FailedPrecondition, "NOT_ACTIVE")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newStore("q").open()
				n.commitErrors = c.errors
				s, _, stop := serveFor(t, n, inMemory)
				defer stop()
				p := dialAs(t, s, "c", wire.Fields{{Key: wire.Symbol("product"), Value: "QpidJMS"}})
				p.attachSender(0, &wire.Coordinator{})
				p.attachSender(1, &wire.Node{Address: "q"})
				id := p.declare(0, 0)
				p.write(transfers(1, 1, 1, true, &wire.TransactionalState{TxnID: id}))
				if c.known {
					require.Equal(t, wire.Accepted{}, p.discharged(0, 2, id))
				} else {
					p.write(discharge(0, 2, id))
					var f wire.Frame
					for closed := false; !closed; _, closed = f.Body.(*wire.Close) {
						require.NoError(t, p.in.Next(&f))
						d, ok := f.Body.(*wire.Disposition)
						require.False(t, ok && d.Role == wire.RoleReceiver && d.First == 2, "it may have been committed")
					}
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				require.Len(t, n.commits, len(c.errors)+btoi(c.known))
				for i, commit := range n.commits {
					require.Equal(t, i > 0, commit.GetProducer().GetRetry())
					require.Equal(t, n.commits[0].GetProducer().GetId(), commit.GetProducer().GetId())
				}
			})
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
