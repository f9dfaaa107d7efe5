// SPDX-License-Identifier: Apache-2.0

package txn

// Version of the transaction encoding.
const Version = 1

// headerBytes is the length of a transaction's header without a producer.
const headerBytes = 12

// opHeaderBytes is the length of an operation's header.
const opHeaderBytes = 5

const flagProducer = 1

// OpCode is the kind of an operation.
type OpCode uint8

// Operation codes. They are stored in the log and keep their meaning for good.
const (
	// OpCreateQueue makes a queue together with its first subscriptions.
	OpCreateQueue OpCode = 1
	// OpAlterQueue changes fields of a queue's configuration.
	OpAlterQueue OpCode = 2
	// OpDeleteQueue removes a queue with all of its messages and subscriptions.
	OpDeleteQueue OpCode = 3
	// OpPurge acknowledges everything one subscription, or all of them, has not yet acknowledged.
	OpPurge OpCode = 4
	// OpCreateSubscription adds a subscription to a queue.
	OpCreateSubscription OpCode = 5
	// OpDeleteSubscription removes a subscription.
	OpDeleteSubscription OpCode = 6
	// OpPublish adds messages to a queue.
	OpPublish OpCode = 7
	// OpAck acknowledges messages of one subscription.
	OpAck OpCode = 8
	// OpRelease adds one to the delivery count of messages of one subscription.
	OpRelease OpCode = 9
	// OpDue makes delayed messages deliverable, and expires messages.
	OpDue OpCode = 10
	// OpMove moves messages of one subscription to another queue, or drops them, unless they are acknowledged by then.
	OpMove OpCode = 11
	// OpPrepare keeps a transaction, whose publishes are in no queue and whose messages are with no consumer, until it
	// is decided.
	OpPrepare OpCode = 12
	// OpCommitPrepared carries a prepared transaction out.
	OpCommitPrepared OpCode = 13
	// OpRollbackPrepared drops a prepared transaction.
	OpRollbackPrepared OpCode = 14
	// OpSeek moves a subscription to a sequence: what is below it is acknowledged, and what is alive from there on is
	// not. Of RetentionSub it moves the floor, up only, and only while the retention is the one that the operation
	// names.
	OpSeek OpCode = 15
	// OpPutMeta sets one of the pair's own small entries.
	OpPutMeta OpCode = 16
	// OpDeleteMeta removes one of them.
	OpDeleteMeta OpCode = 17
	// OpCreateSubscriptionWith adds a subscription that has options: a filter.
	OpCreateSubscriptionWith OpCode = 18
	// OpTake acknowledges messages of one subscription, none of which may be acknowledged, or held by a prepared
	// transaction.
	OpTake OpCode = 20
	// OpForward has messages of the publish before it go to another queue. The active adds it.
	OpForward OpCode = 19
	// OpSetForwards replaces the forwards of a queue.
	OpSetForwards OpCode = 21
	// OpAlterSubscription changes options of a subscription.
	OpAlterSubscription OpCode = 23
	// OpAccess changes the access table, unless it was changed by another operation in the meantime.
	OpAccess OpCode = 22
)

// String gives the name that `store dump-log` shows.
func (c OpCode) String() string {
	switch c {
	case OpCreateQueue:
		return "create-queue"
	case OpAlterQueue:
		return "alter-queue"
	case OpDeleteQueue:
		return "delete-queue"
	case OpPurge:
		return "purge"
	case OpCreateSubscription:
		return "create-subscription"
	case OpDeleteSubscription:
		return "delete-subscription"
	case OpPublish:
		return "publish"
	case OpAck:
		return "ack"
	case OpRelease:
		return "release"
	case OpDue:
		return "due"
	case OpMove:
		return "move"
	case OpSeek:
		return "seek"
	case OpPrepare:
		return "prepare"
	case OpCommitPrepared:
		return "commit-prepared"
	case OpRollbackPrepared:
		return "rollback-prepared"
	case OpPutMeta:
		return "put-meta"
	case OpDeleteMeta:
		return "delete-meta"
	case OpCreateSubscriptionWith:
		return "create-subscription-with"
	case OpTake:
		return "take"
	case OpForward:
		return "forward"
	case OpSetForwards:
		return "set-forwards"
	case OpAccess:
		return "access"
	case OpAlterSubscription:
		return "alter-subscription"
	}
	return "unknown"
}

// Alone tells whether the operation must be the only one of its transaction. What makes, changes or removes a queue or
// a subscription must, what prepares or decides a transaction, and what changes the access table: it makes "a refused
// transaction changes nothing" a matter of checking each operation against the state as it is.
func (c OpCode) Alone() bool {
	return c < OpPublish || c == OpCreateSubscriptionWith || c == OpSetForwards || c == OpAccess ||
		c == OpAlterSubscription ||
		c >= OpPrepare && c <= OpRollbackPrepared
}

// Start says where a new subscription begins to read.
type Start uint8

// Start positions, as stored.
const (
	// StartLatest: only what is published after the subscription was made.
	StartLatest Start = 1
	// StartEarliest: also what some other subscription has still to acknowledge.
	StartEarliest Start = 2
	// StartSequence: what some other subscription has still to acknowledge, or is retained, from a sequence on.
	StartSequence Start = 3
)

// Producer makes a transaction safe to retry (INV-10).
type Producer struct {
	// ID is 1 to MaxProducerIDBytes bytes. From a Reader it aliases the payload.
	ID []byte
	// Epoch: a higher one fences all lower ones of the same ID.
	Epoch uint32
	// Sequence is at least 1 and different for each transaction of an epoch; a retry repeats it.
	Sequence uint64
}

// Range is an inclusive range of message sequences.
type Range struct {
	// First sequence, at least 1.
	First uint64
	// Last sequence, not below First.
	Last uint64
}

// Result is what applying a transaction gave. It is the same on both nodes.
type Result struct {
	// LSN of the record that was applied; for a duplicate, of the original.
	LSN uint64
	// Duplicate is true when the producer's sequence was applied before: this is the original's result.
	Duplicate bool
	// Code is OK, or why the transaction was refused. A refused transaction changed nothing.
	Code Code
	// Op is the index of the operation that was refused, or -1.
	Op int
	// Ops holds one result for each operation, in order; empty when the transaction was refused. Not to be changed.
	Ops []OpResult
}

// OpResult is the result of one operation.
type OpResult struct {
	// FirstSequence is, for a publish, the sequence of its first message; for a move, that of the first in its target;
	// for a seek, the first one that is not acknowledged.
	FirstSequence uint64
	// ID is the number of the queue or subscription that was made.
	ID uint64
	// Changed is the number of messages that were published, acknowledged, released, moved, purged or deleted, or that
	// became deliverable or expired; for a seek of a client's subscription, of those that are not acknowledged now.
	Changed uint64
}

// Err gives nil for OK, otherwise an *Error that wraps the code.
func (r *Result) Err() error {
	if r.Code == OK {
		return nil
	}
	return &Error{Code: r.Code, Op: r.Op}
}
