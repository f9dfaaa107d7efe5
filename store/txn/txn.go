// SPDX-License-Identifier: Apache-2.0

package txn

// Version of the transaction encoding.
const Version = 1

// headerBytes is the length of a transaction's header without a producer.
const headerBytes = 12

const opHeaderBytes = 5

const flagProducer = 1

// OpCode is the kind of an operation.
type OpCode uint8

// Operation codes. They are stored in the log and never change their meaning.
const (
	OpCreateQueue OpCode = 1
	OpAlterQueue  OpCode = 2
	OpDeleteQueue OpCode = 3
	// OpPurge acknowledges all unacknowledged messages of one subscription, or of all subscriptions.
	OpPurge              OpCode = 4
	OpCreateSubscription OpCode = 5
	OpDeleteSubscription OpCode = 6
	OpPublish            OpCode = 7
	OpAck                OpCode = 8
	// OpRelease increments the delivery counts of messages of one subscription.
	OpRelease OpCode = 9
	OpDue     OpCode = 10
	// OpMove moves messages of one subscription to another queue, or discards them. Acknowledged messages are skipped.
	OpMove OpCode = 11
	// OpPrepare stores a transaction until it is decided. Messages that it acknowledges are not delivered until then.
	OpPrepare          OpCode = 12
	OpCommitPrepared   OpCode = 13
	OpRollbackPrepared OpCode = 14
	// OpSeek moves a subscription: messages below the sequence are acknowledged, live messages from there on are not. For
	// RetentionSub it only raises the floor, and only if the queue still has the retention in the operation.
	OpSeek                   OpCode = 15
	OpPutMeta                OpCode = 16
	OpDeleteMeta             OpCode = 17
	OpCreateSubscriptionWith OpCode = 18
	// OpTake is OpAck for messages of which none may be acknowledged or reserved by a prepared transaction.
	OpTake OpCode = 20
	// OpForward forwards messages of the preceding publish to another queue. The active adds it.
	OpForward           OpCode = 19
	OpSetForwards       OpCode = 21
	OpAlterSubscription OpCode = 23
	// OpAccess changes the access table, unless it was changed in the meantime.
	OpAccess OpCode = 22
)

var opNames = [...]string{
	OpCreateQueue:            "create-queue",
	OpAlterQueue:             "alter-queue",
	OpDeleteQueue:            "delete-queue",
	OpPurge:                  "purge",
	OpCreateSubscription:     "create-subscription",
	OpDeleteSubscription:     "delete-subscription",
	OpPublish:                "publish",
	OpAck:                    "ack",
	OpRelease:                "release",
	OpDue:                    "due",
	OpMove:                   "move",
	OpSeek:                   "seek",
	OpPrepare:                "prepare",
	OpCommitPrepared:         "commit-prepared",
	OpRollbackPrepared:       "rollback-prepared",
	OpPutMeta:                "put-meta",
	OpDeleteMeta:             "delete-meta",
	OpCreateSubscriptionWith: "create-subscription-with",
	OpTake:                   "take",
	OpForward:                "forward",
	OpSetForwards:            "set-forwards",
	OpAccess:                 "access",
	OpAlterSubscription:      "alter-subscription",
}

// String returns the name shown by `store dump-log`.
func (c OpCode) String() string {
	if int(c) < len(opNames) && opNames[c] != "" {
		return opNames[c]
	}
	return "unknown"
}

// Alone reports whether the operation must be the only one of its transaction: those that create, change or delete
// queues and subscriptions, prepare or decide transactions, or change the access table. Operations are checked against
// the state before their transaction, so that a rejected one changes nothing.
func (c OpCode) Alone() bool {
	return c < OpPublish || c == OpCreateSubscriptionWith || c == OpSetForwards || c == OpAccess ||
		c == OpAlterSubscription || c >= OpPrepare && c <= OpRollbackPrepared
}

// Start is the start position of a new subscription.
type Start uint8

// Start positions, as stored.
const (
	StartLatest Start = 1
	// StartEarliest includes messages that another subscription has not acknowledged.
	StartEarliest Start = 2
	// StartSequence starts at a sequence, with messages that are retained or not acknowledged by all subscriptions.
	StartSequence Start = 3
)

// Producer identifies a transaction so that it can be retried safely (INV-10).
type Producer struct {
	// ID has 1 to MaxProducerIDBytes bytes. If returned by a Reader, it aliases the payload.
	ID []byte
	// Epoch fences all lower epochs of the same ID.
	Epoch uint32
	// Sequence is at least 1 and unique per transaction of an epoch; a retry uses the same sequence.
	Sequence uint64
}

// Range is an inclusive range of message sequences.
type Range struct {
	// First is at least 1.
	First uint64
	Last  uint64
}

// Result is the result of applying a transaction. It is the same on both nodes.
type Result struct {
	// LSN of the applied record; for a duplicate, of the original.
	LSN uint64
	// Duplicate is true if the producer's sequence was applied before: this is the original result.
	Duplicate bool
	// Code is OK, or the reason of the rejection. A rejected transaction changed nothing.
	Code Code
	// Op is the index of the rejected operation, or -1.
	Op int
	// Ops has one result per operation, in order; empty if the transaction was rejected. It must not be changed.
	Ops []OpResult
}

// OpResult is the result of one operation.
type OpResult struct {
	// FirstSequence is, for a publish, the sequence of its first message; for a move, the first sequence in its target;
	// for a seek, the first unacknowledged sequence.
	FirstSequence uint64
	// ID is the number of the new queue or subscription; for a decided transaction see queue.OutcomeOf.
	ID uint64
	// Changed is the number of messages that were published, acknowledged, released, moved, purged or deleted, or that
	// became deliverable or expired; for a seek of a client's subscription, the number of unacknowledged messages.
	Changed uint64
}

// Err returns nil for OK, otherwise an *Error that wraps the code.
func (r *Result) Err() error {
	if r.Code == OK {
		return nil
	}
	return &Error{Code: r.Code, Op: r.Op}
}
