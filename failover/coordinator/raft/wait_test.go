// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"testing"
	"testing/synctest"

	hraft "github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// blockedFSM blocks in Apply.
type blockedFSM struct {
	*fsm

	release chan struct{}
}

func (f blockedFSM) Apply(*hraft.Log) any {
	<-f.release
	return nil
}

// endWith ends the wait for each kind of request.
func TestEndWith(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		addr, trans := hraft.NewInmemTransport("")
		store := hraft.NewInmemStore()
		conf := raftConfig("a", DefaultElectionTimeout, newRaftLog(zap.NewNop()))
		f := blockedFSM{fsm: newFSM(), release: make(chan struct{})}
		r, err := hraft.NewRaft(conf, f, store, store, hraft.NewInmemSnapshotStore(), trans)
		require.NoError(t, err)
		require.NoError(t, r.BootstrapCluster(hraft.Configuration{
			Servers: []hraft.Server{{ID: "a", Address: addr}},
		}).Error())
		require.True(t, <-r.LeaderCh())

		ended := make(chan struct{})
		close(ended)
		for what, pending := range map[string]hraft.Future{
			"apply": r.Apply(nil, 0), "barrier": r.Barrier(0), "add": r.AddVoter("b", "b", 0, 0),
		} {
			endWith(pending, ended)
			require.ErrorIs(t, pending.Error(), hraft.ErrRaftShutdown, what)
		}
		known := r.LeadershipTransferToServer("a", addr) // to itself
		endWith(known, nil)
		require.Error(t, known.Error())
		close(f.release)
		require.NoError(t, r.Shutdown().Error())
		failed := r.Apply(nil, 0)
		endWith(failed, ended)
		require.ErrorIs(t, failed.Error(), hraft.ErrRaftShutdown)
	})
}
