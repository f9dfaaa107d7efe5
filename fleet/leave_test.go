// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// keys returns the keys of the directory, without its prefix.
func keys(t *testing.T, client *clientv3.Client) (names []string) {
	t.Helper()
	resp, err := client.Get(t.Context(), "/test/", clientv3.WithPrefix())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		names = append(names, strings.TrimPrefix(string(kv.Key), "/test/"))
	}
	return names
}

// stateOf returns the state of a pair in etcd; "" if it is not registered.
func stateOf(t *testing.T, client *clientv3.Client, name string) State {
	t.Helper()
	resp, err := client.Get(t.Context(), "/test/pairs/"+name)
	require.NoError(t, err)
	if len(resp.Kvs) == 0 {
		return ""
	}
	m, err := decodeMember(name, resp.Kvs[0].Value)
	require.NoError(t, err)
	return m.State
}

// second returns Queues that calls f in its second call.
func (p *pair) second(f func()) Queues {
	calls := 0
	return func(ctx context.Context) (iter.Seq2[string, uint64], error) {
		if calls++; calls == 2 {
			f()
		}
		return p.list(ctx)
	}
}

// A pair without queues leaves with its entries and groups. Nothing registers it again but Join.
func TestLeave(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	p := pairs(t, client, "a", "b")
	a, b := p[0], p[1]
	require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: "*a*", Pair: "a"}))
	require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: "*b*", Pair: "b"}))
	for _, q := range []string{"a-queue", "a-creation{a}"} {
		o, err := a.Assign(t.Context(), q, "")
		require.NoError(t, err)
		require.Equal(t, "a", o.Pair)
		if q == "a-queue" {
			a.create(q, o.Epoch)
		}
	}
	for _, q := range []string{"a-unclaimed", "b-queue{b}"} {
		o, err := b.Assign(t.Context(), q, "")
		require.NoError(t, err)
		if o.Pair == "b" {
			b.create(q, o.Epoch)
		}
	}
	before := keys(t, client)
	require.ErrorIs(t, a.Leave(t.Context(), a.list), ErrOwnsQueues)
	require.Equal(t, before, keys(t, client))
	require.Equal(t, StateOpen, stateOf(t, client, "a"))

	delete(a.queues, "a-queue")
	require.NoError(t, a.Leave(t.Context(), a.list))
	left := []string{
		"counter", "fleet", "groups/b", "load/b", "pairs/b", "queues/b-queue{b}", "rules/*a*", "rules/*b*",
	}
	require.Equal(t, left, keys(t, client))

	// The log still contains the membership.
	report, err := a.Reconcile(t.Context(), a.list, nil)
	require.NoError(t, err)
	require.Equal(t, Report{Epochs: map[string]uint64{}}, report)
	require.NoError(t, a.PutLoad(t.Context(), Load{}))
	require.ErrorIs(t, a.UpdateMember(t.Context(), a.member()), ErrNotMember)
	require.ErrorIs(t, a.SetState(t.Context(), "a", StateOpen), ErrNotMember)
	_, err = a.Assign(t.Context(), "a-other", "")
	require.ErrorIs(t, err, ErrNoPair)
	require.NoError(t, a.Leave(t.Context(), a.list))
	require.Equal(t, left, keys(t, client))

	a.join(t)
	require.Equal(t, StateOpen, stateOf(t, client, "a"))
	_, err = a.Assign(t.Context(), "a-other", "")
	require.NoError(t, err)
}

// The last pair leaves with its queues, and the directory is deleted.
func TestLeaveOfLastPair(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	p := pairs(t, client, "a", "b")
	a, b := p[0], p[1]
	require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: "*", Pair: "a"}))
	o, err := a.Assign(t.Context(), "q{g}", "")
	require.NoError(t, err)
	a.create("q{g}", o.Epoch)
	require.ErrorIs(t, a.Leave(t.Context(), a.list), ErrOwnsQueues)
	require.NoError(t, b.Leave(t.Context(), b.list))
	require.NoError(t, a.Leave(t.Context(), a.list))
	require.Empty(t, keys(t, client))

	// The log of both still contains the membership.
	require.NoError(t, b.Leave(t.Context(), b.list))
	require.ErrorIs(t, a.Leave(t.Context(), a.list), ErrLost, "the fleet may have other pairs")
	_, err = a.Reconcile(t.Context(), a.list, nil)
	require.ErrorIs(t, err, ErrLost)
	require.NoError(t, a.PutLoad(t.Context(), Load{}))
	require.Empty(t, keys(t, client))
	b.set(func(s *PairState) { s.FleetID = "" })
	b.join(t) // creates another fleet
	require.ErrorIs(t, a.Leave(t.Context(), a.list), ErrLost)
	a.queues = map[string]uint64{}
	require.NoError(t, a.Leave(t.Context(), a.list))
	require.Equal(t, []string{"counter", "fleet", "load/b", "pairs/b"}, keys(t, client))
}

// While a pair leaves, no queues are assigned to it. If it has a queue afterwards, it remains in its previous state.
func TestLeaveWhileQueuesAreCreated(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	p := pairs(t, client, "a", "b")
	a, b := p[0], p[1]
	require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: "a*", Pair: "a"}))
	_, err := b.Assign(t.Context(), "a{g}unclaimed", "")
	require.NoError(t, err)
	require.NoError(t, a.SetState(t.Context(), "a", StateDraining))
	err = a.Leave(t.Context(), a.second(func() {
		require.Equal(t, StateLeaving, stateOf(t, client, "a"))
		require.ErrorIs(t, a.UpdateMember(t.Context(), a.member()), ErrNotMember)
		_, err := a.Assign(t.Context(), "a{g}unclaimed", "") // the entry exists
		require.ErrorIs(t, err, ErrNoPair)
		_, err = b.Assign(t.Context(), "{g}", "") // the group exists
		require.ErrorIs(t, err, ErrNoPair)
		_, err = b.Assign(t.Context(), "a", "")
		require.ErrorIs(t, err, ErrNoPair)
		a.create("in progress", 1)
	}))
	require.ErrorIs(t, err, ErrOwnsQueues)
	require.Equal(t, StateDraining, stateOf(t, client, "a"))
	_, err = a.Assign(t.Context(), "a{g}unclaimed", "")
	require.NoError(t, err)
}

// An attempt to leave ends if the state is changed, if the pair joins again, or if it has queues in the next attempt.
func TestLeaveEnded(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	a := pairs(t, client, "a", "b")[0]
	err := a.Leave(t.Context(), a.second(func() {
		require.NoError(t, a.SetState(t.Context(), "a", StateOpen))
	}))
	require.ErrorIs(t, err, ErrContention)
	require.Equal(t, StateOpen, stateOf(t, client, "a"))

	mark := func() { // the state after a crash
		m := a.member()
		m.ID, m.State = "id-a", StateLeaving
		_, err := client.Put(t.Context(), "/test/pairs/a", encode(m))
		require.NoError(t, err)
	}
	mark()
	a.join(t)
	require.Equal(t, StateOpen, stateOf(t, client, "a"))
	mark()
	a.create("q", 0)
	require.ErrorIs(t, a.Leave(t.Context(), a.list), ErrOwnsQueues)
	require.Equal(t, StateDraining, stateOf(t, client, "a"))
	mark()
	delete(a.queues, "q")
	require.NoError(t, a.Leave(t.Context(), a.list))
	require.Empty(t, stateOf(t, client, "a"))
}

// Of two pairs that leave concurrently, the second one deletes the directory.
func TestLeaveOfTwoPairs(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	p := pairs(t, client, "a", "b")
	require.NoError(t, p[0].Leave(t.Context(), p[0].second(func() {
		require.NoError(t, p[1].Leave(t.Context(), p[1].list))
		require.Equal(t, StateLeaving, stateOf(t, client, "a"))
	})))
	require.Empty(t, keys(t, client))
}

// A pair that is not a member deletes its registration, although it has queues and the directory is being rebuilt.
func TestLeaveOfNonMember(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	p := pairs(t, client, "a", "b", "c")
	a, b := p[0], p[1]
	for _, p := range p {
		require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: p.name, Pair: p.name}))
		_, err := b.Assign(t.Context(), p.name, "")
		require.NoError(t, err)
	}
	a.set(func(s *PairState) { s.FleetID, s.MaxEpoch = "", 100 })
	b.set(func(s *PairState) { s.FleetID = "" })
	a.queues["a"], b.queues["b"] = 0, 0
	require.NoError(t, a.Leave(t.Context(), a.list))
	resp, err := client.Get(t.Context(), "/test/fleet")
	require.NoError(t, err)
	f, err := decodeFleet(resp.Kvs[0].Value)
	require.NoError(t, err)
	f.Rebuilding = true
	_, err = client.Put(t.Context(), "/test/fleet", encode(f))
	require.NoError(t, err)
	require.NoError(t, b.Leave(t.Context(), b.list))
	require.Equal(t, []string{
		"counter", "fleet", "load/c", "pairs/c", "queues/c", "rules/a", "rules/b", "rules/c",
	}, keys(t, client))
}

// A replaced active changes nothing, and does not delete an entry of its successor.
func TestLeaveOfReplacedActive(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	a := pairs(t, client, "a", "b")[0]
	require.NoError(t, a.PutRule(t.Context(), Rule{Pattern: "*", Pair: "a"}))
	replaced := func(context.Context) (iter.Seq2[string, uint64], error) { return nil, errCrash }
	require.ErrorIs(t, a.Leave(t.Context(), replaced), errCrash)
	require.Equal(t, StateOpen, stateOf(t, client, "a"))
	a.set(func(s *PairState) { s.Term = 2 })
	_, err := a.Assign(t.Context(), "q", "")
	require.NoError(t, err)
	a.set(func(s *PairState) { s.Term = 1 })
	before := keys(t, client)
	require.ErrorIs(t, a.Leave(t.Context(), a.list), ErrNotActive)
	require.Equal(t, before, keys(t, client))
	require.Equal(t, StateOpen, stateOf(t, client, "a"))
	a.set(func(s *PairState) { s.Term = 0 })
	require.ErrorIs(t, a.Leave(t.Context(), a.list), ErrNotActive)

	other := newPair(t, client, "a")
	other.opts.PairID = "other"
	other.state = a.state
	other.state.Term = 3
	require.ErrorIs(t, other.Leave(t.Context(), other.list), ErrPairExists)
	require.Equal(t, before, keys(t, client))
}

// hookKV calls commit instead of committing transactions.
type hookKV struct {
	clientv3.KV
	commit func(clientv3.Txn) (*clientv3.TxnResponse, error)
}

func (kv *hookKV) Txn(ctx context.Context) clientv3.Txn { return &hookTxn{kv.KV.Txn(ctx), kv.commit} }

// hooked returns another Directory of the pair, with transactions that the test commits.
func (p *pair) hooked(
	t *testing.T, client *clientv3.Client, commit func(clientv3.Txn) (*clientv3.TxnResponse, error),
) *Directory {
	t.Helper()
	c := clientv3.NewCtxClient(t.Context())
	c.Lease, c.KV = client.Lease, &hookKV{client.KV, commit}
	return p.open(t, c)
}

// leaveWith calls Leave of pair m several times, each in a new fleet. In call i, it calls act before transaction i, and
// then check with the error of Leave.
func leaveWith(
	t *testing.T, client *clientv3.Client, others []string,
	act func(m *pair, others []*pair), check func(m *pair, err error),
) {
	t.Helper()
	for at := 0; ; at++ {
		_, err := client.Delete(t.Context(), "/test/", clientv3.WithPrefix())
		require.NoError(t, err)
		all := pairs(t, client, append([]string{"m"}, others...)...)
		m := all[0]
		require.NoError(t, m.PutRule(t.Context(), Rule{Pattern: "*", Pair: "m"}))
		n := 0
		d := m.hooked(t, client, func(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
			if n++; n == at+1 {
				act(m, all[1:])
			}
			return txn.Commit()
		})
		if len(others) == 0 { // the last pair may have queues
			o, err := m.Assign(t.Context(), "q", "")
			require.NoError(t, err)
			m.create("q", o.Epoch)
		} else {
			_, err := all[1].Assign(t.Context(), "q", "")
			require.NoError(t, err)
		}
		err = d.Leave(t.Context(), m.list)
		if n <= at {
			require.NotZero(t, at)
			return
		}
		check(m, err)
	}
}

// Of two pairs that leave at any time, the second one deletes the directory.
func TestOtherPairLeaves(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	leaveWith(t, client, []string{"b"}, func(_ *pair, others []*pair) {
		require.NoError(t, others[0].Leave(t.Context(), others[0].list))
	}, func(_ *pair, err error) {
		require.NoError(t, err)
		require.Empty(t, keys(t, client))
	})
}

// The last pair does not delete the directory if another pair joins in the meantime.
func TestOtherPairJoins(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	for _, name := range []string{"b", "z"} { // before and after the name of the pair
		leaveWith(t, client, nil, func(*pair, []*pair) {
			newPair(t, client, name).join(t)
		}, func(_ *pair, err error) {
			require.ErrorIs(t, err, ErrOwnsQueues)
			require.Equal(t, StateOpen, stateOf(t, client, name))
			require.Equal(t, StateOpen, stateOf(t, client, "m"))
		})
	}
}

// If the attempt to leave is ended at any time, the pair may have queues again. Leave deletes neither their entries nor
// the pair, even if another attempt has begun.
func TestLeaveEndedAtAnyTime(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	for _, again := range []bool{false, true} {
		created := 0
		leaveWith(t, client, []string{"b"}, func(m *pair, _ []*pair) {
			if errors.Is(m.SetState(t.Context(), "m", StateOpen), ErrNotMember) {
				return // Leave has deleted the pair
			}
			o, err := m.Assign(t.Context(), "q", "")
			require.NoError(t, err)
			require.Equal(t, "m", o.Pair)
			m.create("q", o.Epoch)
			created++
			if again {
				value := m.member()
				value.ID, value.State = "id-m", StateLeaving
				_, err := client.Put(t.Context(), "/test/pairs/m", encode(value))
				require.NoError(t, err)
			}
		}, func(m *pair, err error) {
			epoch, exists := m.queues["q"]
			if !exists {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			require.NotEmpty(t, stateOf(t, client, "m"))
			all, _, err := m.entries(t.Context())
			require.NoError(t, err)
			require.Equal(t, epoch, all["q"].Epoch)
		})
		require.Greater(t, created, 4)
	}
}

// A claim fails if the pair begins to leave.
func TestLeaveDuringClaim(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	p := pairs(t, client, "a", "b")
	require.NoError(t, p[0].PutRule(t.Context(), Rule{Pattern: "*", Pair: "a"}))
	first, err := p[1].Assign(t.Context(), "q", "")
	require.NoError(t, err)
	n := 0
	a := p[0].hooked(t, client, func(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
		if n++; n == 2 { // after the entry was read
			m := p[0].member()
			m.ID, m.State = "id-a", StateLeaving
			_, err := client.Put(t.Context(), "/test/pairs/a", encode(m))
			require.NoError(t, err)
		}
		return txn.Commit()
	})
	_, err = a.Assign(t.Context(), "q", "")
	require.ErrorIs(t, err, ErrNoPair)
	all, _, err := a.entries(t.Context())
	require.NoError(t, err)
	require.Equal(t, first.Epoch, all["q"].Epoch)
}

// If a response is lost, Leave continues, or restores the state of the pair.
func TestLeaveWithLostResponse(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	for _, others := range [][]string{nil, {"b"}} {
		for at := 0; ; at++ {
			_, err := client.Delete(t.Context(), "/test/", clientv3.WithPrefix())
			require.NoError(t, err)
			m := pairs(t, client, append([]string{"m"}, others...)...)[0]
			if others == nil {
				m.queues["q"] = 1
			}
			n := 0
			d := m.hooked(t, client, func(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
				resp, err := txn.Commit()
				if n++; n == at+1 {
					err = errLostMessage
				}
				return resp, err
			})
			err = d.Leave(t.Context(), m.list)
			if err == nil || others == nil {
				require.NoError(t, err)
				require.Empty(t, stateOf(t, client, "m"))
			} else {
				require.Equal(t, StateOpen, stateOf(t, client, "m"))
			}
			if n <= at {
				break
			}
		}
	}
}
