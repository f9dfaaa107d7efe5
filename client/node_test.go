// SPDX-License-Identifier: Apache-2.0

package client

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/connectivity"
)

// If a connection is replaced after its client was closed, the new connection is also closed. Otherwise the
// goroutines of the connection would keep the bubble from ending.
func TestReplaceAfterClose(t *testing.T) { synctest.Test(t, testReplaceAfterClose) }

func testReplaceAfterClose(t *testing.T) {
	o, err := Options{Addresses: []string{"node:1"}}.withDefaults()
	require.NoError(t, err)
	cc, err := o.dial("node:1")
	require.NoError(t, err)
	n := &node{address: "node:1", locator: &locator{opts: o}, cc: cc}
	n.close()
	n.replace(cc)
	require.Equal(t, connectivity.Shutdown, n.conn().GetState())
}
