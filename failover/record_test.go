// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestRecordEncoding(t *testing.T) {
	rec := recordWith(0, 0, 1)
	rec.Switchover = &Switchover{ID: "x", To: testNodes[1].ID}
	b, err := rec.Encode()
	require.NoError(t, err)
	got, err := DecodeRecord(b)
	require.NoError(t, err)
	require.Equal(t, rec, got)

	// The field names are a format shared with other releases.
	for _, name := range []string{
		`"version":1`, `"pair_id"`, `"config":5`, `"term":2`, `"active"`, `"in_sync":[{"node"`, `"store"`,
		`"incarnation":1`,
		`"min_in_sync":1`, `"switchover"`, `"op_id":"earlier"`, `"nodes"`,
	} {
		require.Contains(t, string(b), name)
	}
	got, err = DecodeRecord([]byte(strings.Replace(string(b), "{", `{"later":[1],`, 1)))
	require.NoError(t, err, "a field of a later release")
	again, err := got.Clone().Encode()
	require.NoError(t, err)
	require.Contains(t, string(again), `"later":[1]`, "an unknown field is written again")
	require.NotContains(t, string(again), "unknown")
	got.unknown = nil
	require.Equal(t, rec, got)
}

func TestFeatures(t *testing.T) {
	require.True(t, KnownFeatures().Has(FeaturePause))
	require.False(t, Features("pauses a").Has(FeaturePause))
	rec := recordWith(0, 0, 1)
	for i := range rec.Nodes {
		rec.Nodes[i].Features = KnownFeatures()
	}
	_, lacks := nodeWithout(rec, nil, FeaturePause)
	require.False(t, lacks)
	rec.Nodes[1].Features = ""
	n, lacks := nodeWithout(rec, nil, FeaturePause)
	require.True(t, lacks)
	require.Equal(t, rec.Nodes[1].ID, n.ID)
	upgraded := rec.Nodes[1]
	upgraded.Features = KnownFeatures()
	_, lacks = nodeWithout(rec, []Live{{Node: upgraded}}, FeaturePause)
	require.False(t, lacks, "the node's current announcement takes precedence")
	rec.Nodes = rec.Nodes[:1]
	n, lacks = nodeWithout(rec, nil, FeaturePause)
	require.True(t, lacks, "a node in sync without a description")
	require.Equal(t, rec.InSync[1].Node, n.ID)
}

func TestRecordClone(t *testing.T) {
	rec := recordWith(0, 0, 1)
	rec.Switchover = &Switchover{ID: "x"}
	c := rec.Clone()
	c.InSync[0].Incarnation, c.Nodes[0].Name, c.Switchover.ID = 9, "other", "y"
	require.Equal(t, uint64(1), rec.InSync[0].Incarnation)
	require.Equal(t, "a", testNodes[0].Name)
	require.Equal(t, "x", rec.Switchover.ID)
}

func TestRecordInvalid(t *testing.T) {
	for name, change := range map[string]func(*Record){
		"version 0":         func(r *Record) { r.Version = 0 },
		"no pair":           func(r *Record) { r.PairID = uuid.Nil },
		"no active":         func(r *Record) { r.Active = uuid.Nil },
		"config 0":          func(r *Record) { r.Config = 0 },
		"term 0":            func(r *Record) { r.Term = 0 },
		"none in sync":      func(r *Record) { r.InSync = nil },
		"three in sync":     func(r *Record) { r.InSync = append(r.InSync, Member{}) },
		"same member twice": func(r *Record) { r.InSync[1] = r.InSync[0] },
		"min_in_sync 3":     func(r *Record) { r.MinInSync = 3 },
	} {
		rec := recordWith(0, 0, 1)
		change(&rec)
		_, err := rec.Encode()
		require.ErrorIs(t, err, ErrRecordInvalid, name)
	}
	rec := recordWith(0, 0)
	rec.Version = RecordVersion + 1
	require.ErrorIs(t, rec.Validate(), ErrRecordVersion)
	_, err := DecodeRecord(make([]byte, maxRecordBytes+1))
	require.ErrorIs(t, err, ErrRecordInvalid)
}

func FuzzDecodeRecord(f *testing.F) {
	rec := recordWith(0, 0, 1)
	b, err := rec.Encode()
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte(`{"version":1,"in_sync":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := DecodeRecord(b)
		if err != nil {
			return
		}
		again, err := rec.Encode()
		require.NoError(t, err)
		got, err := DecodeRecord(again)
		require.NoError(t, err)
		require.Equal(t, rec, got)
	})
}

func TestFenceOrder(t *testing.T) {
	tentative := Fence{Config: 5, Term: 3} // of a node that tries to take over from {5, 2}
	require.False(t, tentative.Admits(5, 2), "the old active")
	require.False(t, tentative.Admits(4, 9))
	require.True(t, tentative.Admits(6, 2), "the old active, after its swap has won")
	require.True(t, tentative.Admits(6, 3), "itself")
	require.True(t, Fence{Config: 5, Term: 2}.Less(tentative))
	require.False(t, tentative.Less(tentative))
}
