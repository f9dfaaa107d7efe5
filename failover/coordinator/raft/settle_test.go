// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"io"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// awaitHeartbeats waits for a heartbeat in progress, so that the disk is not closed before its end.
func TestAwaitHeartbeats(t *testing.T) {
	t.Parallel()
	dial := func() *hraft.NetworkTransport {
		n, err := hraft.NewTCPTransport("127.0.0.1:0", nil, 1, time.Minute, io.Discard)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		return n
	}
	to, from := &transport{NetworkTransport: dial()}, dial()
	begun, release, answered := make(chan struct{}), make(chan struct{}), make(chan error)
	to.SetHeartbeatHandler(func(rpc hraft.RPC) {
		close(begun)
		<-release
		rpc.Respond(&hraft.AppendEntriesResponse{Success: true}, nil)
	})
	go func() {
		var resp hraft.AppendEntriesResponse
		args := &hraft.AppendEntriesRequest{RPCHeader: hraft.RPCHeader{ProtocolVersion: 3, Addr: []byte("x")}, Term: 1}
		answered <- from.AppendEntries("to", to.LocalAddr(), args, &resp)
	}()
	<-begun
	settled := make(chan struct{})
	go func() {
		to.awaitHeartbeats()
		close(settled)
	}()
	select {
	case <-settled:
		t.Fatal("awaitHeartbeats did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	close(release)
	<-settled
	require.NoError(t, <-answered)
}
