// SPDX-License-Identifier: Apache-2.0

package peerclient_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/connectivity"

	"github.com/lockstep-mq/lockstep/server/peerclient"
	"github.com/lockstep-mq/lockstep/store"
)

// A connection is used until it is unused or the Remotes is closed.
func TestRemotes(t *testing.T) {
	r := peerclient.NewRemotes()
	defer r.Close()
	a, err := r.Conn("127.0.0.1:1")
	require.NoError(t, err)
	b, err := r.Conn("127.0.0.2:1")
	require.NoError(t, err)
	again, err := r.Conn("127.0.0.1:1")
	require.NoError(t, err)
	require.Same(t, a, again)

	r.Forget(func(address string, failed bool) bool { return failed || address == "127.0.0.1:1" })
	require.Equal(t, connectivity.Shutdown, a.GetState())
	again, err = r.Conn("127.0.0.1:1")
	require.NoError(t, err)
	require.NotSame(t, a, again)
	kept, err := r.Conn("127.0.0.2:1")
	require.NoError(t, err)
	require.Same(t, b, kept)

	r.Close()
	require.Equal(t, connectivity.Shutdown, b.GetState())
	_, err = r.Conn("127.0.0.2:1")
	require.ErrorIs(t, err, store.ErrClosed)
}
