// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"sync"
)

// StallDisk stalls the disk under this voter's log until the returned function is called.
func (v *Voter) StallDisk() func() {
	stuck := make(chan struct{})
	v.logs.stuck.Store(&stuck)
	return sync.OnceFunc(func() {
		v.logs.stuck.Store(nil)
		close(stuck)
	})
}

// TakeSnapshot makes raft write a snapshot and truncate its log.
func (v *Voter) TakeSnapshot() error { return v.raft.Snapshot().Error() }

// Older returns options with which the voter appears as release 0.1.0 to the other voters.
func (o Options) Older() Options {
	o.older = true
	return o
}

// HandshakeFrom returns this voter's response to another voter that has recorded this voter's vote in votedTerm.
func (v *Voter) HandshakeFrom(from string, votedTerm uint64) error {
	return v.admit(kindRaft, handshake{From: from, To: v.disk.id, Seen: &peerProgress{Voted: votedTerm}})
}

// HandshakeBy returns this voter's response to a voter with an empty disk.
func (v *Voter) HandshakeBy(from string) error {
	return v.admit(kindRaft, handshake{From: from, To: v.disk.id, Have: &diskState{}})
}

// RecordedProgress returns the index of the last entry that another voter has acknowledged, as known to this voter.
func (v *Voter) RecordedProgress(id string) (uint64, error) {
	s, err := v.seen.of(id)
	return s.Acked, err
}

// Transfer transfers the leadership to another voter.
func (v *Voter) Transfer(ctx context.Context) error { return v.wait(ctx, v.raft.LeadershipTransfer()) }
