// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	hraft "github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/test/simnet"
)

// stream is a stream layer on a simulated network.
type stream struct {
	net.Listener

	from *simnet.Process
}

func (s stream) Dial(target hraft.ServerAddress, _ time.Duration) (net.Conn, error) {
	return s.from.Dial(context.Background(), string(target))
}

// awaitHeartbeats waits for a heartbeat in progress, so that the disk is not closed before its end.
func TestAwaitHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAwaitHeartbeats)
}

func testAwaitHeartbeats(t *testing.T) {
	hosts := simnet.New(simnet.Options{})
	open := func(address string) *hraft.NetworkTransport {
		p := hosts.NewProcess(address[:1])
		ln, err := p.Listen(t.Context(), address)
		require.NoError(t, err)
		n := hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
			Stream: stream{ln, p}, MaxPool: 1, Timeout: time.Minute, Logger: newRaftLog(zap.NewNop()),
		})
		t.Cleanup(func() {
			require.NoError(t, n.Close())
			n.CloseStreams()
		})
		return n
	}
	to, from := &transport{NetworkTransport: open("a:1")}, open("b:1")
	begun, release, answered := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var ended atomic.Bool
	to.SetHeartbeatHandler(func(rpc hraft.RPC) {
		close(begun)
		<-release
		rpc.Respond(&hraft.AppendEntriesResponse{Success: true}, nil)
		ended.Store(true)
	})
	go func() {
		var resp hraft.AppendEntriesResponse
		args := &hraft.AppendEntriesRequest{RPCHeader: hraft.RPCHeader{ProtocolVersion: 3, Addr: []byte("x")}, Term: 1}
		answered <- from.AppendEntries("a", "a:1", args, &resp)
	}()
	<-begun
	go close(release)
	to.awaitHeartbeats()
	require.True(t, ended.Load(), "awaitHeartbeats did not wait")
	require.NoError(t, <-answered)
}
