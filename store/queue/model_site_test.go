// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/tier"
)

var lineage = uuid.UUID{7, 15: 7}

// siteNode is a node of one site, with the results of its records.
type siteNode struct {
	*replica

	results map[uint64]txn.Result // by logical number
}

func newSiteNode(t *testing.T, seed uint64) *siteNode {
	t.Helper()
	return &siteNode{replica: newReplica(t, seed), results: map[uint64]txn.Result{}}
}

func (n *siteNode) lsn() uint64 { return uint64(len(n.log)) }

func (n *siteNode) apply(payload []byte) txn.Result {
	n.t.Helper()
	n.log = append(n.log, payload)
	r := n.state.Apply(n.lsn(), payload)
	require.NoError(n.t, n.state.ReadError())
	n.step()
	return r
}

func (n *siteNode) termStart() {
	n.log = append(n.log, nil)
	n.state.Advance(n.lsn())
}

func (n *siteNode) change(c txn.SiteChange) txn.Code {
	n.t.Helper()
	return n.apply(encode(n.t, func(b *txn.Builder) { b.Site(c) })).Code
}

// unchanged applies a record that must have no effect.
func (n *siteNode) unchanged(payload []byte, want txn.Code) {
	n.t.Helper()
	before, digest, site := withoutSite(n.state), n.state.Digest(), n.state.Site()
	require.Equal(n.t, want, n.apply(payload).Code)
	same(n.t, before, withoutSite(n.state), "a rejected record changes nothing")
	require.Equal(n.t, digest, n.state.Digest())
	require.Equal(n.t, site, n.state.Site())
}

func withoutSite(s *State) map[string][]byte {
	m := allOf(s)
	delete(m, string(keySite))
	return m
}

// position is the position of a record in a fake log.
func position(n uint64) lsn.Position {
	return lsn.Position{Term: 1 + n/50, LSN: n, Chain: uint32(n * 7)}
}

// sites is a primary and a replica.
type sites struct {
	t                *testing.T
	rng              *rand.Rand
	m                *model
	primary, replica *siteNode
	epoch            uint64
	pulled           uint64 // LSN of the primary up to which the replica has its records
	last             []byte // last envelope applied
}

func (s *sites) envelope(logical, n uint64, payload []byte) []byte {
	return txn.AppendSite(nil, &txn.Site{
		Lineage: lineage, Epoch: s.epoch, Upstream: position(n), Logical: logical,
	}, payload)
}

// commit applies the next transaction of the model to the primary.
func (s *sites) commit() {
	site := s.primary.state.Site()
	logical, ok := site.LogicalOf(s.primary.lsn() + 1)
	require.True(s.t, ok)
	payload, want := s.m.next(s.t, logical)
	got := s.primary.apply(payload)
	require.Equal(s.t, want, got, "transaction %d", logical)
	s.primary.results[logical] = got
	require.Equal(s.t, logical, s.primary.state.Site().Logical)
	if !got.Duplicate {
		n, ok := site.LSNOf(got.LSN)
		require.True(s.t, ok)
		require.Equal(s.t, s.primary.lsn(), n)
	}
}

// pull applies at most limit records of the primary to the replica.
func (s *sites) pull(limit int) {
	for ; limit > 0 && s.pulled < s.primary.lsn(); limit-- {
		s.pulled++
		payload := s.primary.log[s.pulled-1]
		if len(payload) == 0 || payload[0] == txn.SiteVersion {
			continue
		}
		site := s.primary.state.Site()
		logical, ok := site.LogicalOf(s.pulled)
		require.True(s.t, ok)
		s.last = s.envelope(logical, s.pulled, payload)
		got := s.replica.apply(s.last)
		if want, ok := s.primary.results[logical]; ok {
			require.Equal(s.t, want, got, "transaction %d", logical)
		} else {
			require.Equal(s.t, txn.OK, got.Code, "record %d has no effect", s.pulled)
		}
		require.Equal(s.t, position(s.pulled), s.replica.state.Site().Upstream)
	}
}

// disturb applies a record without an effect, or a term start, to a node.
func (s *sites) disturb() {
	client := encode(s.t, func(b *txn.Builder) { b.PutMeta("client", nil) })
	retry := encodeFrom(s.t, origin("p0", 0, 1), one)
	next := s.replica.state.Site().Logical + 1
	switch s.rng.IntN(10) {
	case 0:
		s.primary.termStart()
	case 1:
		s.replica.termStart()
	case 2:
		s.primary.unchanged(s.envelope(next, s.primary.lsn(), client), txn.ErrReplica)
	case 3:
		s.replica.unchanged(client, txn.ErrReplica)
	case 4:
		s.replica.unchanged(retry, txn.ErrReplica)
	case 5:
		if s.last != nil {
			s.replica.unchanged(s.last, txn.ErrSitePosition)
		}
	case 6:
		s.epoch++
		s.replica.unchanged(s.envelope(next, s.pulled+1, client), txn.ErrSitePosition)
		s.epoch--
	case 7:
		other := txn.Site{Lineage: uuid.Max, Epoch: s.epoch, Upstream: position(s.pulled + 1), Logical: next}
		s.replica.unchanged(txn.AppendSite(nil, &other, client), txn.ErrSitePosition)
	case 8:
		require.Equal(s.t, txn.ErrSiteChange, s.primary.change(txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}))
		require.Equal(s.t, txn.ErrSiteChange, s.replica.change(txn.SiteChange{Action: txn.SiteStop, Expected: s.epoch}))
	case 9:
		s.refusesTakeover()
	}
}

// stop stops the primary, which then rejects transactions. The primary sometimes resumes.
func (s *sites) stop() (stopped bool) {
	require.Equal(s.t, txn.OK, s.primary.change(txn.SiteChange{Action: txn.SiteStop, Expected: s.epoch}))
	for range s.rng.IntN(3) {
		s.primary.unchanged(encode(s.t, func(b *txn.Builder) { b.PutMeta("late", nil) }), txn.ErrReplica)
	}
	if s.rng.IntN(3) > 0 {
		return true
	}
	end := position(s.primary.lsn())
	s.pull(s.rng.IntN(5))
	cancel := txn.SiteChange{Action: txn.SiteCancel, Expected: s.epoch, Upstream: end}
	require.Equal(s.t, txn.OK, s.replica.change(cancel))
	s.pull(s.rng.IntN(2))
	s.refusesTakeover()
	require.Equal(s.t, txn.OK, s.primary.change(txn.SiteChange{Action: txn.SiteResume, Expected: s.epoch}))
	return false
}

func (s *sites) compare() {
	s.t.Helper()
	s.pull(1 << 20)
	same(s.t, withoutSite(s.primary.state), withoutSite(s.replica.state), "the sites are equal")
	require.Equal(s.t, s.primary.state.Digest(), s.replica.state.Digest())
	require.Equal(s.t, s.primary.messageIDs(), s.replica.messageIDs())
	require.Equal(s.t, s.primary.state.Site().Logical, s.replica.state.Site().Logical)
	s.m.check(s.t, s.replica.replica)
}

// refusesTakeover requests a promotion without loss. It must fail: the primary is not stopped, or the stop is
// canceled.
func (s *sites) refusesTakeover() {
	promote := txn.SiteChange{Action: txn.SitePromote, Expected: s.epoch, Epoch: s.epoch + 1}
	s.replica.unchanged(encode(s.t, func(b *txn.Builder) { b.Site(promote) }), txn.ErrSiteChange)
}

// swap promotes the replica, and makes the stopped primary its replica.
func (s *sites) swap() {
	before := s.replica.state.Site()
	require.Equal(s.t, txn.OK,
		s.replica.change(txn.SiteChange{Action: txn.SitePromote, Expected: s.epoch, Epoch: s.epoch + 1}))
	s.epoch++
	site := s.replica.state.Site()
	require.Equal(s.t, SitePrimary, site.Role)
	require.Equal(s.t, before.Upstream, site.Origin)
	require.Equal(s.t, before.Logical+1, site.Logical)
	require.Equal(s.t, s.replica.lsn(), site.PromotedLSN)
	s.primary, s.replica = s.replica, s.primary
	s.primary.results = map[uint64]txn.Result{}
	s.pulled, s.last = site.PromotedLSN, nil
	s.follow()
	s.m.dueIDs = s.primary.dueIDs
}

// renew promotes the stopped primary. The replica continues after the last record that it has of the stopped primary.
func (s *sites) renew() {
	require.Equal(s.t, txn.OK,
		s.primary.change(txn.SiteChange{Action: txn.SitePromote, Expected: s.epoch, Epoch: s.epoch + 1}))
	s.epoch++
	site := s.replica.state.Site()
	require.True(s.t, site.UpstreamStopped)
	require.Equal(s.t, txn.OK, s.replica.change(txn.SiteChange{
		Action: txn.SiteFollow, Lineage: lineage, Epoch: s.epoch, Upstream: site.Upstream, Logical: site.Logical,
		Stopped: true,
	}))
	s.pull(1)
	require.False(s.t, s.replica.state.Site().UpstreamStopped)
}

func (s *sites) follow() {
	require.Equal(s.t, txn.OK, s.replica.change(txn.SiteChange{
		Action: txn.SiteFollow, Lineage: lineage, Epoch: s.epoch, Upstream: position(s.pulled),
		Logical: s.primary.state.Site().Logical,
	}))
	require.Equal(s.t, SiteReplica, s.replica.state.Site().Role)
}

// TestSiteModel applies a history to a primary, and its records in envelopes to a replica. The sites change their roles
// several times. All nodes make random checkpoints and restarts.
func TestSiteModel(t *testing.T) {
	for seed := range uint64(tier.Count(3, 24)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := &sites{
				t: t, rng: rand.New(rand.NewPCG(seed, 5)), m: newModel(seed), epoch: 1,
				primary: newSiteNode(t, seed), replica: newSiteNode(t, seed+1000),
			}
			s.m.dueIDs = s.primary.dueIDs
			for range s.rng.IntN(20) {
				s.replica.termStart()
			}
			s.primary.termStart()
			require.Equal(t, txn.OK, s.primary.change(txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}))
			s.pulled = s.primary.lsn()
			s.follow()
			for range 5 {
				s.round()
			}
			require.NotZero(t, s.primary.restarts+s.replica.restarts)
		})
	}
}

func (s *sites) round() {
	for range 50 {
		s.commit()
		if s.rng.IntN(4) == 0 {
			s.disturb()
		}
		s.pull(s.rng.IntN(3))
	}
	s.compare()
	if s.stop() {
		s.compare()
		if s.rng.IntN(4) > 0 {
			s.swap()
		} else {
			s.renew()
		}
	}
	s.compare()
}

// A replica may begin empty at the first record of the primary's log.
func TestReplicaBeginsEmpty(t *testing.T) {
	primary, replica := newDriver(t), newDriver(t)
	primary.queue("q", txn.Config{}, "a")
	require.Equal(t, txn.OK, primary.site(txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}))
	primary.do(one)
	require.Equal(t, txn.OK, replica.site(txn.SiteChange{Action: txn.SiteFollow, Lineage: lineage, Epoch: 1}))
	for i, payload := range [][]byte{
		encode(t, func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "a") }),
		encode(t, func(b *txn.Builder) { b.Site(txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}) }),
		encode(t, one),
	} {
		n := uint64(i + 1)
		require.Equal(t, txn.OK, replica.envelope(txn.Site{Epoch: 1, Upstream: position(n), Logical: n}, payload).Code)
	}
	same(t, withoutSite(primary.s), withoutSite(replica.s), "the sites are equal")
	require.Equal(t, primary.s.Digest(), replica.s.Digest())
	require.True(t, maps.EqualFunc(allOf(replica.s), allOf(reloaded(replica).s), func(a, b []byte) bool {
		return string(a) == string(b)
	}))
}
