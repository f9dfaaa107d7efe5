package raftcoord

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	hraft "github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

func entry(t *testing.T, c command) *hraft.Log {
	t.Helper()
	data, err := json.Marshal(c)
	require.NoError(t, err)
	return &hraft.Log{Type: hraft.LogCommand, Data: data}
}

// sink keeps a snapshot in memory.
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
		{command{Expect: 1, OpID: "x", Record: a}, swapped{conflict: true}}, // there is none yet
		{command{Expect: 0, OpID: "x", Record: a}, swapped{revision: 1}},
		{command{Expect: 0, OpID: "x", Record: a}, swapped{revision: 1}}, // the same once more
		{command{Expect: 0, OpID: "y", Record: b}, swapped{conflict: true}},
		{command{Expect: 1, OpID: "y", Record: b}, swapped{revision: 2}},
		{command{Expect: 0, OpID: "x", Record: a}, swapped{conflict: true}}, // too late: written over
		{command{Expect: 2, OpID: "y", Record: b}, swapped{revision: 3}},
	} {
		require.Equal(t, step.want, f.Apply(entry(t, step.in)), "%+v", step.in)
	}
	before := f.now.Get()
	out, ok := f.Apply(&hraft.Log{Data: []byte("junk")}).(swapped)
	require.True(t, ok)
	require.Error(t, out.err)
	require.Equal(t, before, f.now.Get(), "an entry that cannot be read changes nothing")

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
