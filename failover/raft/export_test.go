package raftcoord

import "math"

// StallDisk makes this voter believe that its disk has owed an answer for ever, until the function that it returns is called.
func (v *Voter) StallDisk() func() {
	v.logs.since.Store(math.MinInt64 / 2)
	return func() { v.logs.since.Store(0) }
}

// TakeSnapshot makes raft write a snapshot and cut its log.
func (v *Voter) TakeSnapshot() error { return v.raft.Snapshot().Error() }
