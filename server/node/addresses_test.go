// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
)

// The addresses of a pair contain that of a standby that is in sync, but has no address in the record. They do not
// contain the address of a third node.
func TestAddressesOfPair(t *testing.T) {
	require.Equal(t, []string{"a:1"}, addressesOf("a:1", failover.Status{}))
	a, b, third := uuid.New(), uuid.New(), uuid.New()
	st := failover.Status{
		Record: &failover.Record{
			Nodes:  []failover.NodeInfo{{ID: a, Address: "a:1"}},
			InSync: []failover.Member{{Node: a}, {Node: b}},
		},
		Live: []failover.Live{
			{Node: failover.NodeInfo{ID: b, Address: "b:1"}}, {Node: failover.NodeInfo{ID: third, Address: "c:1"}},
		},
	}
	require.Equal(t, []string{"a:1", "b:1"}, addressesOf("a:1", st))
	st.Record.Nodes = append(st.Record.Nodes, failover.NodeInfo{ID: b, Address: "b:1"})
	require.Equal(t, []string{"a:1", "b:1"}, addressesOf("a:1", st))
}
