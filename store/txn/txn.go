// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"cmp"
	"slices"
)

// Version is the version of the transaction encoding.
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
	// OpPurge acknowledges all messages for one subscription, or for all subscriptions.
	OpPurge              OpCode = 4
	OpCreateSubscription OpCode = 5
	OpDeleteSubscription OpCode = 6
	OpPublish            OpCode = 7
	OpAck                OpCode = 8
	// OpRelease increments the delivery counts of unacknowledged messages for one subscription.
	OpRelease OpCode = 9
	OpDue     OpCode = 10
	// OpMove moves messages of one subscription to another queue, or discards them. It skips messages that are
	// acknowledged, or reserved by a prepared transaction.
	OpMove OpCode = 11
	// OpPrepare stores a transaction until it is committed or rolled back. Until then, the messages that the transaction
	// acknowledges for a subscription are reserved, and are not delivered to that subscription.
	OpPrepare          OpCode = 12
	OpCommitPrepared   OpCode = 13
	OpRollbackPrepared OpCode = 14
	// OpSeek moves a subscription to a sequence. Messages below the sequence become acknowledged. Live messages from the
	// sequence on become unacknowledged. All delivery counts are removed. For RetentionSub, OpSeek only raises the
	// floor, and only if the queue still has the retention in the operation.
	OpSeek                   OpCode = 15
	OpPutMeta                OpCode = 16
	OpDeleteMeta             OpCode = 17
	OpCreateSubscriptionWith OpCode = 18
	// OpTake is like OpAck, but is rejected if a message is already acknowledged or reserved by a prepared
	// transaction.
	OpTake OpCode = 20
	// OpForward forwards messages of the preceding publish to another queue.
	OpForward           OpCode = 19
	OpSetForwards       OpCode = 21
	OpAlterSubscription OpCode = 23
	// OpAccess changes the access table if the table has the expected version.
	OpAccess OpCode = 22
	// OpPause pauses or resumes a queue or a subscription.
	OpPause OpCode = 24
	// OpSwapMeta replaces an internal entry if the entry has the expected version.
	OpSwapMeta OpCode = 26
	// OpPolicy sets or deletes a policy for queues.
	OpPolicy OpCode = 25
	// OpSite changes the site state of the pair, such as its role. It changes nothing else.
	OpSite OpCode = 27
	// OpFleet makes the pair join or leave a fleet. It changes no queue.
	OpFleet OpCode = 28
	// OpOwn sets the ownership epoch of the queue that the following OpCreateQueue creates, or raises the epoch of an
	// existing queue.
	OpOwn OpCode = 29
	// OpFence fences queues of this pair for a move to another pair. Fenced queues do not change until the fence ends
	// or the queues are deleted.
	OpFence OpCode = 30
	// OpUnfence ends a fence. The pair continues to own the queues.
	OpUnfence OpCode = 31
	// OpDropMoved deletes fenced queues that another pair has taken.
	OpDropMoved OpCode = 32
	// OpImportBegin creates incoming queues, which clients cannot use.
	OpImportBegin OpCode = 33
	// OpImport adds messages to an incoming queue.
	OpImport OpCode = 34
	// OpImportState adds a part of the state of an incoming queue, such as its configuration or subscriptions.
	OpImportState OpCode = 35
	// OpTakeMoved makes the pair the owner of incoming queues.
	OpTakeMoved OpCode = 36
	// OpCancelImport deletes incoming queues, and ensures that they are not taken under their epoch.
	OpCancelImport OpCode = 37
	// OpForgetMove removes the record of a taken or canceled move.
	OpForgetMove OpCode = 38
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
	OpPause:                  "pause",
	OpSwapMeta:               "swap-meta",
	OpPolicy:                 "policy",
	OpSite:                   "site",
	OpFleet:                  "fleet",
	OpOwn:                    "own",
	OpFence:                  "fence",
	OpUnfence:                "unfence",
	OpDropMoved:              "drop-moved",
	OpImportBegin:            "import-begin",
	OpImport:                 "import",
	OpImportState:            "import-state",
	OpTakeMoved:              "take-moved",
	OpCancelImport:           "cancel-import",
	OpForgetMove:             "forget-move",
}

// String returns the name of the operation, as shown by `store dump-log`.
func (c OpCode) String() string {
	if int(c) < len(opNames) && opNames[c] != "" {
		return opNames[c]
	}
	return "unknown"
}

// Alone reports whether the operation must be the only one of its transaction. The reason is that all operations are
// checked against the state before the transaction. Alone is false for operations on messages (publish, forward, move,
// ack, take, release, seek, due) and on internal entries. It is true for all other operations. Nevertheless, an OpOwn
// may be followed by the OpCreateQueue of the same name.
func (c OpCode) Alone() bool {
	return c < OpPublish || c == OpCreateSubscriptionWith || c == OpSetForwards || c == OpAccess ||
		c == OpAlterSubscription || c == OpPause || c == OpPolicy || c == OpSite || c == OpFleet || c == OpOwn || c.Moves() ||
		c >= OpPrepare && c <= OpRollbackPrepared
}

// Moves reports whether the operation is a part of a move of queues to another pair, or from another pair.
func (c OpCode) Moves() bool { return c >= OpFence && c <= OpForgetMove }

// Start is the start position of a new subscription.
type Start uint8

// Start positions, as stored.
const (
	StartLatest Start = 1
	// StartEarliest starts with the oldest message that is retained or not acknowledged by all subscriptions.
	StartEarliest Start = 2
	// StartSequence is StartEarliest without the messages below a sequence.
	StartSequence Start = 3
)

// Producer identifies a transaction for retries (INV-10).
type Producer struct {
	// ID has 1 to MaxProducerIDBytes bytes. If returned by a Reader, it aliases the payload.
	ID []byte
	// Epoch is the epoch of the producer. It fences all lower epochs of the same ID.
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
	// LSN is the LSN of the applied record, or for a duplicate the LSN of the original. If the pair has sites, it is
	// the logical number instead of the LSN.
	LSN uint64
	// Duplicate reports whether the producer's sequence was applied before. The result is then the original one.
	Duplicate bool
	// Code is OK, or the reason for the rejection. A rejected transaction changed no queue, subscription or entry.
	Code Code
	// Op is the index of the rejected operation. It is -1 if the transaction as a whole was rejected, or if Code is
	// OK.
	Op int
	// Ops contains one result per operation, in order, without forwards and without an OpOwn before an OpCreateQueue. It
	// is empty if the transaction was rejected. It must not be modified.
	Ops []OpResult
}

// OpResult is the result of one operation.
type OpResult struct {
	// FirstSequence is, for a publish or a move to a queue, the sequence of the first message in that queue. For a seek,
	// it is the first unacknowledged sequence; for the hidden subscription, the first retained one. For an import, it is
	// the lowest sequence that is not imported yet.
	FirstSequence uint64
	// ID is the number of the new queue or subscription, or of the queue of an OpOwn. For an OpImportBegin, it is the
	// number of the first queue; the others have consecutive numbers. For an OpPrepare, it is the logical number of the
	// record. For a commit or rollback see queue.OutcomeOf.
	ID uint64
	// Changed is the number of messages that were published, acknowledged, released, moved, purged, deleted or imported,
	// or that became deliverable or expired. For a seek of a client's subscription, it is the number of unacknowledged
	// messages. For a prepare, it is the number of messages to publish and to acknowledge; for a rollback, the number of
	// those to acknowledge. For an operation without messages, it is the number of changed entries, queues or state
	// pairs, or 0.
	Changed uint64
	// Duplicates lists the messages of a publish that the queue has discarded as duplicates; nil without duplicates. The
	// other messages have consecutive sequences from FirstSequence on. If all messages are duplicates, FirstSequence is
	// the Sequence of the first entry.
	Duplicates *Duplicates
}

// Duplicates lists the duplicates in a publish, ordered by index.
type Duplicates []Duplicate

// Duplicate is a message of a publish that the queue has discarded, because it had accepted a message with the same
// ID.
type Duplicate struct {
	Index    uint32 // in the publish
	Sequence uint64 // of the accepted message
}

// Len returns the number of duplicates. d may be nil.
func (d *Duplicates) Len() int {
	if d == nil {
		return 0
	}
	return len(*d)
}

// SequenceOf returns the sequence of the message with the given index. first must be the sequence of the first
// stored message. For a duplicate, SequenceOf returns the sequence of the accepted message, and stored is false.
func (d Duplicates) SequenceOf(first uint64, index int) (sequence uint64, stored bool) {
	i, found := slices.BinarySearchFunc(d, index, func(d Duplicate, i int) int { return cmp.Compare(int(d.Index), i) })
	if found {
		return d[i].Sequence, false
	}
	return first + uint64(index-i), true
}

// Err returns nil if Code is OK, and otherwise an *Error that wraps the code.
func (r *Result) Err() error {
	if r.Code == OK {
		return nil
	}
	return &Error{Code: r.Code, Op: r.Op}
}
