// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/hex"
	"math"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

func someSite() *Site {
	return &Site{
		Lineage: uuid.UUID{1, 15: 2}, Epoch: 3, Upstream: lsn.Position{Term: 300, LSN: 5, Chain: 0xdeadbeef}, Logical: 70,
	}
}

// Reset returns the site header and the transaction of an envelope, and no header for a plain transaction.
func TestEnvelopeRoundTrip(t *testing.T) {
	var b Builder
	b.Begin(nil, 77, &Producer{ID: []byte("p"), Epoch: 1, Sequence: 2})
	b.Ack(1, 2, Range{3, 4})
	inner, err := b.Finish()
	require.NoError(t, err)
	largest := &Site{
		Lineage: uuid.Max, Epoch: math.MaxUint64, Logical: math.MaxUint64,
		Upstream: lsn.Position{Term: math.MaxUint64, LSN: math.MaxUint64, Chain: math.MaxUint32},
	}
	for _, site := range []*Site{someSite(), largest} {
		payload := AppendSite([]byte("before"), site, inner)[len("before"):]
		require.LessOrEqual(t, len(payload), maxSiteBytes+len(inner))
		var r Reader
		require.NoError(t, r.Reset(payload))
		require.Equal(t, site, r.Site())
		require.Equal(t, inner, r.Transaction())
		require.Equal(t, int64(77), r.TimeMS())
		p, ok := r.Producer()
		require.True(t, ok)
		require.Equal(t, uint64(2), p.Sequence)
		op, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, OpAck, op.Code)

		require.NoError(t, r.Reset(inner))
		require.Nil(t, r.Site(), "no header of the previous envelope")
		require.Equal(t, inner, r.Transaction())
	}
}

// The encoding of version 2 must not change.
func TestEnvelopeGolden(t *testing.T) {
	payload := AppendSite(nil, someSite(), []byte("inner"))
	header := "02" + "01000000000000000000000000000002" + "03" + "ac0205efbeadde" + "46"
	require.Equal(t, header+hex.EncodeToString([]byte("inner")), hex.EncodeToString(payload))
}

// Truncated and nested envelopes and envelopes with missing fields are rejected.
func TestMalformedEnvelope(t *testing.T) {
	inner := build(t, func(b *Builder) { b.Purge(1, 0) })
	payload := AppendSite(nil, someSite(), inner)
	header := len(payload) - len(inner)
	for cut := range payload {
		var r Reader
		err := r.Reset(payload[:cut])
		if cut == len(payload)-1 { // only the operation is truncated
			require.NoError(t, err)
			_, err = r.Next()
		}
		if cut < len(payload)-len(inner)+headerBytes || cut == len(payload)-1 {
			require.ErrorIs(t, err, ErrMalformed, "cut to %d bytes", cut)
		}
		require.Equal(t, cut >= header, r.Site() != nil, "cut to %d bytes", cut)
	}
	for name, bad := range map[string][]byte{
		"nested":      AppendSite(nil, someSite(), payload),
		"no lineage":  AppendSite(nil, &Site{Epoch: 1, Upstream: lsn.Position{LSN: 1}, Logical: 1}, inner),
		"no epoch":    AppendSite(nil, &Site{Lineage: uuid.Max, Upstream: lsn.Position{LSN: 1}, Logical: 1}, inner),
		"no position": AppendSite(nil, &Site{Lineage: uuid.Max, Epoch: 1, Logical: 1}, inner),
		"no number":   AppendSite(nil, &Site{Lineage: uuid.Max, Epoch: 1, Upstream: lsn.Position{LSN: 1}}, inner),
	} {
		var r Reader
		require.ErrorIs(t, r.Reset(bad), ErrMalformed, name)
		require.Nil(t, r.Site(), name)
	}
	var r Reader
	require.ErrorIs(t, r.Reset(AppendSite(nil, someSite(), []byte{9, 0})), ErrNewerVersion)
	require.Equal(t, someSite(), r.Site(), "the header is valid")
}

// The size limit applies to the transaction without the header: each transaction of a primary fits into an envelope.
func TestEnvelopeSize(t *testing.T) {
	inner := make([]byte, MaxTransactionBytes)
	copy(inner, build(t, func(b *Builder) { b.Purge(1, 0) }))
	var r Reader
	require.NoError(t, r.Reset(AppendSite(nil, someSite(), inner)))
	require.ErrorIs(t, r.Reset(AppendSite(nil, someSite(), append(inner, 0))), ErrMalformed)
}

// An envelope cannot be the transaction of a prepare operation.
func TestEnvelopeIsNotPrepared(t *testing.T) {
	inner := build(t, func(b *Builder) { b.Ack(1, 1, Range{1, 1}) })
	var r Reader
	require.NoError(t, Inner(&r, inner))
	require.ErrorIs(t, Inner(&r, AppendSite(nil, someSite(), inner)), ErrMalformed)
}

// siteChanges contains each action.
func siteChanges() []SiteChange {
	return []SiteChange{
		{Action: SiteStart, Lineage: uuid.Max},
		{Action: SiteStop, Expected: 1},
		{Action: SiteResume, Expected: 300},
		{Action: SitePromote, Expected: 1, Epoch: 2},
		{Action: SiteFollow, Lineage: uuid.Max, Epoch: 2, Upstream: lsn.Position{Term: 1, LSN: 2, Chain: 3}, Logical: 400},
		{Action: SiteFollow, Lineage: uuid.Max, Epoch: 2, Stopped: true, LossyEpoch: 300},
		{Action: SitePromote, Expected: 1, Epoch: 2, Lossy: true},
		{Action: SiteCancel, Expected: 300, Upstream: lsn.Position{Term: 1, LSN: 2, Chain: 3}},
	}
}

func TestSiteChangeRoundTrip(t *testing.T) {
	for _, c := range siteChanges() {
		payload := build(t, func(b *Builder) { b.Site(c) })
		for _, payload := range [][]byte{payload, AppendSite(nil, someSite(), payload)} {
			var r Reader
			require.NoError(t, r.Reset(payload))
			require.True(t, r.ForSites())
			for range 2 {
				got, ok, err := r.SiteChange()
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, c, got)
			}
			op, err := r.Next()
			require.NoError(t, err)
			require.Equal(t, OpSite, op.Code)
			require.Equal(t, c, op.SiteChange())
			require.True(t, op.Code.Alone())
		}
		for cut := headerBytes + opHeaderBytes; cut < len(payload); cut++ {
			short := append([]byte{}, payload[:cut]...)
			short[headerBytes+1] = byte(cut - headerBytes - opHeaderBytes)
			var r Reader
			require.NoError(t, r.Reset(short))
			_, ok, err := r.SiteChange()
			require.ErrorIs(t, err, ErrMalformed, "%v cut to %d bytes", c, cut)
			require.False(t, ok)
		}
	}
}

// Site changes with missing fields, unknown actions and unknown flags are rejected.
func TestInvalidSiteChange(t *testing.T) {
	for want, changes := range map[Code][]SiteChange{
		ErrMalformed: {
			{Action: SiteStart},
			{Action: SiteFollow, Epoch: 1},
			{Action: SiteFollow, Lineage: uuid.Max},
			{Action: SitePromote, Expected: 1},
		},
		ErrNewerVersion: {{}, {Action: SiteCancel + 1}},
	} {
		for _, c := range changes {
			var b Builder
			b.Begin(nil, 1, nil)
			b.Site(c)
			_, err := b.Finish()
			require.ErrorIs(t, err, want, "%+v", c)
		}
	}
	payload := build(t, func(b *Builder) { b.Site(SiteChange{Action: SiteStop, Expected: 1}) })
	payload[headerBytes+opHeaderBytes] = byte(SiteCancel + 1)
	var r Reader
	require.NoError(t, r.Reset(payload))
	_, _, err := r.SiteChange()
	require.ErrorIs(t, err, ErrNewerVersion)

	payload = build(t, func(b *Builder) { b.Site(SiteChange{Action: SiteFollow, Lineage: uuid.Max, Epoch: 1}) })
	payload[len(payload)-1] = flagStopped + 1
	require.NoError(t, r.Reset(payload))
	_, err = r.Next()
	require.ErrorIs(t, err, ErrNewerVersion, "unknown flags")
}

// SiteChange returns a change only for a transaction with a single operation, an OpSite.
func TestOtherTransactionsAreNoSiteChange(t *testing.T) {
	var r Reader
	require.NoError(t, r.Reset(build(t, func(b *Builder) { b.Purge(1, 0) })))
	require.False(t, r.ForSites())
	_, ok, err := r.SiteChange()
	require.NoError(t, err)
	require.False(t, ok)

	payload := build(t, func(b *Builder) { b.Site(SiteChange{Action: SiteStop, Expected: 1}) })
	payload[2] = 2
	payload = append(payload, payload[headerBytes:]...)
	require.NoError(t, r.Reset(payload))
	_, ok, err = r.SiteChange()
	require.NoError(t, err)
	require.False(t, ok, "two operations")
	require.Equal(t, "unknown", SiteAction(9).String())
	require.Equal(t, "promote", SitePromote.String())
}
