// SPDX-License-Identifier: Apache-2.0

package queue

import "github.com/lockstep-mq/lockstep/store/txn"

// Counts are how much was applied to a state since CountAfter. They are kept in memory only, and are no part of the
// state.
type Counts struct {
	// Transactions that changed something, and those that were refused.
	Transactions, Refused uint64
	// Published messages and their bytes, as they are stored.
	Published, PublishedBytes uint64
	// Acknowledged messages, each once for each subscription. Purged ones are not among them.
	Acknowledged uint64
	// Released messages: given back to their queue by a consumer, or left by one that is gone.
	Released uint64
	// Moved messages: dead letters, and those that were moved back. Dropped ones had no queue to be moved to.
	Moved, Dropped uint64
	// Overflowed messages: dropped from the head of a full queue.
	Overflowed uint64
	// Expired messages that were not moved to a dead-letter queue.
	Expired uint64
}

// Counts are what was applied since CountAfter.
func (s *State) Counts() Counts { return s.counts }

// CountAfter has the records after lsn counted: those up to it were counted before, by a run of the process that has
// ended.
func (s *State) CountAfter(lsn uint64) { s.countAfter = lsn }

// CountOn goes on with the counts of a state that this one replaces.
func (s *State) CountOn(before *State) { s.counts, s.countAfter = before.counts, before.countAfter }

// count takes an operation that was carried out.
func (c *Counts) count(o *txn.Op, r *txn.OpResult) {
	switch o.Code {
	case txn.OpPublish:
		c.Published += r.Changed
		c.PublishedBytes += uint64(len(o.Raw))
	case txn.OpAck, txn.OpTake:
		c.Acknowledged += r.Changed
	case txn.OpRelease:
		c.Released += r.Changed
	case txn.OpMove:
		if o.Target == txn.NoQueue {
			c.Dropped += r.Changed
		} else {
			c.Moved += r.Changed
		}
	default:
	}
}
