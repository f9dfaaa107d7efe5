// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
)

// If the store of a node is replaced, its step no longer counts as done, regardless of which node is active. If a
// node is not connected, its step remains done.
func TestReplacedStoreIsNotDone(t *testing.T) {
	a, b := failover.Member{Node: uuid.New(), Store: uuid.New(), Incarnation: 1},
		failover.Member{Node: uuid.New(), Store: uuid.New(), Incarnation: 1}
	p := &Plan{Done: []failover.Member{a, b}}
	require.False(t, p.outdated(a, b))
	require.False(t, p.outdated(a, failover.Member{}), "b is unreachable")
	replaced := b
	replaced.Incarnation++
	for _, named := range [][]failover.Member{{a, replaced}, {replaced, a}, {replaced, {}}} {
		p := &Plan{Done: []failover.Member{a, b}}
		require.True(t, p.outdated(named...))
		p.removeOutdated(named...)
		require.Equal(t, []failover.Member{a}, p.Done)
		require.False(t, p.outdated(named...))
	}
}
