// SPDX-License-Identifier: Apache-2.0

package queue

import "github.com/lockstep-mq/lockstep/store/txn"

// Counts contains the numbers of transactions and messages that were applied to a state after the LSN passed to
// CountAfter. The counts are not part of the state.
type Counts struct {
	// Transactions counts applied transactions. Refused counts transactions with a rejected operation. Retries, changes
	// of the site role, and transactions rejected because of the producer or the site role are not counted.
	Transactions, Refused uint64
	// Published counts the messages of publishes, without duplicates and forwards. PublishedBytes is their size.
	Published, PublishedBytes uint64
	// Acknowledged counts messages acknowledged with OpAck or OpTake, once per subscription of a client. It does not
	// count messages that another operation acknowledged, such as a purge, a move or an expiry.
	Acknowledged uint64
	// Released counts messages released with OpRelease, for example after a nack, once per subscription and release.
	Released uint64
	// Moved counts messages moved to another queue, such as dead letters. Dropped counts messages discarded for lack of
	// a dead-letter queue.
	Moved, Dropped uint64
	// Overflowed counts messages that txn.OverflowDropHead discarded.
	Overflowed uint64
	// Expired counts expired messages that were not moved to a dead-letter queue.
	Expired uint64
	// Duplicates counts messages discarded by the deduplication window of a queue.
	Duplicates uint64
}

// Counts returns the counts since the LSN passed to CountAfter.
func (s *State) Counts() Counts { return s.counts }

// CountAfter excludes the records up to lsn from the counts.
func (s *State) CountAfter(lsn uint64) { s.countAfter = lsn }

// ContinueCounts copies the counts and the LSN of CountAfter from before, the state that s replaces.
func (s *State) ContinueCounts(before *State) {
	s.counts, s.countAfter = before.counts, before.countAfter
}

func (c *Counts) count(o *txn.Op, r *txn.OpResult) {
	switch o.Code {
	case txn.OpPublish:
		c.Published += r.Changed
		c.PublishedBytes += uint64(len(o.Raw))
	case txn.OpAck, txn.OpTake:
		if o.Sub != txn.RetentionSub {
			c.Acknowledged += r.Changed
		}
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
