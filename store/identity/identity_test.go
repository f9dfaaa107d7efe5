// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/identity"
)

// Fences are ordered by config, then by term (INV-1).
func TestFenceOrder(t *testing.T) {
	f := func(config, term uint64) identity.Fence { return identity.Fence{Config: config, Term: term} }
	require.True(t, f(1, 5).Less(f(2, 1)))
	require.True(t, f(1, 5).Less(f(1, 6)))
	require.False(t, f(2, 5).Less(f(2, 5)))
	require.False(t, f(3, 1).Less(f(2, 9)))
	require.True(t, f(2, 5).Admits(3, 1))
	require.True(t, f(2, 5).Admits(2, 5))
	require.False(t, f(2, 5).Admits(2, 4))
}

// An entry without a generation matches any generation (INV-11).
func TestMemberIs(t *testing.T) {
	m := identity.Member{Node: uuid.New(), Store: uuid.New(), Incarnation: 3, Generation: uuid.New()}
	require.True(t, m.Is(m))
	require.True(t, m.Is(m.WithGeneration(uuid.Nil)))
	require.True(t, m.WithGeneration(uuid.Nil).Is(m))
	require.False(t, m.Is(m.WithGeneration(uuid.New())))
	older := m
	older.Incarnation--
	require.False(t, m.Is(older.WithGeneration(uuid.Nil)))
}
