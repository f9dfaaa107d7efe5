// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func newTestOwners(t *testing.T) *owners {
	t.Helper()
	open := func(addresses []string) (*pairConn, error) {
		l, err := newLocator(Options{Addresses: addresses})
		if err == nil {
			t.Cleanup(l.close)
		}
		return &pairConn{locator: l}, err
	}
	home, err := open([]string{"a:1"})
	require.NoError(t, err)
	return newOwners(home, open)
}

// An entry with a higher epoch is retained, unless the pair that it names has returned NOT_OWNER.
func TestOwnersOfHigherEpoch(t *testing.T) {
	o := newTestOwners(t)
	require.Same(t, o.home, o.of("q"))
	learn := func(from *pairConn, pair string, epoch uint64) *pairConn {
		to, err := o.learn(from, &pb.NotOwner{Queue: "q", Pair: pair, Epoch: epoch, Addresses: []string{pair + ":1"}})
		require.NoError(t, err)
		require.Same(t, to, o.of("q"))
		return to
	}
	b := learn(o.home, "b", 5)
	require.NotSame(t, o.home, b)
	require.Same(t, b, learn(o.home, "c", 4))
	require.Same(t, b, o.pairs["b"])
	c := learn(o.home, "c", 5)
	require.NotSame(t, b, c)
	require.Same(t, c, o.pairs["c"])
	require.Same(t, o.home, learn(c, "a", 3), "the home pair is identified by an address")
	require.Same(t, b, learn(c, "b", 3))
}

// The addresses of a client can contain nodes of several pairs. A response of the home pair names another pair, even if
// the client has addresses of that pair for its home pair.
func TestOwnersWithMixedAddresses(t *testing.T) {
	o := newTestOwners(t)
	_, err := o.home.locator.node("b:1")
	require.NoError(t, err)
	learn := func(from *pairConn, pair string) *pairConn {
		to, err := o.learn(from, &pb.NotOwner{Queue: "q", Pair: pair, Epoch: 1, Addresses: []string{pair + ":1"}})
		require.NoError(t, err)
		return to
	}
	b := learn(o.home, "b")
	require.NotSame(t, o.home, b)
	require.Same(t, o.home, learn(b, "a"))
	a := learn(o.home, "a") // another node of the home pair is active now
	require.NotSame(t, o.home, a)
	require.Same(t, a, learn(b, "a"))
	require.Same(t, b, learn(a, "b"))
}

// The number of entries and of pairs is limited.
func TestOwnersAreLimited(t *testing.T) {
	o := newTestOwners(t)
	for i := range maxOwners + 100 {
		to, err := o.learn(o.home, &pb.NotOwner{Queue: fmt.Sprint(i), Pair: fmt.Sprint("p", i%maxPairs), Epoch: 1})
		require.NoError(t, err)
		require.Same(t, to, o.of(fmt.Sprint(i)))
	}
	require.Len(t, o.entries, maxOwners)
	require.Len(t, o.pairs, maxPairs)
	_, err := o.learn(o.home, &pb.NotOwner{Queue: "q", Pair: "other"})
	require.ErrorIs(t, err, ErrLimit)
	o.unavailable(o.pairs["p1"])
	require.Less(t, len(o.entries), maxOwners)
	o.prepared("x", o.pairs["p1"])
	o.unavailable(o.pairs["p1"])
	require.Same(t, o.pairs["p1"], o.of(xidKey("x")))
}

// The routes of a producer are limited to those with pending publishes.
func TestRoutesAreLimited(t *testing.T) {
	o := newTestOwners(t)
	p := &Producer{client: &Client{owners: o}, start: func(*pipeline) {}}
	p.home = p.newPipeline(o.home)
	for i := range maxOwners + 100 {
		queue := fmt.Sprint(i)
		to, err := o.learn(o.home, &pb.NotOwner{Queue: queue, Pair: "b", Epoch: 1})
		require.NoError(t, err)
		e := &Pending{queue: queue}
		require.Same(t, p.pipelineTo(to), p.routed(e))
		if i > 10 {
			p.settle(e)
		}
	}
	require.Len(t, p.routes, maxOwners)
	require.Contains(t, p.routes, "3", "has a pending publish")
}

// A transaction that is prepared at the home pair after an attempt at another pair is decided at the home pair.
func TestOwnersOfPreparedTransaction(t *testing.T) {
	o := newTestOwners(t)
	b, err := o.learn(o.home, &pb.NotOwner{Queue: "q", Pair: "b", Epoch: 5, Addresses: []string{"b:1"}})
	require.NoError(t, err)
	o.prepared("x", b)
	require.Same(t, b, o.of(xidKey("x")))
	o.prepared("x", o.home)
	require.Same(t, o.home, o.of(xidKey("x")))
}
