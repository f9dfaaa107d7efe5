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
	to, from := connectedTransports(t)
	to.follows = func(uint64) bool { return true }
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

// The heartbeat handler, which runs concurrently with raft's main goroutine, receives only heartbeats of the current
// term of a follower. The main goroutine receives the others unless its disk is stalled.
func TestHeartbeatsOfOtherTerms(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testHeartbeatsOfOtherTerms)
}

func testHeartbeatsOfOtherTerms(t *testing.T) {
	to, from := connectedTransports(t)
	to.follows = func(term uint64) bool { return term == 3 }
	stalled := false
	to.stalled = func() bool { return stalled }
	respond := func(by uint64) func(hraft.RPC) {
		return func(rpc hraft.RPC) { rpc.Respond(&hraft.AppendEntriesResponse{Term: by}, nil) }
	}
	const handler, main = 1, 2
	to.SetHeartbeatHandler(respond(handler))
	ended := make(chan struct{})
	defer func() { <-ended }()
	defer close(to.closed)
	go func() {
		defer close(ended)
		for {
			select {
			case rpc := <-to.inbound:
				respond(main)(rpc)
			case <-to.closed:
				return
			}
		}
	}()
	for _, c := range []struct {
		term    uint64
		stalled bool
		by      uint64
	}{{2, false, main}, {3, false, handler}, {4, false, main}, {4, true, handler}} {
		stalled = c.stalled
		var resp hraft.AppendEntriesResponse
		args := &hraft.AppendEntriesRequest{
			RPCHeader: hraft.RPCHeader{ProtocolVersion: 3, Addr: []byte("x")}, Term: c.term,
		}
		require.NoError(t, from.AppendEntries("a", "a:1", args, &resp))
		require.Equal(t, c.by, resp.Term, "%+v", c)
	}
}

// connectedTransports returns two transports, of which from can send requests to a:1.
func connectedTransports(t *testing.T) (to *transport, from *hraft.NetworkTransport) {
	t.Helper()
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
	to = &transport{NetworkTransport: open("a:1"), inbound: make(chan hraft.RPC), closed: make(chan struct{})}
	return to, open("b:1")
}
