// SPDX-License-Identifier: Apache-2.0

package faultproxy_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/harness/faultproxy"
)

// echoServer starts a server that echoes every byte.
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

// A cut link holds data until it is healed. Reset closes connections, and their held data is lost.
func TestCutHealReset(t *testing.T) {
	p, err := faultproxy.Listen(echoServer(t, "127.0.0.1:0").Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	c, err := net.Dial("tcp", p.Address())
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	echo := func(within time.Duration) error {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(within)))
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}

	_, err = c.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, echo(10*time.Second))

	p.Cut()
	_, err = c.Write([]byte("y"))
	require.NoError(t, err)
	require.Error(t, echo(100*time.Millisecond), "cut link")
	require.EqualValues(t, 1, p.Held(), "number of times data was held")
	p.Heal()
	require.NoError(t, echo(10*time.Second), "held data")

	p.Cut()
	_, err = c.Write([]byte("lost"))
	require.NoError(t, err)
	p.Reset()
	p.Heal()
	require.Error(t, echo(10*time.Second))
	c2, err := net.Dial("tcp", p.Address())
	require.NoError(t, err)
	defer func() { _ = c2.Close() }()
	c = c2
	_, err = c.Write([]byte("z"))
	require.NoError(t, err)
	require.NoError(t, echo(10*time.Second), "new connection")
}

// After calls its function once, before the byte at the limit is forwarded.
func TestAfter(t *testing.T) {
	p, err := faultproxy.Listen(echoServer(t, "127.0.0.1:0").Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	c, err := net.Dial("tcp", p.Address())
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	echo := func() {
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(c, make([]byte, 1))
		require.NoError(t, err)
	}
	called := make(chan int64, 10)
	p.After(6, func() { called <- p.Bytes() })
	for range 2 {
		echo()
	}
	require.Empty(t, called)
	echo()
	echo()
	require.Len(t, called, 1)
	require.EqualValues(t, 6, <-called, "the echo of the third byte")
	require.EqualValues(t, 8, p.Bytes())
}
