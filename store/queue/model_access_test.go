// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// modelAccess is the access table: values by kind and name.
type modelAccess struct {
	version uint64
	entries map[string]string
}

// changeAccess sets and removes some entries. The expected version is mostly the current version.
func (m *model) changeAccess(b *txn.Builder, want *txn.Result) {
	expected := m.access.version
	if m.rng.IntN(4) == 0 {
		expected = m.rng.Uint64N(expected + 2)
	}
	next := map[string]string{}
	for name, value := range m.access.entries {
		next[name] = value
	}
	changed := uint64(0)
	var changes []txn.AccessChange
	for i := range m.rng.IntN(4) {
		c := txn.AccessChange{Kind: "rt"[m.rng.IntN(2)], Name: fmt.Appendf(nil, "n%d-%d", i, m.rng.IntN(3))}
		if c.Remove = m.rng.IntN(2) == 0; !c.Remove {
			c.Value = fmt.Append(nil, m.rng.IntN(1000))
		}
		key := string(c.Kind) + string(c.Name)
		_, there := next[key]
		if delete(next, key); !c.Remove {
			next[key] = string(c.Value)
		}
		if there || !c.Remove {
			changed++
		}
		changes = append(changes, c)
	}
	b.ChangeAccess(expected, m.rng.Uint32(), changes)
	if expected != m.access.version {
		want.Code, want.Op = txn.ErrAccessChanged, 0
		return
	}
	m.access.version, m.access.entries = m.lsn, next
	want.Ops = []txn.OpResult{{Changed: changed}}
}

func (a *modelAccess) check(t *testing.T, s *State) {
	t.Helper()
	version, entries := s.Access()
	require.Equal(t, a.version, version)
	require.Equal(t, version, s.AccessVersion())
	got := map[string]string{}
	for _, e := range entries {
		got[string(e.Kind)+e.Name] = string(e.Value)
	}
	require.Len(t, got, len(entries))
	require.Len(t, got, len(a.entries))
	for key, value := range a.entries {
		require.Equal(t, value, got[key], key)
	}
}
