// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// A detached copy of a state in each role is valid. It accepts transactions with ascending numbers and retries of
// earlier transactions, and cannot follow a site of the former lineage.
func TestDetachedSite(t *testing.T) {
	stop := txn.SiteChange{Action: txn.SiteStop, Expected: 4}
	promote := txn.SiteChange{Action: txn.SitePromote, Expected: 3, Epoch: 4, Lossy: true}
	for name, changes := range map[string][]txn.SiteChange{
		"replica": nil, "primary": {promote}, "stopped": {promote, stop},
	} {
		d := newReplicaDriver(t)
		for _, c := range changes {
			require.Equal(t, txn.OK, d.site(c), name)
		}
		testDetached(t, d)
	}
	d := newDriver(t)
	d.queue("q", txn.Config{}, "a")
	require.Equal(t, txn.OK, d.apply(origin("first", 1, 1), one).Code)
	testDetached(t, d)
}

func testDetached(t *testing.T, d *driver) {
	t.Helper()
	before := d.s.Site()
	own := uuid.New()
	l := NewLoader()
	for k, v := range d.s.All {
		if !IsSiteKey(k) {
			require.NoError(t, l.Put(k, v))
		}
	}
	key, value := d.s.DetachedSite(own)
	require.True(t, IsSiteKey(key))
	require.NoError(t, l.Put(key, value))
	s, err := l.Finish(d.lsn)
	require.NoError(t, err)
	require.Empty(t, s.Check())
	s.setLimits(d.s.limits)
	copied := &driver{t: t, s: s, lsn: d.lsn}
	site := s.Site()
	require.Equal(t, SitePrimary, site.Role)
	require.Equal(t, own, site.Lineage)
	require.EqualValues(t, 1, site.Epoch)
	if before.Role != SiteNone {
		require.Equal(t, before.Logical, site.Logical)
	}
	require.True(t, copied.apply(origin("first", 1, 1), one).Duplicate)
	r := copied.apply(origin("first", 1, 2), one)
	require.NoError(t, r.Err())
	require.Greater(t, r.LSN, site.Logical)
	require.Empty(t, s.Check())
	require.Equal(t, txn.ErrSiteChange, copied.site(txn.SiteChange{
		Action: txn.SiteFollow, Lineage: lineage, Epoch: 9, Upstream: position(99), Logical: 1000,
	}))
	require.Equal(t, before, d.s.Site())
}
