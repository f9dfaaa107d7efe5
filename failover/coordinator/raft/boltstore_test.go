// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// A file written by github.com/hashicorp/raft-boltdb/v2 2.3.1 is readable, and new files have the same content.
func TestBoltStoreReadsRaftBoltDB(t *testing.T) {
	content, err := os.ReadFile("testdata/raft-boltdb-2.3.1.db")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), logFile)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	old := openTestStore(t, path)

	first, err := old.FirstIndex()
	require.NoError(t, err)
	require.EqualValues(t, 3, first)
	last, err := old.LastIndex()
	require.NoError(t, err)
	require.EqualValues(t, 70_000, last)
	at := time.Date(2026, 11, 28, 10, 20, 30, 123456789, time.UTC)
	want := []*hraft.Log{
		{
			Index: 3, Term: 1, Type: hraft.LogConfiguration, Data: []byte("configuration"),
			AppendedAt: at.Add(time.Second),
		},
		{
			Index: 4, Term: 1, Type: hraft.LogCommand, Data: []byte{0, 1, 2, 0xff}, Extensions: []byte("extension"),
			AppendedAt: at.Add(time.Minute),
		},
		{Index: 5, Term: 300, Type: hraft.LogBarrier},
		{Index: 70_000, Term: 1 << 40, Type: hraft.LogCommand, Data: make([]byte, 300), AppendedAt: at},
	}
	for _, w := range want {
		var got hraft.Log
		require.NoError(t, old.GetLog(w.Index, &got))
		require.True(t, w.AppendedAt.Equal(got.AppendedAt), got.AppendedAt)
		got.AppendedAt = w.AppendedAt // in another zone
		require.Equal(t, *w, got)
	}
	term, err := old.GetUint64([]byte("CurrentTerm"))
	require.NoError(t, err)
	require.EqualValues(t, 1<<40, term)
	id, err := old.Get([]byte(idKey))
	require.NoError(t, err)
	require.Equal(t, "node-00000000-0000-0000-0000-000000000001", string(id))

	copied := openTestStore(t, filepath.Join(t.TempDir(), logFile))
	for _, w := range want {
		var entry hraft.Log // in its own zone
		require.NoError(t, old.GetLog(w.Index, &entry))
		require.NoError(t, copied.StoreLog(&entry))
	}
	require.NoError(t, copied.SetUint64([]byte("CurrentTerm"), 1<<40))
	require.NoError(t, copied.Set([]byte("LastVoteCand"), []byte("node a")))
	require.NoError(t, copied.Set([]byte(idKey), id))
	require.Equal(t, raw(t, old), raw(t, copied))
}

// The term of the last vote only increases.
func TestVoteTermIncreases(t *testing.T) {
	s := openTestStore(t, filepath.Join(t.TempDir(), logFile))
	vote := func(term uint64) error { return s.SetUint64([]byte(voteTermKey), term) }
	require.NoError(t, vote(3))
	require.ErrorIs(t, vote(2), errVoted)
	require.ErrorIs(t, vote(3), errVoted)
	require.NoError(t, vote(4))
	term, err := s.GetUint64([]byte(voteTermKey))
	require.NoError(t, err)
	require.EqualValues(t, 4, term)
	for _, term := range []uint64{4, 2} {
		require.NoError(t, s.SetUint64([]byte(currentTermKey), term))
	}
}

func TestBoltStore(t *testing.T) {
	s := openTestStore(t, filepath.Join(t.TempDir(), logFile))
	last, err := s.LastIndex()
	require.NoError(t, err)
	require.Zero(t, last)
	_, err = s.GetUint64([]byte("CurrentTerm"))
	require.ErrorIs(t, err, errKeyNotFound)
	require.EqualError(t, err, "not found")
	require.NoError(t, s.Set([]byte("CurrentTerm"), []byte("1")))
	_, err = s.GetUint64([]byte("CurrentTerm"))
	require.Error(t, err)
	require.NotErrorIs(t, err, errKeyNotFound)
	require.Contains(t, err.Error(), "CurrentTerm")

	for index := range uint64(1000) {
		require.NoError(t, s.StoreLog(&hraft.Log{Index: index + 1, Term: 1}))
	}
	require.NoError(t, s.DeleteRange(1, 300))
	require.NoError(t, s.DeleteRange(900, 2000))
	first, err := s.FirstIndex()
	require.NoError(t, err)
	require.EqualValues(t, 301, first)
	last, err = s.LastIndex()
	require.NoError(t, err)
	require.EqualValues(t, 899, last)
	require.Len(t, raw(t, s)["logs"], 599)
	require.ErrorIs(t, s.GetLog(900, &hraft.Log{}), hraft.ErrLogNotFound)
}

func openTestStore(t *testing.T, path string) *boltStore {
	t.Helper()
	s, err := openBoltStore(path, true)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// raw returns all keys and values by bucket.
func raw(t *testing.T, s *boltStore) map[string]map[string]string {
	t.Helper()
	all := make(map[string]map[string]string)
	require.NoError(t, s.db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			all[string(name)] = make(map[string]string)
			return b.ForEach(func(k, v []byte) error {
				all[string(name)][string(k)] = string(v)
				return nil
			})
		})
	}))
	return all
}
