// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

func (n *node) site(c txn.SiteChange) txn.Result {
	n.t.Helper()
	return n.commit(func(b *txn.Builder) { b.Site(c) })
}

// envelope commits a transaction of the primary with number as its LSN and logical number.
func (n *node) envelope(number uint64, payload []byte) txn.Result {
	n.t.Helper()
	require.NoError(n.t, n.appendTxn(txn.AppendSite(nil, &txn.Site{
		Lineage: uuid.Max, Epoch: 1, Upstream: lsn.Position{Term: 1, LSN: number}, Logical: number,
	}, payload)))
	return n.applyAll()
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// The site state survives a crash and a snapshot. Changes of role, epoch and lineage are signaled. New positions are
// not signaled.
func TestSite(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, options(mem))
	n.commit(createQueue)
	require.Equal(t, queue.SiteState{}, n.s.Site())
	changed := n.s.SiteChanged()
	require.Equal(t, changed, n.s.SiteChanged())
	require.Equal(t, txn.OK, n.site(txn.SiteChange{
		Action: txn.SiteFollow, Lineage: uuid.Max, Epoch: 1, Upstream: lsn.Position{Term: 1, LSN: 99}, Logical: 99,
	}).Code)
	require.True(t, closed(changed))
	require.Equal(t, queue.SiteReplica, n.s.Site().Role)

	changed = n.s.SiteChanged()
	require.False(t, closed(changed))
	put := encode(t, nil, func(b *txn.Builder) { b.PutMeta("k", nil) })
	require.Equal(t, txn.OK, n.envelope(100, put).Code)
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	require.Equal(t, txn.OK, n.envelope(101, put).Code)
	require.Equal(t, txn.ErrSiteChange, n.site(txn.SiteChange{Action: txn.SiteStop, Expected: 1}).Code)
	require.False(t, closed(changed), "role, epoch and lineage are unchanged")
	want := n.s.Site()
	require.Equal(t, uint64(101), want.Upstream.LSN)
	require.Equal(t, uint64(101), want.Logical)

	again := openNode(t, options(mem.CrashClone(crashRand(rand.New(rand.NewPCG(1, 1))))))
	require.Equal(t, uint64(100), again.s.Site().Logical, "from the checkpoint")
	again.applyAll()
	require.Equal(t, want, again.s.Site())
	again.check()

	copied := openNode(t, options(memfs.New()))
	changed = copied.s.SiteChanged()
	_, err = n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	n.copyTo(copied)
	require.True(t, closed(changed))
	require.Equal(t, want, copied.s.Site())
	changed = copied.s.SiteChanged()
	n.copyTo(copied)
	require.False(t, closed(changed))
}

// The digests of a primary and a replica with the same transactions are equal, although their logs differ.
func TestDigestsOfSites(t *testing.T) {
	primary, replica := openNode(t, options(memfs.New())), openNode(t, options(memfs.New()))
	replica.site(txn.SiteChange{Action: txn.SiteFollow, Lineage: uuid.Max, Epoch: 1})
	for number, build := range []func(b *txn.Builder){
		createQueue,
		func(b *txn.Builder) { b.Site(txn.SiteChange{Action: txn.SiteStart, Lineage: uuid.Max}) },
		func(b *txn.Builder) { b.SwapMeta("versioned", 0, nil) },
		func(b *txn.Builder) { b.ChangeAccess(0, 0, nil) },
	} {
		payload := encode(t, nil, build)
		require.NoError(t, primary.appendTxn(payload))
		want := primary.applyAll()
		require.Equal(t, txn.OK, want.Code)
		require.Equal(t, want, replica.envelope(uint64(number+1), payload))
	}
	want, err := digestOf(t.Context(), primary.s)
	require.NoError(t, err)
	got, err := digestOf(t.Context(), replica.s)
	require.NoError(t, err)
	require.Equal(t, want.Content, got.Content)
	wants, err := primary.s.QueueDigestsAt(t.Context(), 0, 0)
	require.NoError(t, err)
	gots, err := replica.s.QueueDigestsAt(t.Context(), 0, 0)
	require.NoError(t, err)
	require.NotEqual(t, wants.LSN, gots.LSN)
	require.Equal(t, uint64(4), gots.Logical)
	gots.LSN = wants.LSN
	require.Equal(t, wants, gots)
}

// LoggedFingerprint finds a record by its logical number if this site has logged it as a primary since the last
// promotion. Otherwise it returns 0.
func TestLoggedFingerprintOfSites(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	n.commit(createQueue)
	put := encode(t, &txn.Producer{ID: []byte("p"), Epoch: 1, Sequence: 1}, func(b *txn.Builder) { b.PutMeta("k", nil) })
	require.NoError(t, n.appendTxn(put))
	first := n.applyAll()
	want := query.LoggedFingerprint(n.s, first.LSN)
	require.NotZero(t, want)

	n.site(txn.SiteChange{Action: txn.SiteFollow, Lineage: uuid.Max, Epoch: 1, Logical: 1000})
	n.envelope(2000, put)
	require.Zero(t, query.LoggedFingerprint(n.s, 2000), "a replica")
	n.site(txn.SiteChange{Action: txn.SitePromote, Expected: 1, Epoch: 2, Lossy: true})
	require.Zero(t, query.LoggedFingerprint(n.s, 2000), "applied before the promotion")
	require.Zero(t, query.LoggedFingerprint(n.s, first.LSN))
	second := encode(t, &txn.Producer{ID: []byte("p"), Epoch: 1, Sequence: 2}, func(b *txn.Builder) {
		b.PutMeta("k", nil)
	})
	require.NoError(t, n.appendTxn(second))
	r := n.applyAll()
	require.Equal(t, uint64(2002), r.LSN)
	require.Equal(t, want, query.LoggedFingerprint(n.s, r.LSN), "the request is the same")
}

// LogStart is the position before the first record, even of an empty log and after a trim.
func TestLogStart(t *testing.T) {
	o := options(memfs.New())
	o.LogKeepBytes = 1
	n := openNode(t, o)
	require.Equal(t, lsn.Position{}, n.s.LogStart())
	n.commit(createQueue)
	require.Equal(t, lsn.Position{}, n.s.LogStart())
	for n.s.FirstLSN() == 1 {
		for range 20 {
			n.publish(make([]byte, 20_000))
		}
		_, err := n.s.Checkpoint(t.Context())
		require.NoError(t, err)
		require.Less(t, n.s.End().LSN, uint64(5000))
	}
	start := n.s.LogStart()
	require.Equal(t, n.s.FirstLSN(), start.LSN+1)
	known, ok := n.s.PositionOf(start.LSN)
	require.True(t, ok)
	require.Equal(t, known, start)
	r, err := n.s.ReadLog(start.LSN + 1)
	require.NoError(t, err)
	f, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, start.LSN+1, f.Pos.LSN)

	copied := openNode(t, options(memfs.New()))
	n.copyTo(copied)
	require.Equal(t, copied.s.Applied(), copied.s.LogStart(), "after a snapshot")
}
