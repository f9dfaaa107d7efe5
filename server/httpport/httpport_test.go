// SPDX-License-Identifier: Apache-2.0

package httpport

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const most, perHost = 256, 32

// Connections from an address are closed if they exceed the limit. When a connection has ended, a new connection is
// accepted.
func TestConnectionLimitPerAddress(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := limited(raw, most, perHost)
	accepted := make(chan net.Conn, most)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", raw.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var held []net.Conn
	for range perHost {
		dial()
		held = append(held, <-accepted)
	}
	refused := dial()
	require.NoError(t, refused.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = refused.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, held[0].Close())
	_ = held[0].Close() // a second Close does not count
	dial()
	held[0] = <-accepted
	for _, c := range held {
		require.NoError(t, c.Close())
	}
	require.NoError(t, raw.Close())
	_, more := <-accepted
	require.False(t, more)
	require.Zero(t, l.open)
	require.Empty(t, l.byHost)
}

// The limit of open connections applies to all addresses together.
func TestConnectionLimit(t *testing.T) {
	l := limited(nil, most, perHost)
	for i := range most {
		require.True(t, l.take(string(rune('a'+i/perHost))))
	}
	require.False(t, l.take("z"))
	l.leave("a")
	require.True(t, l.take("z"))
}

// A limit of 0 means no limit.
func TestUnlimited(t *testing.T) {
	l := limited(nil, 0, 0)
	for range 1000 {
		require.True(t, l.take("a"))
	}
	l = limited(nil, 10, 0)
	for range 10 {
		require.True(t, l.take("a"))
	}
	require.False(t, l.take("b"))
}

// When its context is canceled, Run calls the function that ends long-running requests. It waits for requests in
// progress and returns.
func TestRunCompletesRequests(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	p, err := Listen(t.Context(), Options{Address: "127.0.0.1:0", Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			close(begun)
			<-release
			_, _ = w.Write([]byte("answered"))
		})})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, func() { close(release) }) }()
	answer := make(chan string, 1)
	go func() {
		r, err := http.Get("http://" + p.Address())
		if err != nil {
			answer <- err.Error()
			return
		}
		body, _ := io.ReadAll(r.Body)
		answer <- string(body)
		_ = r.Body.Close()
	}()
	<-begun
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, "answered", <-answer)
	_, err = Listen(t.Context(), Options{Address: "256.0.0.1:1"})
	require.Error(t, err)
}
