// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheConnectionThatHoldsMostIsClosed(t *testing.T) {
	var h held
	a, b, c := &conn{}, &conn{}, &conn{}
	require.Nil(t, h.change(a, 0, maxHeld/2))
	require.Nil(t, h.change(b, 0, maxHeld/4))
	require.Nil(t, h.change(c, 0, maxHeld/4))
	require.Same(t, a, h.change(c, maxHeld/4, maxHeld/4+1))
	require.Nil(t, h.change(b, maxHeld/4, maxHeld/8), "it has given something back")
	require.Same(t, a, h.change(c, maxHeld/4+1, 2*maxHeld/5))
	require.Nil(t, h.change(a, maxHeld/2, 0))
	require.Nil(t, h.change(c, 2*maxHeld/5, maxHeld/2))
	require.Same(t, c, h.change(c, maxHeld/2, maxHeld))
	require.Nil(t, h.change(c, maxHeld, 0))
	require.Nil(t, h.change(b, maxHeld/8, 0))
	require.Zero(t, h.total)
	require.Empty(t, h.of)
}
