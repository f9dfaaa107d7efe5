// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"testing"

	hraft "github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// A disk that is behind the known progress is detected. Regular changes of a disk are not reported.
func TestProgressMissing(t *testing.T) {
	t.Parallel()
	seen := peerProgress{Term: 5, Voted: 4, AckTerm: 5, Acked: 10}
	for name, tt := range map[string]struct {
		have diskState
		want string
	}{
		"unchanged":                   {diskState{Term: 5, Voted: 4, Last: 10}, ""},
		"newer":                       {diskState{Term: 6, Voted: 6, Last: 12}, ""},
		"truncated by a later leader": {diskState{Term: 6, Voted: 4, Last: 8}, ""},
		"term":                        {diskState{Term: 4, Voted: 4, Last: 10}, "it had entries of term 5"},
		"vote":                        {diskState{Term: 5, Voted: 3, Last: 10}, "it voted in term 4"},
		"log":                         {diskState{Term: 5, Voted: 5, Last: 9}, "it had log entries up to 10"},
	} {
		if got := seen.missing(tt.have); tt.want == "" {
			require.Empty(t, got, name)
		} else {
			require.Contains(t, got, tt.want, name)
		}
	}
	require.Empty(t, peerProgress{}.missing(diskState{}), "a voter of 0.1.0 reports nothing")
	require.Empty(t, peerProgress{Term: 6, Voted: 4, AckTerm: 5, Acked: 10}.missing(
		diskState{Term: 5, Voted: 4, Last: 10}),
		"the leader's heartbeat has decremented the term of a failed candidate, which neither voted nor acknowledged")
	require.Equal(t, peerProgress{Term: 7, Voted: 4, AckTerm: 6, Acked: 3},
		seen.with(peerProgress{Term: 7, Voted: 2, AckTerm: 6, Acked: 3}))
	require.Equal(t, seen, seen.with(peerProgress{AckTerm: 4, Acked: 99}))
}

// Progress with immediate urgency is durable when record returns.
func TestProgressIsPersisted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() (*disk, *progressStore) {
		d, err := openDisk(dir, true, newRaftLog(zap.NewNop()))
		require.NoError(t, err)
		require.NoError(t, d.identify(KindNode))
		s, err := openProgress(d)
		require.NoError(t, err)
		return d, s
	}
	d, s := open()
	promised := peerProgress{Term: 3, Voted: 3, AckTerm: 3, Acked: 7}
	require.NoError(t, s.record("a", promised, urgencyImmediate))
	require.NoError(t, s.record("b", peerProgress{Term: 9}, urgencyLow))
	require.NoError(t, s.record(d.id, peerProgress{Term: 99}, urgencyImmediate), "own progress is not recorded")
	require.NoError(t, s.led(3, "a"))
	require.NoError(t, s.led(2, "b"))
	require.NoError(t, d.close())
	d, s = open()
	all, err := s.all()
	require.NoError(t, err)
	require.Equal(t, promised, all["a"])
	require.NotContains(t, all, d.id)
	require.NoError(t, d.store.Set([]byte(progressKey), []byte("{")))
	_, err = openProgress(d)
	require.Error(t, err)
	require.Contains(t, err.Error(), "pair replace")
	require.NoError(t, d.close())
}

// A late heartbeat of an earlier leader lowers the current term of a voter that has acknowledged an entry of a
// newer leader. This is not a rollback.
func TestDecrementedTermIsNoRollback(t *testing.T) {
	t.Parallel()
	d, err := openDisk(t.TempDir(), true, newRaftLog(zap.NewNop()))
	require.NoError(t, err)
	defer func() { require.NoError(t, d.close()) }()
	s, err := openProgress(d)
	require.NoError(t, err)
	require.NoError(t, d.store.SetUint64([]byte("CurrentTerm"), 4))
	require.NoError(t, s.led(4, "b"))
	require.NoError(t, d.store.StoreLogs([]*hraft.Log{{Index: 1, Term: 1}, {Index: 2, Term: 4}}))
	acked := peerProgress{Term: 4, AckTerm: 4, Acked: 2}
	require.NoError(t, d.store.SetUint64([]byte("CurrentTerm"), 2))
	have, err := d.state()
	require.NoError(t, err)
	require.Empty(t, acked.missing(have))
	require.NotEmpty(t, peerProgress{AckTerm: 4, Acked: 3}.missing(have))
}
