// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// One address gets so many connections; the next one of it is closed, and comes in when another has left.
func TestConnectionsOfAnAddress(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := limited(raw)
	inside := make(chan net.Conn, maxConnections)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(inside)
				return
			}
			inside <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", raw.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var held []net.Conn
	for range maxConnectionsPerAddress {
		dial()
		held = append(held, <-inside)
	}
	refused := dial()
	require.NoError(t, refused.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = refused.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, held[0].Close())
	_ = held[0].Close() // counts once
	dial()
	held[0] = <-inside
	for _, c := range held {
		require.NoError(t, c.Close())
	}
	require.NoError(t, raw.Close())
	_, more := <-inside
	require.False(t, more)
	require.Zero(t, l.open)
	require.Empty(t, l.byHost)
}

// All addresses together get so many.
func TestConnectionsOfAll(t *testing.T) {
	l := limited(nil)
	for i := range maxConnections {
		require.True(t, l.take(string(rune('a'+i/maxConnectionsPerAddress))))
	}
	require.False(t, l.take("z"))
	l.leave("a")
	require.True(t, l.take("z"))
}
