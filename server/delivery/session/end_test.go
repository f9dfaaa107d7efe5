// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// End returns even if each task of the session waits for a commit that requires a missing standby. None of these
// commits is applied, and their outcome is unknown.
func TestEndWhileCommitsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFixture(t)
		for _, task := range waitingTasks {
			task.prepare(f)
		}
		// From here on, no transaction is committed, because the required standby never connects.
		f.primary.Configure(replication.PrimaryConfig{
			Config: 2, Serve: true, RequireStandby: true,
			Standby: replication.Member{Node: uuid.New(), Store: uuid.New(), Incarnation: 1}, Requirement: 1,
		})
		before := f.store.End().LSN
		applied := f.store.Applied()
		s := NewSession(f.primary, f.store, Options{Limits: config.Default().Limits}, zap.NewNop())
		s.Prepared.SetTimeout(time.Second)
		var names []string
		for _, task := range waitingTasks {
			if task.begin != nil {
				task.begin(f, s)
				continue
			}
			names = append(names, task.name)
		}
		require.ElementsMatch(t, s.expiry.Tasks(), names, "the cases differ from the tasks of the runner")
		time.Sleep(10 * time.Second) //nolint:forbidigo // the clock is that of synctest
		synctest.Wait()

		waiting := f.logged(before + 1)
		for _, task := range waitingTasks {
			require.Contains(t, waiting, task.waits, task.name)
		}
		require.Len(t, waiting, len(waitingTasks), "each task waits for one commit: %v", waiting)

		reason := errors.New("another node is active")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.End(reason)
		}()
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("a task waits for its commit until the primary stops")
		}
		f.primary.Stop()
		<-ended
		<-s.Ended()
		require.Equal(t, reason, s.Reason())
		require.Equal(t, applied, f.store.Applied())
		require.Equal(t, before+uint64(len(waitingTasks)), f.store.End().LSN, "nothing was logged before the end")
	})
}

// waitingTask is work of a session that runs in a goroutine for which End waits.
type waitingTask struct {
	name string
	// prepare commits the data of the task.
	prepare func(f *fixture)
	// begin starts the task in the session. It is nil for a task of package expiry.
	begin func(f *fixture, s *Session)
	// waits is the name, as returned by fixture.logged, of the transaction for which the task waits.
	waits string
}

var waitingTasks = []waitingTask{
	{
		name: "retention", waits: "seek retained",
		prepare: func(f *fixture) {
			id := f.queue("retained", txn.Config{RetentionMessages: 1})
			f.publish(id, nil, 3)
			f.commit(func(b *txn.Builder) { b.Ack(id, 1, dispatch.Range{First: 1, Last: 3}) })
		},
	},
	{
		name: "overflow", waits: "move full",
		prepare: func(f *fixture) {
			id := f.queue("full", txn.Config{
				MaxMessages: 1, Overflow: txn.OverflowDeadLetterHead, DeadLetter: f.dead,
			})
			f.publish(id, nil, 1)
			f.publish(id, nil, 1)
		},
	},
	{
		name: "delete temporary queues", waits: "delete temporary",
		prepare: func(f *fixture) { f.queue("temporary", txn.Config{TemporaryGrace: 1000}) },
	},
	{
		name: "delayed messages", waits: "due 1 delayed",
		prepare: func(f *fixture) {
			f.publish(f.queue("delayed", txn.Config{}), &txn.Attributes{DeliverAtMS: nowMS() + 1000}, 1)
		},
	},
	{
		name: "expired messages", waits: "due 2 expired",
		prepare: func(f *fixture) {
			f.publish(f.queue("expired", txn.Config{}), &txn.Attributes{ExpiresAtMS: nowMS() + 1000}, 1)
		},
	},
	{
		name: "TTL of queues", waits: "due 3 ttl",
		prepare: func(f *fixture) { f.publish(f.queue("ttl", txn.Config{TTL: 1000}), nil, 1) },
	},
	{
		name: "roll back expired prepared transactions", waits: "rollback x",
		prepare: func(f *fixture) {
			id := f.queue("prepared", txn.Config{})
			f.publish(id, nil, 1)
			var inner txn.Builder
			inner.Begin(nil, nowMS(), nil)
			inner.Take(id, 1, dispatch.Range{First: 1, Last: 1}) // redelivered by dispatch.Registry.Return
			payload, err := inner.Finish()
			require.NoError(f.t, err)
			f.commit(func(b *txn.Builder) { b.Prepare("x", payload) })
		},
	},
	{
		name: "acknowledgements of a consumer", waits: "ack acked",
		prepare: func(f *fixture) { f.publish(f.queue("acked", txn.Config{}), nil, 1) },
		begin: func(f *fixture, s *Session) {
			f.receiveAndSettle(s, "acked", dispatch.Outcomes{Acks: []dispatch.Range{{First: 1, Last: 1}}})
		},
	},
	{
		name: "messages requeued by a consumer", waits: "release nacked",
		prepare: func(f *fixture) { f.publish(f.queue("nacked", txn.Config{}), nil, 1) },
		begin: func(f *fixture, s *Session) {
			f.receiveAndSettle(s, "nacked", dispatch.Outcomes{Nacks: []dispatch.Range{{First: 1, Last: 1}}})
		},
	},
	{
		name: "dead letters of a consumer", waits: "move rejected",
		prepare: func(f *fixture) { f.publish(f.queue("rejected", txn.Config{DeadLetter: f.dead}), nil, 1) },
		begin: func(f *fixture, s *Session) {
			f.receiveAndSettle(s, "rejected", dispatch.Outcomes{Rejects: []dispatch.Range{{First: 1, Last: 1}}})
		},
	},
}

func nowMS() int64 { return time.Now().UnixMilli() }

// fixture is an active node without a standby.
type fixture struct {
	t       *testing.T
	store   *store.Store
	primary *replication.Primary
	dead    uint64 // ID of a dead-letter queue
	names   map[uint64]string
}

func startFixture(t *testing.T) *fixture {
	t.Helper()
	s, err := store.Open(store.Options{FS: memfs.New(), Dir: "/data", MemoryBudget: store.MinMemoryBudget})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	p, err := replication.StartPrimary(replication.PrimaryOptions{
		Store: s, Term: 1, Config: replication.PrimaryConfig{Config: 1, Serve: true},
	})
	require.NoError(t, err)
	t.Cleanup(p.Stop)
	f := &fixture{t: t, store: s, primary: p, names: make(map[uint64]string)}
	f.dead = f.queue("dead", txn.Config{})
	return f
}

func (f *fixture) commit(fill func(b *txn.Builder)) *txn.Result {
	f.t.Helper()
	var b txn.Builder
	b.Begin(nil, nowMS(), nil)
	fill(&b)
	payload, err := b.Finish()
	require.NoError(f.t, err)
	result, err := f.primary.Commit(f.t.Context(), payload)
	require.NoError(f.t, err)
	require.NoError(f.t, result.Err())
	return result
}

// queue creates a queue with one subscription.
func (f *fixture) queue(name string, c txn.Config) uint64 {
	f.t.Helper()
	id := f.commit(func(b *txn.Builder) { b.CreateQueue(name, c, "s") }).Ops[0].ID
	f.names[id] = name
	return id
}

func (f *fixture) publish(id uint64, a *txn.Attributes, n int) {
	f.t.Helper()
	f.commit(func(b *txn.Builder) {
		b.BeginPublish(id)
		for range n {
			b.MessageWith(nowMS(), a, nil, []byte("x"))
		}
		b.EndPublish()
	})
}

// receiveAndSettle receives a message of a queue and settles it.
func (f *fixture) receiveAndSettle(s *Session, name string, outcomes dispatch.Outcomes) {
	f.t.Helper()
	for id := range f.names {
		if f.names[id] != name {
			continue
		}
		c, err := s.Consumers.Attach(dispatch.Key{Queue: id, Sub: 1}, "", nil)
		require.NoError(f.t, err)
		f.t.Cleanup(c.Close)
		require.NoError(f.t, c.AddCredit(1))
		event, err := c.Next(f.t.Context())
		require.NoError(f.t, err)
		require.Len(f.t, event.Messages, 1)
		require.NoError(f.t, c.Settle(f.t.Context(), outcomes))
	}
}

// logged returns the names of the transactions in the log, starting at an LSN.
func (f *fixture) logged(from uint64) (all []string) {
	f.t.Helper()
	r, err := f.store.ReadLog(from)
	require.NoError(f.t, err)
	for {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(f.t, err)
		if record.Kind == wal.KindTxn {
			all = append(all, f.describe(record.Payload))
		}
	}
}

// describe returns the name of a transaction with one operation.
func (f *fixture) describe(payload []byte) string {
	f.t.Helper()
	var r txn.Reader
	require.NoError(f.t, r.Reset(payload))
	op, err := r.Next()
	require.NoError(f.t, err)
	queue := f.names[op.Queue]
	switch op.Code {
	case txn.OpSeek:
		return "seek " + queue
	case txn.OpMove:
		return "move " + queue
	case txn.OpDeleteQueue:
		return "delete " + queue
	case txn.OpAck:
		return "ack " + queue
	case txn.OpRelease:
		return "release " + queue
	case txn.OpRollbackPrepared:
		return "rollback " + string(op.Name)
	case txn.OpDue:
		for due := range op.Dues {
			return fmt.Sprintf("due %d %s", due.Kind, f.names[due.Queue])
		}
	}
	return fmt.Sprintf("operation %d in %q", op.Code, queue)
}
