// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// pair is a pair with one node and the Manager of its site.
type pair struct {
	t       *testing.T
	fs      *memfs.FS
	store   *store.Store
	term    uint64
	primary *replication.Primary
	m       *Manager
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, fs: memfs.New()}
	p.start()
	t.Cleanup(p.stop)
	return p
}

func (p *pair) start() {
	p.t.Helper()
	s, err := store.Open(store.Options{FS: p.fs, Dir: "/data", MemoryBudget: store.MinMemoryBudget})
	require.NoError(p.t, err)
	p.term++
	ready := make(chan struct{})
	primary, err := replication.StartPrimary(replication.PrimaryOptions{
		Store: s, Term: p.term, Config: replication.PrimaryConfig{Config: p.term, Serve: true},
		Events: func(e replication.Event) {
			if _, is := e.(replication.ActiveReady); is {
				close(ready)
			}
		},
	})
	require.NoError(p.t, err)
	<-ready
	p.store, p.primary = s, primary
	p.m = New(Options{
		Name: "test", Store: s, Logger: zap.NewNop(), Addresses: func() []string { return nil },
		Supported: func() error { return nil }, NotActive: func() error { return replication.ErrNotActive },
		Changed: func() {},
	})
	p.m.Activate(primary)
}

func (p *pair) stop() {
	p.t.Helper()
	p.m.Deactivate()
	p.primary.Stop()
	require.NoError(p.t, p.store.Close())
}

// restart simulates a new process on the same disk.
func (p *pair) restart() {
	p.t.Helper()
	p.stop()
	p.start()
}

// setServing sets whether the pair accepts transactions.
func (p *pair) setServing(serving bool) {
	p.primary.Configure(replication.PrimaryConfig{Config: p.term, Serve: serving})
}

func (p *pair) change(c txn.SiteChange) {
	p.t.Helper()
	require.NoError(p.t, p.m.change(p.t.Context(), p.primary, c))
}

func (p *pair) write() {
	p.t.Helper()
	payload, err := txn.Build(time.Now(), func(b *txn.Builder) { b.PutMeta("k", nil) })
	require.NoError(p.t, err)
	r, err := p.primary.Commit(p.t.Context(), payload)
	require.NoError(p.t, err)
	require.NoError(p.t, r.Err())
}

// framesAfter returns a response with the applied log after a position.
func (p *pair) framesAfter(at lsn.Position) *pb.PullLogResponse {
	p.t.Helper()
	r, err := p.store.ReadLog(at.LSN + 1)
	require.NoError(p.t, err)
	frames, last, _, err := r.ReadBatch(1 << 20)
	require.NoError(p.t, err)
	require.Equal(p.t, p.store.Applied(), last)
	return &pb.PullLogResponse{Frames: frames}
}

// pull creates a puller that continues at the stored position of a replica.
func (p *pair) pull() *puller {
	p.t.Helper()
	st := p.store.Site()
	pull, err := newPuller(p.primary, &p.m.progress, &st, st.Upstream)
	require.NoError(p.t, err)
	p.m.setPuller(pull)
	return pull
}

// twoPairs returns a primary, a replica that has applied the whole log of the primary, and the puller of the
// replica.
func twoPairs(t *testing.T) (primary, replica *pair, pull *puller) {
	t.Helper()
	primary, replica = newPair(t), newPair(t)
	primary.change(txn.SiteChange{Action: txn.SiteStart, Lineage: uuid.Max})
	replica.change(txn.SiteChange{Action: txn.SiteFollow, Lineage: uuid.Max, Epoch: 1})
	pull = replica.pull()
	primary.write()
	require.NoError(t, pull.take(t.Context(), primary.framesAfter(lsn.Position{})))
	require.NoError(t, pull.awaitRecord(t.Context(), primary.store.Applied()))
	require.Equal(t, primary.store.Applied(), replica.store.Site().Upstream)
	return primary, replica, pull
}

func takeover(end lsn.Position) *pb.TakeoverRequest {
	return &pb.TakeoverRequest{
		Lineage: uuid.Max.String(), Epoch: 1, End: positionToProto(end), Timeout: durationpb.New(time.Minute),
	}
}

func cancelTakeover(end lsn.Position) *pb.CancelTakeoverRequest {
	return &pb.CancelTakeoverRequest{Lineage: uuid.Max.String(), Epoch: 1, End: positionToProto(end)}
}

// Transactions that the replica's pair rejects do not count as applied. A takeover that waits for them fails.
func TestRejectedTransactionsAreNotApplied(t *testing.T) {
	synctest.Test(t, testRejectedTransactionsAreNotApplied)
}

func testRejectedTransactionsAreNotApplied(t *testing.T) {
	primary, replica, pull := twoPairs(t)
	before := primary.store.Applied()
	primary.write()
	primary.change(txn.SiteChange{Action: txn.SiteStop})
	end := primary.store.Applied()
	waited := make(chan error, 1)
	go func() { waited <- pull.awaitRecord(t.Context(), end) }()
	synctest.Wait()

	replica.setServing(false)
	require.ErrorIs(t, pull.take(t.Context(), primary.framesAfter(before)), replication.ErrBlocked)
	require.ErrorIs(t, <-waited, replication.ErrBlocked)
	require.ErrorIs(t, pull.awaitRecord(t.Context(), end), replication.ErrBlocked)
}

// A takeover waits for the record that stops the primary. It fails if the replica's pair rejects that record. A
// later attempt succeeds.
func TestTakeoverOfBlockedPair(t *testing.T) { synctest.Test(t, testTakeoverOfBlockedPair) }

func testTakeoverOfBlockedPair(t *testing.T) {
	primary, replica, pull := twoPairs(t)
	before := primary.store.Applied()
	primary.change(txn.SiteChange{Action: txn.SiteStop})
	end := primary.store.Applied()
	failed := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := replica.m.Takeover(ctx, takeover(end))
		failed <- err
	}()
	synctest.Wait()
	replica.setServing(false)
	require.ErrorIs(t, pull.take(t.Context(), primary.framesAfter(before)), replication.ErrBlocked)
	synctest.Wait()
	replica.setServing(true) // the stop is still not applied
	cancel()
	require.Error(t, <-failed)
	require.Equal(t, queue.SiteReplica, replica.store.Site().Role)

	require.NoError(t, replica.pull().take(t.Context(), primary.framesAfter(before)))
	st, err := replica.m.Takeover(t.Context(), takeover(end))
	require.NoError(t, err)
	require.EqualValues(t, 2, st.GetEpoch())
	require.Zero(t, st.GetLossyEpoch())
	require.Equal(t, queue.SitePrimary, replica.store.Site().Role)
}

// A takeover is refused unless its record is the last stop that the store has applied.
func TestTakeoverOfOtherRecord(t *testing.T) {
	primary, replica, pull := twoPairs(t)
	refused := func(end lsn.Position) {
		t.Helper()
		_, err := replica.m.Takeover(t.Context(), takeover(end))
		require.ErrorIs(t, err, apierror.ErrSiteSwitch)
		require.Equal(t, queue.SiteReplica, replica.store.Site().Role)
	}
	at := primary.store.Applied()
	refused(at) // the record is not a stop
	primary.change(txn.SiteChange{Action: txn.SiteStop})
	first := primary.store.Applied()
	primary.change(txn.SiteChange{Action: txn.SiteResume})
	require.NoError(t, pull.take(t.Context(), primary.framesAfter(at)))
	require.NoError(t, pull.awaitRecord(t.Context(), primary.store.Applied()))
	refused(first)                   // the primary has resumed
	refused(primary.store.Applied()) // the record is the resume itself
	at = primary.store.Applied()
	primary.change(txn.SiteChange{Action: txn.SiteStop})
	require.NoError(t, pull.take(t.Context(), primary.framesAfter(at)))
	require.NoError(t, pull.awaitRecord(t.Context(), primary.store.Applied()))
	refused(first) // the record is an earlier stop
	_, err := replica.m.Takeover(t.Context(), takeover(primary.store.Applied()))
	require.NoError(t, err)
}

// A takeover request that arrives after its cancellation is refused. A later process of the replica also refuses it,
// even if that process has not received the resume of the primary.
func TestDelayedTakeover(t *testing.T) {
	for name, c := range map[string]struct{ canceled, early, resumed bool }{
		"not canceled":                         {},
		"canceled":                             {canceled: true},
		"canceled before the stop is received": {canceled: true, early: true},
		"resume received":                      {canceled: true, resumed: true},
	} {
		t.Run(name, func(t *testing.T) {
			primary, replica, pull := twoPairs(t)
			cancel := func(end lsn.Position) {
				st, err := replica.m.CancelTakeover(t.Context(), cancelTakeover(end))
				require.NoError(t, err)
				require.Equal(t, pb.SiteRole_SITE_ROLE_REPLICA, st.GetRole())
				require.EqualValues(t, 1, st.GetEpoch())
			}
			before := primary.store.Applied()
			primary.change(txn.SiteChange{Action: txn.SiteStop})
			end := primary.store.Applied()
			if c.early {
				cancel(end)
			}
			require.NoError(t, pull.take(t.Context(), primary.framesAfter(before)))
			require.NoError(t, pull.awaitRecord(t.Context(), end))
			if c.canceled && !c.early {
				cancel(end)
				cancel(end)
			}
			if c.canceled {
				primary.change(txn.SiteChange{Action: txn.SiteResume})
				primary.write()
			}
			if c.resumed {
				require.NoError(t, pull.take(t.Context(), primary.framesAfter(end)))
				require.NoError(t, pull.awaitRecord(t.Context(), primary.store.Applied()))
			}
			replica.restart()
			replica.pull()
			_, err := replica.m.Takeover(t.Context(), takeover(end))
			if !c.canceled {
				require.NoError(t, err)
				require.Equal(t, queue.SitePrimary, replica.store.Site().Role)
				return
			}
			require.ErrorIs(t, err, apierror.ErrSiteSwitch)
			require.Equal(t, queue.SiteReplica, replica.store.Site().Role)
		})
	}
}

// A cancellation is confirmed only when the replica's pair has committed it. It is not confirmed for an epoch
// that the pair does not follow yet.
func TestCancelIsDurable(t *testing.T) {
	primary, replica, _ := twoPairs(t)
	primary.change(txn.SiteChange{Action: txn.SiteStop})
	end := primary.store.Applied()
	replica.setServing(false)
	_, err := replica.m.CancelTakeover(t.Context(), cancelTakeover(end))
	require.ErrorIs(t, err, replication.ErrBlocked)
	require.Zero(t, replica.store.Site().CanceledLSN)
	replica.setServing(true)
	later := cancelTakeover(end)
	later.Epoch = 2
	_, err = replica.m.CancelTakeover(t.Context(), later)
	require.ErrorIs(t, err, apierror.ErrSiteRole)
	_, err = replica.m.CancelTakeover(t.Context(), cancelTakeover(end))
	require.NoError(t, err)
	require.Equal(t, end.LSN, replica.store.Site().CanceledLSN)
}
