// SPDX-License-Identifier: Apache-2.0

package raft

import "sync"

// StallDisk makes the disk under this voter's log give no answer until the function that it returns is called.
func (v *Voter) StallDisk() func() {
	stuck := make(chan struct{})
	v.logs.stuck.Store(&stuck)
	return sync.OnceFunc(func() {
		v.logs.stuck.Store(nil)
		close(stuck)
	})
}

// TakeSnapshot makes raft write a snapshot and cut its log.
func (v *Voter) TakeSnapshot() error { return v.raft.Snapshot().Error() }

// Older makes options of a voter whose release is 0.1.0, for all that the others know.
func (o Options) Older() Options {
	o.older = true
	return o
}

// Greeted is what this voter answers to another that has had its vote in a term.
func (v *Voter) Greeted(from string, votedTerm uint64) error {
	return v.admit(kindRaft, handshake{From: from, To: v.disk.id, Seen: &sighting{Voted: votedTerm}})
}

// GreetedBy is what this voter answers to another whose disk is empty.
func (v *Voter) GreetedBy(from string) error {
	return v.admit(kindRaft, handshake{From: from, To: v.disk.id, Have: &diskState{}})
}

// KnownToHave is the last entry that this voter knows another one to have promised.
func (v *Voter) KnownToHave(id string) (uint64, error) {
	s, err := v.seen.of(id)
	return s.Acked, err
}
