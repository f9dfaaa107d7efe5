// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func (d *driver) site(c txn.SiteChange) txn.Code {
	d.t.Helper()
	return d.apply(nil, func(b *txn.Builder) { b.Site(c) }).Code
}

// envelope applies a transaction of another site.
func (d *driver) envelope(site txn.Site, payload []byte) txn.Result {
	d.t.Helper()
	site.Lineage = lineage
	d.lsn++
	return d.s.Apply(d.lsn, txn.AppendSite(nil, &site, payload))
}

func encodeFrom(t *testing.T, p *txn.Producer, fill func(b *txn.Builder)) []byte {
	t.Helper()
	var b txn.Builder
	b.Begin(nil, 0, p)
	fill(&b)
	payload, err := b.Finish()
	require.NoError(t, err)
	return payload
}

func reloaded(d *driver) *driver {
	d.t.Helper()
	again := &driver{t: d.t, s: d.s, lsn: d.lsn}
	again.reload()
	return again
}

// newReplicaDriver returns a replica of epoch 3 with one queue, which has applied the transaction with number 10.
func newReplicaDriver(t *testing.T) *driver {
	t.Helper()
	d := newDriver(t)
	d.queue("q", txn.Config{}, "a")
	require.Equal(t, txn.OK, d.site(txn.SiteChange{
		Action: txn.SiteFollow, Lineage: lineage, Epoch: 3, Upstream: position(20), Logical: 9,
	}))
	payload := encodeFrom(t, origin("first", 1, 1), one)
	require.Equal(t, txn.OK, d.envelope(txn.Site{Epoch: 3, Upstream: position(21), Logical: 10}, payload).Code)
	return d
}

// Each action is valid only in some roles, and only with the expected epoch.
func TestSiteChanges(t *testing.T) {
	start := txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}
	stop := txn.SiteChange{Action: txn.SiteStop, Expected: 3}
	resume := txn.SiteChange{Action: txn.SiteResume, Expected: 3}
	promote := txn.SiteChange{Action: txn.SitePromote, Expected: 3, Epoch: 4}
	lossy := promote
	lossy.Lossy = true
	cancel := txn.SiteChange{Action: txn.SiteCancel, Expected: 3, Upstream: position(30)}
	follow := txn.SiteChange{Action: txn.SiteFollow, Lineage: lineage, Epoch: 4, Upstream: position(9), Logical: 100}
	same := follow
	same.Epoch = 3
	lower := follow
	lower.Epoch = 2
	behind := follow
	behind.Logical = 9
	sameBehind := behind
	sameBehind.Epoch = 3
	other := follow
	other.Lineage = uuid.Max
	none := func(t *testing.T) *driver { return newDriver(t) }
	primary := func(t *testing.T) *driver {
		d := newDriver(t)
		require.Equal(t, txn.OK, d.site(txn.SiteChange{
			Action: txn.SiteFollow, Lineage: lineage, Epoch: 2, Upstream: position(20), Logical: 10,
		}))
		require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SitePromote, Expected: 2, Epoch: 3, Lossy: true}))
		return d
	}
	stopped := func(t *testing.T) *driver {
		d := primary(t)
		require.Equal(t, txn.OK, d.site(stop))
		return d
	}
	for _, c := range []struct {
		name   string
		from   func(t *testing.T) *driver
		change txn.SiteChange
		want   SiteRole // SiteNone: rejected
	}{
		{"none start", none, start, SitePrimary},
		{"none follow", none, follow, SiteReplica},
		{"none stop", none, txn.SiteChange{Action: txn.SiteStop}, SiteNone},
		{"none resume", none, txn.SiteChange{Action: txn.SiteResume}, SiteNone},
		{"none promote", none, txn.SiteChange{Action: txn.SitePromote, Epoch: 1}, SiteNone},
		{"primary start", primary, start, SiteNone},
		{"primary start again", primary, txn.SiteChange{Action: txn.SiteStart, Expected: 3, Lineage: lineage}, SiteNone},
		{"primary stop", primary, stop, SiteStopped},
		{"primary resume", primary, resume, SiteNone},
		{"primary promote", primary, promote, SiteNone},
		{"primary cancel", primary, cancel, SiteNone},
		{"primary follow", primary, follow, SiteReplica},
		{"primary follow same epoch", primary, same, SiteReplica},
		{"primary follow lower epoch", primary, lower, SiteNone},
		{"primary follow same epoch, has later transactions", primary, sameBehind, SiteNone},
		{"primary follow other lineage", primary, other, SiteNone},
		{"stopped stop", stopped, stop, SiteNone},
		{"stopped resume", stopped, resume, SitePrimary},
		{"stopped promote", stopped, promote, SitePrimary},
		{"stopped cancel", stopped, cancel, SiteNone},
		{"stopped follow", stopped, follow, SiteReplica},
		{"replica stop", newReplicaDriver, stop, SiteNone},
		{"replica promote, not stopped", newReplicaDriver, promote, SiteNone},
		{"replica promote with loss", newReplicaDriver, lossy, SitePrimary},
		{"replica follow", newReplicaDriver, follow, SiteReplica},
		{"replica follow same epoch", newReplicaDriver, same, SiteNone},
		{"replica follow, has later transactions", newReplicaDriver, behind, SiteNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := c.from(t)
			d.s.TakeSiteChanged()
			before, digest := withoutSite(d.s), d.s.Digest()
			stale := c.change
			stale.Expected++
			if c.change.Action != txn.SiteFollow {
				require.Equal(t, txn.ErrSiteChange, d.site(stale), "another epoch is expected")
			}
			role := d.s.Site().Role
			code := d.site(c.change)
			if c.want == SiteNone {
				require.Equal(t, txn.ErrSiteChange, code)
				require.Equal(t, role, d.s.Site().Role)
			} else {
				require.Equal(t, txn.OK, code)
				require.Equal(t, c.want, d.s.Site().Role)
			}
			require.Equal(t, c.want != SiteNone, d.s.TakeSiteChanged())
			require.False(t, d.s.TakeSiteChanged())
			require.Equal(t, before, withoutSite(d.s))
			require.Equal(t, digest, d.s.Digest())
			require.Empty(t, d.s.Check())
			require.Equal(t, d.s.Site(), reloaded(d).s.Site())
		})
	}
}

// A pair without a lineage, such as a restored one, cannot follow at a number below its last transaction.
func TestFollowAfterContent(t *testing.T) {
	follow := txn.SiteChange{Action: txn.SiteFollow, Lineage: lineage, Epoch: 1}
	for name, fill := range map[string]func(d *driver){
		"producer": func(d *driver) { require.Equal(t, txn.OK, d.apply(origin("p", 1, 1), one).Code) },
		"prepared": func(d *driver) { require.Equal(t, txn.OK, d.prepare("x", one)) },
		"outcome": func(d *driver) {
			require.Equal(t, txn.OK, d.prepare("x", one))
			require.Equal(t, txn.OK, d.commitPrepared("x").Code)
		},
		"access": func(d *driver) { d.do(func(b *txn.Builder) { b.ChangeAccess(0, 0, nil) }) },
	} {
		d := newDriver(t)
		d.queue("q", txn.Config{}, "a")
		fill(d)
		last := d.lsn
		d.lsn += 3 // term starts
		follow.Logical = last - 1
		require.Equal(t, txn.ErrSiteChange, d.site(follow), name)
		follow.Logical = last
		require.Equal(t, txn.OK, d.site(follow), name)
	}
}

// INV-26: a replica applies only the transactions of the primary.
func TestReplicaRejectsClients(t *testing.T) {
	d := newReplicaDriver(t)
	before, site := allOf(d.s), d.s.Site()
	r := d.apply(origin("p", 1, 1), one)
	require.Equal(t, txn.ErrReplica, r.Code, "a replica applied a transaction of a client")
	require.Equal(t, before, allOf(d.s))
	require.Equal(t, site, d.s.Site())
	_, known, _ := d.s.CachedResult(*origin("p", 1, 1))
	require.False(t, known, "the producer can retry at the primary")
	require.Equal(t, d.lsn, d.s.Applied())

	d = newDriver(t)
	d.queue("q", txn.Config{}, "a")
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}))
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SiteStop, Expected: 1}))
	require.Equal(t, txn.ErrReplica, d.apply(nil, one).Code, "stopped")
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SiteResume, Expected: 1}))
	d.do(one)
}

// INV-26: each transaction of the primary is applied once and in order.
func TestEnvelopeAppliedOnce(t *testing.T) {
	d := newReplicaDriver(t)
	before, digest := allOf(d.s), d.s.Digest()
	for name, site := range map[string]txn.Site{
		"retry":         {Epoch: 3, Upstream: position(21), Logical: 10},
		"earlier":       {Epoch: 3, Upstream: position(22), Logical: 9},
		"same position": {Epoch: 3, Upstream: position(21), Logical: 11},
		"lower epoch":   {Epoch: 2, Upstream: position(22), Logical: 11},
		"higher epoch":  {Epoch: 4, Upstream: position(22), Logical: 11},
	} {
		r := d.envelope(site, encode(t, one))
		require.Equal(t, txn.ErrSitePosition, r.Code, "a transaction of the primary was applied twice: %s", name)
		require.Equal(t, before, allOf(d.s), name)
		require.Equal(t, digest, d.s.Digest(), name)
	}
	r := d.envelope(txn.Site{Epoch: 3, Upstream: position(22), Logical: 11}, encode(t, one))
	require.Equal(t, txn.OK, r.Code)
	require.Equal(t, uint64(11), r.LSN)
}

// A pair that is not a replica rejects envelopes.
func TestEnvelopeWithoutReplica(t *testing.T) {
	d := newDriver(t)
	d.queue("q", txn.Config{}, "a")
	digest := d.s.Digest()
	site := txn.Site{Epoch: 1, Upstream: position(22), Logical: 11}
	require.Equal(t, txn.ErrReplica, d.envelope(site, encode(t, one)).Code)
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}))
	require.Equal(t, txn.ErrReplica, d.envelope(site, encode(t, one)).Code)
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SiteStop, Expected: 1}))
	require.Equal(t, txn.ErrReplica, d.envelope(site, encode(t, one)).Code)
	require.Equal(t, digest, d.s.Digest())
	require.Zero(t, d.s.Messages())
}

// A replica does not apply a record of a newer version, and its state does not change.
func TestReplicaOfNewerPrimary(t *testing.T) {
	d := newReplicaDriver(t)
	site, applied := d.s.Site(), d.s.Applied()
	newer := encode(t, one)
	newer[0] = txn.SiteVersion + 1
	unknown := encode(t, func(b *txn.Builder) { b.Site(txn.SiteChange{Action: txn.SiteStop, Expected: 3}) })
	unknown[17] = 99
	for _, payload := range [][]byte{newer, unknown} {
		require.Equal(t, txn.ErrNewerVersion,
			d.envelope(txn.Site{Epoch: 3, Upstream: position(22), Logical: 11}, payload).Code)
		require.Equal(t, site, d.s.Site())
		require.Equal(t, applied, d.s.Applied())
	}
	require.Equal(t, txn.ErrNewerVersion, d.s.Apply(d.lsn, unknown).Code)
}

// A rejected transaction of the primary has the same result at the replica.
func TestMalformedInEnvelope(t *testing.T) {
	d := newReplicaDriver(t)
	digest := d.s.Digest()
	r := d.envelope(txn.Site{Epoch: 3, Upstream: position(22), Logical: 11}, []byte{txn.Version})
	require.Equal(t, txn.ErrMalformed, r.Code)
	require.NotEqual(t, digest, d.s.Digest(), "the primary has added it to its digest")
	require.Equal(t, uint64(11), d.s.Site().Logical)
	digest = d.s.Digest()
	r = d.envelope(txn.Site{Epoch: 3, Upstream: position(23), Logical: 0}, encode(t, one))
	require.Equal(t, txn.ErrReplica, r.Code, "a malformed envelope")
	require.Equal(t, digest, d.s.Digest())
}

// A producer's retry at another site returns the original result (INV-10).
func TestRetryAtOtherSite(t *testing.T) {
	d := newReplicaDriver(t)
	payload := encodeFrom(t, origin("p", 1, 7), one)
	first := d.envelope(txn.Site{Epoch: 3, Upstream: position(22), Logical: 50}, payload)
	require.Equal(t, txn.OK, first.Code)
	for range 10 {
		d.lsn++
		d.s.Advance(d.lsn)
	}
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SitePromote, Expected: 3, Epoch: 4, Lossy: true}))
	d.lsn++
	again := d.s.Apply(d.lsn, payload)
	require.True(t, again.Duplicate)
	require.Equal(t, uint64(50), again.LSN)
	require.Equal(t, first.Ops, again.Ops)
	site := d.s.Site()
	_, ok := site.LSNOf(again.LSN)
	require.False(t, ok, "the record with this number is in the log of the other site")
	other := d.apply(nil, one)
	n, ok := site.LSNOf(other.LSN)
	require.True(t, ok)
	require.Equal(t, d.lsn, n)
}

// The results, versions and numbers of a promoted replica continue those of the primary.
func TestNumbersAfterPromotion(t *testing.T) {
	d := newReplicaDriver(t)
	d.envelope(txn.Site{Epoch: 3, Upstream: position(22), Logical: 1000}, encode(t, one))
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SitePromote, Expected: 3, Epoch: 4, Lossy: true}))
	require.Equal(t, SiteState{
		Lineage: lineage, Epoch: 4, Role: SitePrimary, Origin: position(22), PromotedLSN: d.lsn, Offset: 1001 - d.lsn,
		Logical: 1001, LossyEpoch: 4,
	}, d.s.Site())
	r := d.do(func(b *txn.Builder) { b.ChangeAccess(0, 7, []txn.AccessChange{set("a", "1")}) })
	require.Equal(t, uint64(1002), r.LSN)
	require.Equal(t, uint64(1002), d.s.AccessVersion())
	require.Equal(t, txn.OK, d.prepare("x", one))
	require.Equal(t, uint64(1003), d.s.Prepared("x").Number())
	d.do(func(b *txn.Builder) { b.SwapMeta("k", 0, nil) })
	entry, _ := d.s.Meta("k")
	v, ok := ParseVersioned(entry)
	require.True(t, ok)
	require.Equal(t, uint64(1004), v.Version)
}

// Numbers may be lower than LSNs, so that the offset wraps around.
func TestOffsetWrapsAround(t *testing.T) {
	d := newReplicaDriver(t)
	d.lsn += 1000
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SitePromote, Expected: 3, Epoch: 4, Lossy: true}))
	require.Greater(t, d.s.Site().Offset, uint64(1)<<63)
	require.Equal(t, uint64(12), d.do(one).LSN)
	again := reloaded(d)
	require.Equal(t, d.s.Site(), again.s.Site())
	require.Equal(t, uint64(13), again.do(one).LSN)
	site := again.s.Site()
	n, ok := site.LSNOf(13)
	require.True(t, ok)
	require.Equal(t, again.lsn, n)
	_, ok = site.LSNOf(10)
	require.False(t, ok)
	_, ok = site.LogicalOf(d.lsn - 2)
	require.False(t, ok, "a record before the promotion")
}

// A stopped primary can be promoted, if its replica is lost.
func TestPromoteStopped(t *testing.T) {
	d := newDriver(t)
	d.queue("q", txn.Config{}, "a")
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}))
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SiteStop, Expected: 1}))
	d.apply(nil, one)
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SitePromote, Expected: 1, Epoch: 2}))
	require.Equal(t, SiteState{Lineage: lineage, Epoch: 2, Role: SitePrimary, Logical: d.lsn}, d.s.Site(),
		"its numbers continue")
	require.Equal(t, d.lsn, d.do(one).LSN)
}

// While the primary is stopped, its transactions have no effect at the replica either.
func TestUpstreamStopped(t *testing.T) {
	d := newReplicaDriver(t)
	change := func(action txn.SiteAction) []byte {
		return encode(t, func(b *txn.Builder) { b.Site(txn.SiteChange{Action: action, Expected: 3}) })
	}
	n := uint64(21)
	apply := func(payload []byte) txn.Result {
		n++
		return d.envelope(txn.Site{Epoch: 3, Upstream: position(n), Logical: n}, payload)
	}
	messages := d.s.Messages()
	require.Equal(t, txn.OK, apply(encode(t, func(b *txn.Builder) {
		b.Site(txn.SiteChange{Action: txn.SiteStop, Expected: 2})
	})).Code, "the primary has rejected it")
	require.False(t, d.s.Site().UpstreamStopped)
	require.Equal(t, txn.OK, apply(change(txn.SiteStop)).Code)
	require.True(t, d.s.Site().UpstreamStopped)
	digest := d.s.Digest()
	r := apply(encode(t, one))
	require.Equal(t, txn.OK, r.Code)
	require.Empty(t, r.Ops)
	require.Equal(t, messages, d.s.Messages())
	require.Equal(t, digest, d.s.Digest())
	require.Equal(t, position(n), d.s.Site().Upstream)
	require.Equal(t, n-1, d.s.Site().Logical)
	require.True(t, reloaded(d).s.Site().UpstreamStopped)
	require.Equal(t, txn.OK, apply(change(txn.SiteResume)).Code)
	require.Equal(t, txn.OK, apply(encode(t, one)).Code)
	require.Equal(t, messages+1, d.s.Messages())
}

// upstream applies the records of a primary in epoch 3 to a replica.
type upstream struct {
	*driver

	n uint64 // LSN and logical number of the last record
}

// newUpstream returns the replica of newReplicaDriver.
func newUpstream(t *testing.T) *upstream {
	t.Helper()
	return &upstream{newReplicaDriver(t), 21}
}

func (u *upstream) applyNext(build func(b *txn.Builder)) {
	u.t.Helper()
	u.n++
	site := txn.Site{Epoch: 3, Upstream: position(u.n), Logical: u.n}
	require.Equal(u.t, txn.OK, u.envelope(site, encode(u.t, build)).Code)
}

func (u *upstream) change(action txn.SiteAction) {
	u.t.Helper()
	u.applyNext(func(b *txn.Builder) { b.Site(txn.SiteChange{Action: action, Expected: 3}) })
}

// cancel cancels the stops up to record n of the primary, so that they do not permit a promotion.
func (u *upstream) cancel(n uint64) {
	u.t.Helper()
	c := txn.SiteChange{Action: txn.SiteCancel, Expected: 3, Upstream: position(n)}
	require.Equal(u.t, txn.OK, u.site(c))
	require.Empty(u.t, u.s.Check())
}

// INV-26: without the loss flag, a replica is promoted only if it has applied the last stop of the primary, and the
// stop was not canceled. The stop and the cancellation survive a restart.
func TestTakeoverRequiresStop(t *testing.T) {
	for _, c := range []struct {
		name    string
		apply   func(u *upstream)
		allowed bool
	}{
		{"not stopped", func(*upstream) {}, false},
		{"stopped", func(u *upstream) { u.change(txn.SiteStop) }, true},
		{"stopped, with rejected transactions", func(u *upstream) { u.change(txn.SiteStop); u.applyNext(one) }, true},
		{"resumed", func(u *upstream) { u.change(txn.SiteStop); u.change(txn.SiteResume) }, false},
		{"canceled", func(u *upstream) { u.change(txn.SiteStop); u.cancel(u.n) }, false},
		{"canceled before the stop arrives", func(u *upstream) { u.cancel(u.n + 1); u.change(txn.SiteStop) }, false},
		{"canceled, then a rejected stop", func(u *upstream) {
			u.change(txn.SiteStop)
			u.cancel(u.n)
			u.change(txn.SiteStop)
		}, false},
		{"canceled and stopped again", func(u *upstream) {
			u.change(txn.SiteStop)
			u.cancel(u.n)
			u.change(txn.SiteResume)
			u.change(txn.SiteStop)
		}, true},
		{"an earlier stop is canceled", func(u *upstream) { u.change(txn.SiteStop); u.cancel(u.n - 1) }, true},
		{"canceled twice, in the wrong order", func(u *upstream) {
			u.change(txn.SiteStop)
			u.cancel(u.n)
			u.cancel(u.n - 1)
		}, false},
		{"stopped in an earlier epoch", func(u *upstream) {
			u.change(txn.SiteStop)
			require.Equal(u.t, txn.OK, u.site(txn.SiteChange{
				Action: txn.SiteFollow, Lineage: lineage, Epoch: 4, Upstream: position(u.n), Logical: u.n, Stopped: true,
			}))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := newUpstream(t)
			c.apply(u)
			again := reloaded(u.driver)
			site := again.s.Site()
			require.Equal(t, u.s.Site(), site)
			require.Equal(t, c.allowed, site.MayTakeOver())
			promote := txn.SiteChange{Action: txn.SitePromote, Expected: site.Epoch, Epoch: site.Epoch + 1}
			code := again.site(promote)
			if c.allowed {
				require.Equal(t, txn.OK, code)
				require.Equal(t, SitePrimary, again.s.Site().Role)
				require.Zero(t, again.s.Site().LossyEpoch)
				return
			}
			require.Equal(t, txn.ErrSiteChange, code, "a replica took over that may lack transactions")
			promote.Lossy = true
			require.Equal(t, txn.OK, again.site(promote))
		})
	}
}

// A primary that was replaced by a lossy promotion has transactions that the new primary lacks. It cannot follow,
// but a copy of the new primary can.
func TestDivergedPrimaryCannotFollow(t *testing.T) {
	old, now := newDriver(t), newReplicaDriver(t)
	require.Equal(t, txn.OK, old.site(txn.SiteChange{
		Action: txn.SiteFollow, Lineage: lineage, Epoch: 2, Upstream: position(1), Logical: 8,
	}))
	require.Equal(t, txn.OK, old.site(txn.SiteChange{Action: txn.SitePromote, Expected: 2, Epoch: 3, Lossy: true}))
	old.queue("q", txn.Config{}, "a")
	for i := range uint64(5) {
		require.Equal(t, txn.OK, old.apply(origin("p", 1, i+1), one).Code)
	}
	require.Equal(t, txn.OK, now.site(txn.SiteChange{Action: txn.SitePromote, Expected: 3, Epoch: 4, Lossy: true}))
	follow := txn.SiteChange{
		Action: txn.SiteFollow, Lineage: lineage, Epoch: 4, Upstream: position(now.lsn), Logical: now.s.Site().Logical,
		LossyEpoch: now.s.Site().LossyEpoch,
	}
	require.Equal(t, txn.ErrSiteChange, old.site(follow))
	seeded := reloaded(now)
	require.Equal(t, txn.OK, seeded.site(follow))
	require.Equal(t, SiteReplica, seeded.s.Site().Role)
	require.EqualValues(t, 4, seeded.s.Site().LossyEpoch)
}

// The loader rejects an inconsistent site.
func TestCorruptSite(t *testing.T) {
	for name, t0 := range map[string]SiteState{
		"no lineage":              {Epoch: 1, Role: SitePrimary},
		"no epoch":                {Lineage: lineage, Role: SitePrimary},
		"replica with offset":     {Lineage: lineage, Epoch: 1, Role: SiteReplica, Offset: 1},
		"primary with upstream":   {Lineage: lineage, Epoch: 1, Role: SitePrimary, Upstream: position(1)},
		"number of a later LSN":   {Lineage: lineage, Epoch: 1, Role: SitePrimary, Logical: 9},
		"promoted at a later LSN": {Lineage: lineage, Epoch: 2, Role: SitePrimary, PromotedLSN: 9},
		"unknown role":            {Lineage: lineage, Epoch: 2, Role: SiteStopped + 1},
		"role none":               {Lineage: lineage, Epoch: 2},
		"primary with a cancel":   {Lineage: lineage, Epoch: 1, Role: SitePrimary, CanceledLSN: 1},
		"stop without a flag":     {Lineage: lineage, Epoch: 1, Role: SiteReplica, Upstream: position(1), StopLSN: 1},
		"stop at a later record": {
			Lineage: lineage, Epoch: 1, Role: SiteReplica, Upstream: position(1), UpstreamStopped: true, StopLSN: 2,
		},
	} {
		l := NewLoader()
		s := New()
		require.NoError(t, l.Put([]byte{keyState}, s.appendState(nil)))
		err := l.Put([]byte{keySite}, (&site{SiteState: t0}).appendValue(nil))
		if err == nil {
			_, err = l.Finish(5)
		}
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
}

// A copy of a primary becomes a replica with the change that ReplicaChange returns, and continues after its position.
func TestReplicaChange(t *testing.T) {
	d := newDriver(t)
	d.queue("q", txn.Config{}, "a")
	_, ok := d.s.ReplicaChange(position(d.lsn))
	require.False(t, ok, "no sites")

	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}))
	d.apply(origin("first", 1, 1), one)
	primary := reloaded(d)
	c, ok := d.s.ReplicaChange(position(d.lsn))
	require.True(t, ok)
	require.Equal(t, txn.SiteChange{
		Action: txn.SiteFollow, Lineage: lineage, Epoch: 1, Upstream: position(d.lsn), Logical: d.lsn,
	}, c)
	at := d.lsn
	require.Equal(t, txn.OK, d.site(c))
	payload := encodeFrom(t, origin("first", 1, 2), one)
	next := txn.Site{Epoch: 1, Upstream: position(at + 1), Logical: at + 1}
	require.Equal(t, txn.OK, d.envelope(next, payload).Code)
	replica := d.s.Site()
	c, ok = d.s.ReplicaChange(position(d.lsn))
	require.True(t, ok)
	require.Zero(t, c, "it is a replica already")
	require.Equal(t, replica, d.s.Site())

	require.Equal(t, txn.OK, primary.site(txn.SiteChange{Action: txn.SiteStop, Expected: 1}))
	c, ok = primary.s.ReplicaChange(position(primary.lsn))
	require.True(t, ok)
	require.True(t, c.Stopped)

	// The numbers of a promoted site differ from its LSNs.
	require.Equal(t, txn.OK, d.site(txn.SiteChange{Action: txn.SitePromote, Expected: 1, Epoch: 2, Lossy: true}))
	c, ok = d.s.ReplicaChange(position(d.lsn))
	require.True(t, ok)
	require.Equal(t, at+2, c.Logical)
	require.NotEqual(t, d.lsn, c.Logical)
	require.EqualValues(t, 2, c.Epoch)
	require.EqualValues(t, 2, c.LossyEpoch)
	require.Equal(t, txn.OK, d.site(c))
}
