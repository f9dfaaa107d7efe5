// SPDX-License-Identifier: Apache-2.0

//go:build unix

package harness_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/stretchr/testify/require"
)

// A reserved port refuses connections while no process listens on it.
func TestReservedPort(t *testing.T) {
	p, err := harness.ReservePort()
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	for range 2 {
		_, err = net.Dial("tcp", p.Address())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		l, err := net.Listen("tcp", p.Address())
		require.NoError(t, err)
		c, err := net.Dial("tcp", p.Address())
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}
}
