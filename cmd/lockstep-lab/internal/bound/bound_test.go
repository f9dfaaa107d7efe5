// SPDX-License-Identifier: Apache-2.0

package bound

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each message receives one response: with each transport, with one or many messages in flight, and with and without
// storage.
func TestLoad(t *testing.T) {
	for _, c := range []struct {
		transport Transport
		size      int
		window    int
		sync      bool
	}{
		{GRPC, 512, 1, false},
		{GRPC, 100_000, 1000, false},
		{TCP, 0, 1, false},
		{TCP, 15_000, 64, false},
		{TCP, bufferBytes + 1, 5, false}, // does not fit into a buffer
		{TCP, 15_000, 64, true},
	} {
		dir := ""
		if c.sync {
			dir = t.TempDir()
		}
		address := relays(t, c.transport, dir)
		recorded := 0
		n, took, err := Load(t.Context(), LoadOptions{
			Transport: c.transport, Address: address, Connections: 2, Window: c.window, Body: make([]byte, c.size),
			Duration: 30 * time.Millisecond, Record: func(d time.Duration) {
				require.Positive(t, d)
				recorded++
			},
		})
		require.NoError(t, err, "%+v", c)
		require.Positive(t, n)
		require.Equal(t, n, recorded)
		require.GreaterOrEqual(t, took, 30*time.Millisecond)
		if c.sync {
			require.Eventually(t, func() bool { // each connection removes its log file
				files, err := os.ReadDir(dir)
				return err == nil && len(files) == 0
			}, time.Minute, time.Millisecond)
		}
	}
}

// Load ends when its context is canceled. It returns an error when a relay stops.
func TestLoadEnds(t *testing.T) {
	for _, transport := range []Transport{GRPC, TCP} {
		address := relays(t, transport, "")
		ctx, cancel := context.WithCancel(t.Context())
		_, _, err := Load(ctx, LoadOptions{
			Transport: transport, Address: address, Connections: 1, Window: 10, Duration: time.Hour,
			Record: func(time.Duration) { cancel() },
		})
		require.ErrorIs(t, err, context.Canceled)
	}
	_, _, err := Load(t.Context(), LoadOptions{Transport: TCP, Address: "127.0.0.1:1", Connections: 1, Window: 1})
	require.Error(t, err)
	require.Error(t, Serve(RelayOptions{Transport: "smoke"}, nil, nil))
}

// relays starts two relays and returns the address of the first.
func relays(t *testing.T, transport Transport, dir string) (address string) {
	t.Helper()
	stop := make(chan struct{})
	ended := make(chan error, 2)
	for range 2 {
		next, started := address, make(chan string, 1)
		go func() {
			ended <- Serve(RelayOptions{Transport: transport, Next: next, Sync: dir}, stop, func(address string) error {
				started <- address
				return nil
			})
		}()
		address = <-started
	}
	t.Cleanup(func() {
		close(stop)
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	})
	return address
}
