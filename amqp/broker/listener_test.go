// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// exhausted is a listener that fails once because too many files are open.
type exhausted struct {
	*bufconn.Listener

	failed atomic.Bool
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.failed.CompareAndSwap(false, true) {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func (l *exhausted) Dial() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	return l.DialContext(ctx)
}

// A temporary error of the listener does not end the server.
func TestTemporaryAcceptError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &exhausted{Listener: bufconn.Listen(1 << 20)}
		s, _, stop := serve(t, func(o *Options) {
			_ = o.Listener.Close()
			o.Listener = l
		})
		defer stop()
		p := dial(t, s, "c")
		require.True(t, until[*wire.Open](p))
		require.True(t, l.failed.Load())
	})
}

// broken is a listener that fails permanently after its first connection.
type broken struct {
	*bufconn.Listener

	accepted atomic.Bool
}

func (l *broken) Accept() (net.Conn, error) {
	if !l.accepted.CompareAndSwap(false, true) {
		return nil, &net.OpError{Op: "accept", Err: syscall.EINVAL}
	}
	return l.Listener.Accept()
}

// After a permanent error of the listener, Run closes all connections and returns the error.
func TestPermanentAcceptError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := optionsFor(t, &node{})
		require.NoError(t, o.Listener.Close())
		l := &broken{Listener: bufconn.Listen(1 << 20)}
		o.Listener = l
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- New(o).Run(ctx) }()
		client, err := l.DialContext(ctx)
		require.NoError(t, err)
		select {
		case err := <-ended:
			require.ErrorIs(t, err, syscall.EINVAL)
		case <-time.After(testTimeout):
			require.Fail(t, "Run does not return")
		}
		_, _ = io.Copy(io.Discard, client) // ends when the connection is closed
		require.NoError(t, client.Close())
	})
}
