//go:build unix

package cluster

import (
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// echoServer answers every byte with itself.
func echoServer(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l
}

func TestPortIsRefusedUntilSomebodyListens(t *testing.T) {
	p, err := ReservePort()
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	for range 2 {
		_, err = net.Dial("tcp", p.Address())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		l := echoServer(t, p.Address())
		c, err := net.Dial("tcp", p.Address())
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}
}
