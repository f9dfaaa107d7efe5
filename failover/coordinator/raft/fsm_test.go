// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	hraft "github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
)

func entry(t *testing.T, c command) *hraft.Log {
	t.Helper()
	data, err := json.Marshal(c)
	require.NoError(t, err)
	return &hraft.Log{Type: hraft.LogCommand, Data: data}
}

// sink is an in-memory snapshot sink.
type sink struct {
	bytes.Buffer
}

func (*sink) ID() string    { return "test" }
func (*sink) Cancel() error { return nil }
func (*sink) Close() error  { return nil }

func TestFSM(t *testing.T) {
	t.Parallel()
	f := newFSM()
	a, b := json.RawMessage(`{"a":1}`), json.RawMessage(`{"b":1}`)
	for _, step := range []struct {
		in   command
		want swapped
	}{
		{command{Expect: 1, OpID: "x", Record: a}, swapped{conflict: true}}, // no record yet
		{command{Expect: 0, OpID: "x", Record: a}, swapped{revision: 1}},
		{command{Expect: 0, OpID: "x", Record: a}, swapped{revision: 1}}, // a retry
		{command{Expect: 0, OpID: "y", Record: b}, swapped{conflict: true}},
		{command{Expect: 1, OpID: "y", Record: b}, swapped{revision: 2}},
		{command{Expect: 0, OpID: "x", Record: a}, swapped{conflict: true}}, // too late: overwritten
		{command{Expect: 2, OpID: "y", Record: b}, swapped{revision: 3}},
	} {
		require.Equal(t, step.want, f.Apply(entry(t, step.in)), "%+v", step.in)
	}
	before := f.now.Get()
	out, ok := f.Apply(&hraft.Log{Data: []byte("junk")}).(swapped)
	require.True(t, ok)
	require.Error(t, out.err)
	require.Equal(t, before, f.now.Get(), "an unreadable entry changes nothing")

	for _, recovering := range []bool{false, true} {
		f.recovering = recovering
		snap, err := f.Snapshot()
		require.NoError(t, err)
		var to sink
		require.NoError(t, snap.Persist(&to))
		g := newFSM()
		require.NoError(t, g.Restore(io.NopCloser(&to.Buffer)))
		got := g.now.Get()
		require.JSONEq(t, string(b), string(got.Record))
		require.Equal(t, recovering, got.Recoveries == 1)
		require.Equal(t, recovering, got.Revision > before.Revision)
	}
	require.Error(t, newFSM().Restore(io.NopCloser(bytes.NewReader(make([]byte, maxStateBytes+1)))))
	require.Error(t, newFSM().Restore(io.NopCloser(bytes.NewReader([]byte("{")))))
}

// A mark never decreases, is part of the snapshot, and does not affect the record and its revision.
func TestFSMMark(t *testing.T) {
	t.Parallel()
	f := newFSM()
	require.Equal(t, swapped{revision: 1}, f.Apply(entry(t, command{OpID: "x", Record: json.RawMessage(`{"a":1}`)})))
	before := f.now.Get()
	high := failover.Mark{By: 2, Term: 1, LSN: 9}
	last := failover.Mark{}
	for _, m := range []failover.Mark{
		{By: 1, Term: 1, LSN: 3},
		high,
		{By: 2, Term: 1, LSN: 8},
		{By: 1, Term: 1, LSN: 99},
		{},
	} {
		require.Equal(t, swapped{before: last}, f.Apply(entry(t, command{Mark: &m})), "%v", m)
		last = f.now.Get().mark()
	}
	require.Equal(t, high, f.now.Get().mark())
	require.Equal(t, before.Revision, f.now.Get().Revision)
	require.Equal(t, before.Record, f.now.Get().Record)
	require.Equal(t, swapped{revision: 2}, f.Apply(
		entry(t, command{Expect: 1, OpID: "y", Record: json.RawMessage(`{"b":1}`)})))
	require.Equal(t, high, f.now.Get().mark())

	snap, err := f.Snapshot()
	require.NoError(t, err)
	var to sink
	require.NoError(t, snap.Persist(&to))
	g := newFSM()
	require.NoError(t, g.Restore(io.NopCloser(&to.Buffer)))
	require.Equal(t, f.now.Get(), g.now.Get())

	// As written by 0.1.0.
	require.NoError(t, g.Restore(io.NopCloser(
		bytes.NewReader([]byte(`{"revision":4,"op_id":"z","record":{"c":1},"recoveries":0}`)))))
	require.Equal(t, failover.Mark{}, g.now.Get().mark())
}
