// SPDX-License-Identifier: Apache-2.0

package storetool

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Envelopes are shown with their header and the operations of their transaction.
func TestDescribeSites(t *testing.T) {
	lineage := uuid.UUID{1, 15: 2}
	encode := func(fill func(b *txn.Builder)) []byte {
		var b txn.Builder
		b.Begin(nil, 7, nil)
		fill(&b)
		payload, err := b.Finish()
		require.NoError(t, err)
		return payload
	}
	site := &txn.Site{Lineage: lineage, Epoch: 3, Upstream: lsn.Position{Term: 4, LSN: 5, Chain: 6}, Logical: 7}
	var reader txn.Reader
	var j recordDump
	describeTxn(&reader, txn.AppendSite(nil, site, encode(func(b *txn.Builder) { b.Purge(1, 0) })), &j, false)
	require.Empty(t, j.Error)
	require.Equal(t, []string{"purge queue 1"}, j.Operations)
	require.Equal(t, lineage.String(), j.Site.Lineage)
	require.Equal(t, uint64(3), j.Site.Epoch)
	require.Equal(t, uint64(5), j.Site.Upstream.LSN)
	require.Equal(t, uint64(4), j.Site.Upstream.Term)
	require.Equal(t, uint64(7), j.Site.Logical)

	j = recordDump{}
	describeTxn(&reader, txn.AppendSite(nil, site, nil), &j, false)
	require.NotEmpty(t, j.Error)
	require.NotNil(t, j.Site, "the transaction in the envelope is malformed, not the envelope")

	for want, c := range map[string]txn.SiteChange{
		"site start of lineage 01000000-0000-0000-0000-000000000002": {Action: txn.SiteStart, Lineage: lineage},
		"site stop at epoch 3":                        {Action: txn.SiteStop, Expected: 3},
		"site resume at epoch 3":                      {Action: txn.SiteResume, Expected: 3},
		"site cancel up to upstream LSN 5 at epoch 3": {Action: txn.SiteCancel, Expected: 3, Upstream: site.Upstream},
		"site promote from epoch 3 to 4":              {Action: txn.SitePromote, Expected: 3, Epoch: 4},
		"site follow lineage 01000000-0000-0000-0000-000000000002, epoch 4, after upstream LSN 5, term 4, logical 7": {
			Action: txn.SiteFollow, Lineage: lineage, Epoch: 4, Upstream: site.Upstream, Logical: 7,
		},
	} {
		j = recordDump{}
		describeTxn(&reader, encode(func(b *txn.Builder) { b.Site(c) }), &j, false)
		require.Equal(t, []string{want}, j.Operations)
		require.Nil(t, j.Site)
	}
}
