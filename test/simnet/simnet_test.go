// SPDX-License-Identifier: Apache-2.0

package simnet_test

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/simnet"
)

const at = "10.0.0.1:7420"

// connect returns both ends of a connection.
func connect(t *testing.T, from, to *simnet.Process) (client, server net.Conn) {
	t.Helper()
	l, err := to.Listen(t.Context(), at)
	require.NoError(t, err)
	client, err = from.Dial(t.Context(), at)
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	return client, server
}

// A dial takes one round trip. Data, and the EOF after it, arrive after the latency of the link.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		n := simnet.New(simnet.Options{Delay: time.Second})
		client, server := connect(t, n.NewProcess("10.0.0.2"), n.NewProcess("10.0.0.1"))
		require.Equal(t, 2*time.Second, time.Since(start), "round trip")
		_, err := client.Write([]byte("hello"))
		require.NoError(t, err)
		require.NoError(t, client.Close())
		got, err := io.ReadAll(server)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Equal(t, client.LocalAddr(), server.RemoteAddr())
		require.IsType(t, (*net.TCPAddr)(nil), server.RemoteAddr())
	})
}

// With a rate limit, a message arrives when it has been transmitted completely. The transmission of the next message
// then begins.
func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{Delay: time.Second})
		client, server := connect(t, n.NewProcess("10.0.0.2"), n.NewProcess("10.0.0.1"))
		n.Change(simnet.Way{From: "10.0.0.2", To: "10.0.0.1"}, func(l *simnet.Link) { l.BytesPerSecond = 10 })
		start := time.Now()
		for _, size := range []int{10, 20} {
			_, err := client.Write(make([]byte, size))
			require.NoError(t, err)
		}
		for _, at := range []time.Duration{2 * time.Second, 4 * time.Second} {
			_, err := server.Read(make([]byte, 100))
			require.NoError(t, err)
			require.Equal(t, at, time.Since(start))
		}
	})
}

// A cut link holds data, and delivers it after Heal.
func TestCutLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{})
		client, server := connect(t, n.NewProcess("10.0.0.2"), n.NewProcess("10.0.0.1"))
		n.SetCut("10.0.0.1", "10.0.0.2", true)
		_, err := client.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err = server.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		n.Heal()
		require.NoError(t, server.SetReadDeadline(time.Time{}))
		_, err = server.Read(make([]byte, 1))
		require.NoError(t, err)
	})
}

// Kill resets the connections of a process. Later dials are refused.
func TestKillProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{})
		here, there := n.NewProcess("10.0.0.2"), n.NewProcess("10.0.0.1")
		client, _ := connect(t, here, there)
		there.Kill()
		_, err := client.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = here.Dial(t.Context(), at)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

// A dial to a host without power receives no response.
func TestPowerLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{})
		n.SetPower("10.0.0.1", false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := n.NewProcess("10.0.0.2").Dial(ctx, at)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// Listen assigns an unused port for port 0, and rejects a port in use.
func TestListenAssignsPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{})
		p := n.NewProcess("10.0.0.1")
		l, err := p.Listen(t.Context(), "10.0.0.1:0")
		require.NoError(t, err)
		_, err = p.Listen(t.Context(), l.Addr().String())
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		_, err = n.NewProcess("10.0.0.2").Dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
	})
}
