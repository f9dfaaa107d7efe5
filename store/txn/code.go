// SPDX-License-Identifier: Apache-2.0

package txn

import "fmt"

// Code is the reason why a transaction was rejected. It is an error, so errors.Is(err, txn.ErrQueueNotFound) works.
// The numbers are stored with producers' results and never change their meaning.
type Code uint8

// Codes of rejected transactions. OK is not an error.
const (
	// OK is the code of a transaction that was applied.
	OK Code = 0
	// ErrMalformed is returned if bytes are not a transaction or message, or exceed a limit of the encoding.
	ErrMalformed Code = 1
	// ErrNewerVersion is returned if bytes were written by a newer version of Lockstep. Applying stops there.
	ErrNewerVersion Code = 2
	// ErrInvalidName is returned if a name is empty, too long or contains invalid characters.
	ErrInvalidName Code = 3
	// ErrMixed is returned if an operation that must be the only one of its transaction is combined with others.
	ErrMixed Code = 4
	// ErrTooLarge is returned if a message, a batch or a transaction exceeds its size limit.
	ErrTooLarge Code = 5

	// ErrQueueExists is returned if a queue with the name of a new queue exists.
	ErrQueueExists Code = 10
	// ErrQueueNotFound is returned if an operation names a queue that does not exist, or no longer exists.
	ErrQueueNotFound Code = 11
	// ErrQueueNotEmpty is returned if a queue has messages and must be deleted only if empty.
	ErrQueueNotEmpty Code = 12
	// ErrQueueFull is returned if a publish would exceed a queue's MaxMessages or MaxBytes.
	ErrQueueFull Code = 13
	// ErrTooManyQueues is returned if the store has the maximum number of queues.
	ErrTooManyQueues Code = 14
	// ErrQueueInUse is returned if the queue to delete is the dead-letter queue of another one.
	ErrQueueInUse Code = 15
	// ErrDeadLetterCycle is returned if dead letters of a queue could return to it.
	ErrDeadLetterCycle Code = 16

	// ErrSubscriptionExists is returned if the queue has a subscription with the name of a new one.
	ErrSubscriptionExists Code = 20
	// ErrSubscriptionNotFound is returned if an operation names a subscription that does not exist, or no longer
	// exists.
	ErrSubscriptionNotFound Code = 21
	// ErrTooManySubscriptions is returned if a queue has the maximum number of subscriptions.
	ErrTooManySubscriptions Code = 22
	// ErrBeyondEnd is returned if an acknowledge or release names an unpublished sequence.
	ErrBeyondEnd Code = 23
	// ErrTooManyReleased is returned if one transaction releases too many messages.
	ErrTooManyReleased Code = 24

	// ErrFenced is returned if a producer's epoch is lower than an earlier one.
	ErrFenced Code = 30
	// ErrTooOld is returned if a producer's sequence is older than its kept results.
	ErrTooOld Code = 31
	// ErrProducerForgotten is returned if an unknown producer may have been forgotten: the outcome of its transaction
	// is unknown.
	ErrProducerForgotten Code = 32

	// ErrNoDeadLetter is returned if a queue with overflow dead-letter-head has no dead-letter queue.
	ErrNoDeadLetter Code = 60
	// ErrPrioritiesFixed is returned if priorities are turned on or off for an existing queue.
	ErrPrioritiesFixed Code = 55
	// ErrForwardChain is returned if a queue would forward to itself, or to a queue that forwards.
	ErrForwardChain Code = 80
	// ErrForwardTwice is returned if two forwards of a queue have the same target.
	ErrForwardTwice Code = 81

	// ErrTooManyMeta is returned if the cluster has the maximum number of internal entries.
	ErrTooManyMeta Code = 40

	// ErrAccessChanged is returned if the access table does not have the expected version.
	ErrAccessChanged Code = 90
	// ErrTooManyAccess is returned if the access table would exceed its maximum number of entries.
	ErrTooManyAccess Code = 91

	// ErrAlreadyAcknowledged is returned if a message to take was acknowledged before.
	ErrAlreadyAcknowledged Code = 65
	// ErrReserved is returned if a message is reserved by a prepared transaction.
	ErrReserved Code = 66
	// ErrXIDInUse is returned if a transaction to prepare has the name of another one, current or recently decided.
	ErrXIDInUse Code = 67
	// ErrXIDNotFound is returned if a transaction to decide is not prepared and its outcome is not kept.
	ErrXIDNotFound Code = 68
	// ErrTooManyPrepared is returned if the maximum number or size of prepared transactions is reached.
	ErrTooManyPrepared Code = 69
	// ErrCommitted is returned if a transaction to roll back was committed.
	ErrCommitted Code = 70
	// ErrRolledBack is returned if a transaction to commit was rolled back.
	ErrRolledBack Code = 71
	// ErrHeuristicCommit is ErrCommitted for a decision of an operator.
	ErrHeuristicCommit Code = 72
	// ErrHeuristicRollback is ErrRolledBack for a decision of an operator or the timeout.
	ErrHeuristicRollback Code = 73
	// ErrPreparedInUse is returned if a prepared transaction needs the queue, subscription or messages to delete.
	ErrPreparedInUse Code = 74
)

// Error returns a description of the code with a hint.
func (c Code) Error() string { //nolint:funlen // a table
	if text := c.ofPrepared(); text != "" {
		return text
	}
	switch c { //nolint:exhaustive // the others are in ofPrepared
	case ErrMalformed:
		return "malformed transaction"
	case ErrNewerVersion:
		return "transaction of a newer version: this node cannot apply it; upgrade it"
	case ErrInvalidName:
		return "invalid name"
	case ErrMixed:
		return "a queue or subscription change must be the only operation of its transaction"
	case ErrTooLarge:
		return "too large"
	case ErrQueueExists:
		return "queue exists"
	case ErrQueueNotFound:
		return "queue not found"
	case ErrQueueNotEmpty:
		return "queue still holds messages"
	case ErrQueueFull:
		return "queue is full: consume from it, or raise its limits"
	case ErrTooManyQueues:
		return "too many queues: delete some first"
	case ErrQueueInUse:
		return "queue is the dead-letter queue or a forward target of another queue: change that one first"
	case ErrDeadLetterCycle:
		return "dead-letter cycle: use a queue whose own dead letters go elsewhere"
	case ErrSubscriptionExists:
		return "subscription exists in the queue"
	case ErrSubscriptionNotFound:
		return "subscription not found"
	case ErrTooManySubscriptions:
		return "too many subscriptions in this queue: delete some first"
	case ErrBeyondEnd:
		return "sequence is not published yet"
	case ErrTooManyReleased:
		return "too many messages released in one transaction: use several"
	case ErrFenced:
		return "producer was fenced: a higher epoch of the same id is in use; open a new producer"
	case ErrTooOld:
		return "producer sequence is older than the retained results: its outcome is no longer known"
	case ErrProducerForgotten:
		return "producer has expired: the outcome of its requests is unknown; open a new producer"
	case ErrNoDeadLetter:
		return "overflow dead-letter-head requires a dead-letter queue: set one, or use another overflow"
	case ErrPrioritiesFixed:
		return "priorities can only be set at creation: create another queue and move the messages"
	case ErrForwardChain:
		return "a forward target cannot forward itself: forward to each queue from the first one"
	case ErrForwardTwice:
		return "two forwards have the same target queue: join their filters with ||"
	case ErrTooManyMeta:
		return "too many entries (settings, jobs): delete some first"
	case ErrAccessChanged:
		return "rules were changed concurrently: nothing was changed; try again"
	case ErrTooManyAccess:
		return "too many rules, roles, tokens and quotas: remove some first, or use globs and groups"
	}
	return fmt.Sprintf("error code %d", uint8(c))
}

// Error is a Code with the operation that caused it.
type Error struct {
	// Code is the reason.
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
