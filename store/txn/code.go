// SPDX-License-Identifier: Apache-2.0

package txn

import "fmt"

// Code is the reason why a transaction was rejected. It implements error, so errors.Is(err, txn.ErrQueueNotFound)
// works. The numbers are stored with the results of producers and never change their meaning.
type Code uint8

// Codes of rejected transactions; Error describes them. OK is not an error.
const (
	OK Code = 0
	// ErrMalformed is returned for bytes that are not a valid transaction or message, or that exceed a limit of the
	// encoding.
	ErrMalformed Code = 1
	// ErrNewerVersion is returned for bytes that a newer version of Lockstep has written. The node cannot apply them.
	ErrNewerVersion Code = 2
	ErrInvalidName  Code = 3
	ErrMixed        Code = 4
	ErrTooLarge     Code = 5

	ErrQueueExists   Code = 10
	ErrQueueNotFound Code = 11
	ErrQueueNotEmpty Code = 12
	ErrQueueFull     Code = 13
	ErrTooManyQueues Code = 14
	// ErrQueueInUse is returned if the queue to delete is a dead-letter queue of another queue, a subscription or a
	// policy, or a forward target of another queue. It is also returned for a fence if such references connect the
	// queues of the move with other queues or policies.
	ErrQueueInUse      Code = 15
	ErrDeadLetterCycle Code = 16
	ErrQueuePaused     Code = 17

	ErrSubscriptionExists   Code = 20
	ErrSubscriptionNotFound Code = 21
	ErrTooManySubscriptions Code = 22
	ErrBeyondEnd            Code = 23
	ErrTooManyReleased      Code = 24

	ErrPolicyNotFound  Code = 25
	ErrTooManyPolicies Code = 26

	ErrFenced Code = 30
	// ErrTooOld is returned if a sequence of a producer is older than the producer's retained results.
	ErrTooOld Code = 31
	// ErrProducerForgotten is returned if an unknown producer may have been evicted: the outcome is unknown.
	ErrProducerForgotten Code = 32

	ErrNoDeadLetter    Code = 60
	ErrPrioritiesFixed Code = 55
	// ErrForwardChain is returned if a queue would forward to itself or to a queue with forwards, or if a forward target
	// would get forwards.
	ErrForwardChain Code = 80
	ErrForwardTwice Code = 81

	ErrTooManyMeta Code = 40
	// ErrMetaChanged is returned if an internal entry does not have the expected version.
	ErrMetaChanged Code = 41

	// ErrAccessChanged is returned if the access table does not have the expected version.
	ErrAccessChanged Code = 90
	ErrTooManyAccess Code = 91

	// ErrReplica is returned for a transaction without an envelope, except for an OpSite, if the pair is a replica or
	// stopped. It is also returned for an envelope if the pair is not a replica. The transaction changes nothing, not
	// even the record of its producer.
	ErrReplica Code = 100
	// ErrSitePosition is returned for an envelope of another lineage or epoch, or for one that was applied before.
	ErrSitePosition Code = 101
	// ErrSiteChange is returned for an OpSite that is not valid for the current role, lineage or epoch.
	ErrSiteChange Code = 102
	// ErrNotOwned is returned if a pair of a fleet would create a queue without an ownership epoch.
	ErrNotOwned Code = 103
	// ErrFleetChanged is returned if an operation does not fit the membership of the pair in a fleet, for example a
	// join of a member, or if its epoch is too low.
	ErrFleetChanged Code = 104
	// ErrMoved is returned for an operation that a fenced or incoming queue does not permit (INV-28), such as a publish
	// to a fenced queue, or the creation of a queue with the name of an incoming one. It is also returned for a leave
	// while the pair has a record of a move.
	ErrMoved Code = 105
	// ErrMoveChanged is returned for an operation that does not fit the state of its move, for example if the move does
	// not exist or was already taken or canceled.
	ErrMoveChanged Code = 106
	// ErrMoveIncomplete is returned if messages or parts of the state of an incoming queue are missing. It is also
	// returned if the queue refers to a queue that is not part of the move.
	ErrMoveIncomplete Code = 107
	ErrTooManyMoves   Code = 108
	// ErrPartitionsDiffer is returned for a new queue with the name of a partitioned queue. It is also returned for a new
	// partition if its queue is not partitioned or has another number of partitions.
	ErrPartitionsDiffer Code = 109

	ErrAlreadyAcknowledged Code = 65
	ErrReserved            Code = 66
	// ErrXIDInUse is returned if a transaction to prepare has the name of a prepared or recently decided transaction.
	ErrXIDInUse Code = 67
	// ErrXIDNotFound is returned if a transaction to commit or roll back is not prepared and its outcome is not
	// retained. It is also returned if the record that prepared it is not the expected one.
	ErrXIDNotFound     Code = 68
	ErrTooManyPrepared Code = 69
	ErrCommitted       Code = 70
	ErrRolledBack      Code = 71
	// ErrHeuristicCommit is returned instead of ErrCommitted if an operator decided the commit.
	ErrHeuristicCommit Code = 72
	// ErrHeuristicRollback is returned instead of ErrRolledBack if an operator or the timeout decided the rollback.
	ErrHeuristicRollback Code = 73
	// ErrPreparedInUse is returned if a prepared transaction requires the queue, subscription or messages.
	ErrPreparedInUse Code = 74
)

var codeTexts = [...]string{ //nolint:gochecknoglobals // a table
	OK:                      "no error",
	ErrMalformed:            "malformed transaction",
	ErrNewerVersion:         "transaction of a newer version: this node cannot apply it; upgrade this node",
	ErrInvalidName:          "invalid name",
	ErrMixed:                "a queue or subscription change must be the only operation of its transaction",
	ErrTooLarge:             "too large",
	ErrQueueExists:          "queue exists",
	ErrQueueNotFound:        "queue not found",
	ErrQueueNotEmpty:        "queue still contains messages",
	ErrQueueFull:            "queue is full: consume from it, or raise its limits",
	ErrTooManyQueues:        "too many queues: delete some first",
	ErrQueueInUse:           "queue is the dead-letter queue or forward target of a queue or policy: change that first",
	ErrDeadLetterCycle:      "dead-letter cycle: use a queue that does not dead-letter to this one",
	ErrQueuePaused:          "publishing to the queue is paused",
	ErrSubscriptionExists:   "subscription exists in the queue",
	ErrSubscriptionNotFound: "subscription not found",
	ErrTooManySubscriptions: "too many subscriptions in this queue: delete some first",
	ErrBeyondEnd:            "sequence is not published yet",
	ErrTooManyReleased:      "too many messages released in one transaction: use several",
	ErrPolicyNotFound:       "policy not found",
	ErrTooManyPolicies:      "too many policies: delete some first, or use wider patterns",
	ErrFenced:               "producer was fenced: a higher epoch of the same id is in use; open a new producer",
	ErrTooOld:               "producer sequence is older than the retained results: its outcome is no longer known",
	ErrProducerForgotten:    "producer has expired: the outcome of its requests is unknown; open a new producer",
	ErrNoDeadLetter:         "overflow dead-letter-head requires a dead-letter queue: set one, or use another overflow",
	ErrPrioritiesFixed:      "priorities can only be set at creation: create another queue and move the messages",
	ErrForwardChain:         "a forward target cannot forward itself: forward to each queue from the first one",
	ErrForwardTwice:         "two forwards have the same target queue: combine their filters with ||",
	ErrTooManyMeta:          "too many entries (settings, jobs, schedules): delete some first",
	ErrMetaChanged:          "entry was changed concurrently: nothing was changed; try again",
	ErrAccessChanged:        "rules were changed concurrently: nothing was changed; try again",
	ErrTooManyAccess:        "too many rules, roles, tokens and quotas: remove some first, or use globs and groups",
	ErrReplica:              "pair is a replica of another site: use the primary site",
	ErrSitePosition:         "transaction of the primary site was applied before, or is of another lineage or epoch",
	ErrSiteChange:           "role of the site was changed concurrently, or does not permit the change",
	ErrNotOwned:             "pair belongs to a fleet: the directory must assign the queue to the pair first",
	ErrFleetChanged:         "membership of the fleet or ownership of the queue was changed concurrently",
	ErrMoved:                "queue is being moved to or from another pair",
	ErrMoveChanged:          "move was taken, canceled or changed concurrently, or does not exist",
	ErrMoveIncomplete:       "messages or parts of the state of a queue being moved are missing",
	ErrTooManyMoves:         "too many moves of queues: complete or cancel some first",
	ErrPartitionsDiffer:     "name belongs to a queue with another number of partitions: delete that queue first",
	ErrAlreadyAcknowledged:  "message was already acknowledged by another client; discard the results of its processing",
	ErrReserved:             "message is reserved by another prepared transaction; `lockstep txn list` shows them",
	ErrXIDInUse:             "xid is prepared, or was decided recently: use a new xid for each transaction",
	ErrXIDNotFound:          "transaction not found: never prepared, or decided too long ago",
	ErrTooManyPrepared: "too many prepared transactions, or too many bytes in them: decide some first; `lockstep txn " +
		"list` shows them",
	ErrCommitted:  "transaction was committed: it can no longer be rolled back",
	ErrRolledBack: "transaction was rolled back: it can no longer be committed",
	ErrHeuristicCommit: "an operator has committed the transaction: it can no longer be rolled back; commit it in " +
		"the other systems that rolled it back, or compensate for it here",
	ErrHeuristicRollback: "an operator, or the timeout txn.prepared-timeout, has rolled the transaction back: it can " +
		"no longer be committed; undo it in the other systems, or repeat it here",
	ErrPreparedInUse: "in use by a prepared transaction: commit it or roll it back first; `lockstep txn list` shows it",
}

// Error returns a description of the code. For some codes, it includes a hint.
func (c Code) Error() string {
	if int(c) < len(codeTexts) && codeTexts[c] != "" {
		return codeTexts[c]
	}
	return fmt.Sprintf("error code %d", uint8(c))
}

// Error is a Code with the operation that caused it.
type Error struct {
	Code Code
	// Op is the index of the rejected operation, or -1 for the transaction as a whole.
	Op int
}

// Error returns the description of the code, with the index of the operation unless it is the first or only one.
func (e *Error) Error() string {
	if e.Op <= 0 {
		return e.Code.Error()
	}
	return fmt.Sprintf("operation %d: %s", e.Op, e.Code.Error())
}

// Unwrap returns the code.
func (e *Error) Unwrap() error { return e.Code }
