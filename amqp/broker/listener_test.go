// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

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
