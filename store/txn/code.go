// SPDX-License-Identifier: Apache-2.0

package txn

import "fmt"

// Code says why a transaction was refused. It is an error, so errors.Is(err, txn.ErrQueueNotFound) works. The numbers
// are stored with producers' results: they keep their meaning for good.
type Code uint8

// Codes of refused transactions. OK is not an error.
const (
	// OK is the code of a transaction that was applied.
	OK Code = 0
	// ErrMalformed is returned when bytes are not a transaction or message, or break a limit of the encoding.
	ErrMalformed Code = 1
	// ErrNewerVersion is returned when bytes were written by a newer version of Lockstep. Applying stops there.
	ErrNewerVersion Code = 2
	// ErrInvalidName is returned when a name is empty, too long or not in the alphabet of names.
	ErrInvalidName Code = 3
	// ErrMixed is returned when an operation that must stand alone in its transaction has company.
	ErrMixed Code = 4
	// ErrTooLarge is returned when a message, a batch or a transaction is larger than its limit.
	ErrTooLarge Code = 5

	// ErrQueueExists is returned when a queue is to be made whose name is taken.
	ErrQueueExists Code = 10
	// ErrQueueNotFound is returned when an operation names a queue that is not there (any more).
	ErrQueueNotFound Code = 11
	// ErrQueueNotEmpty is returned when a queue is to be deleted only if it is empty, and it is not.
	ErrQueueNotEmpty Code = 12
	// ErrQueueFull is returned when a publish would take a queue beyond its MaxMessages or MaxBytes.
	ErrQueueFull Code = 13
	// ErrTooManyQueues is returned when the store holds as many queues as it may.
	ErrTooManyQueues Code = 14
	// ErrQueueInUse is returned when a queue is to be deleted that is the dead-letter queue of another one.
	ErrQueueInUse Code = 15
	// ErrDeadLetterCycle is returned when dead letters of a queue would come back to it.
	ErrDeadLetterCycle Code = 16

	// ErrSubscriptionExists is returned when a subscription is to be made whose name is taken in its queue.
	ErrSubscriptionExists Code = 20
	// ErrSubscriptionNotFound is returned when an operation names a subscription that is not there (any more).
	ErrSubscriptionNotFound Code = 21
	// ErrTooManySubscriptions is returned when a queue has as many subscriptions as it may.
	ErrTooManySubscriptions Code = 22
	// ErrBeyondEnd is returned when an acknowledge or release names a sequence that was not published yet.
	ErrBeyondEnd Code = 23
	// ErrTooManyReleased is returned when one transaction releases more messages than it may.
	ErrTooManyReleased Code = 24

	// ErrFenced is returned when a producer's epoch is lower than one seen before.
	ErrFenced Code = 30
	// ErrTooOld is returned when a producer's sequence is older than the results that are kept for it.
	ErrTooOld Code = 31
	// ErrProducerForgotten is returned when a producer is not known, but might have been: its outcome cannot be told.
	ErrProducerForgotten Code = 32

	// ErrNoDeadLetter is returned when a queue is to have the overflow dead-letter-head, and no dead-letter queue.
	ErrNoDeadLetter Code = 60
	// ErrPrioritiesFixed is returned when a queue that was made without priorities is to get them, or the other way
	// round.
	ErrPrioritiesFixed Code = 55
	// ErrForwardChain is returned when a queue is to forward to one that forwards itself, or to itself.
	ErrForwardChain Code = 80
	// ErrForwardTwice is returned when two forwards of a queue name the same target.
	ErrForwardTwice Code = 81

	// ErrTooManyMeta is returned when the pair has as many entries of its own as it may.
	ErrTooManyMeta Code = 40

	// ErrAccessChanged is returned when the access table is to be changed and has not the version that was expected.
	ErrAccessChanged Code = 90
	// ErrTooManyAccess is returned when the access table has as many entries as it may.
	ErrTooManyAccess Code = 91

	// ErrAlreadyAcknowledged is returned when a message was acknowledged before that a transaction is to take.
	ErrAlreadyAcknowledged Code = 65
	// ErrReserved is returned when a message is held by a prepared transaction.
	ErrReserved Code = 66
	// ErrXIDInUse is returned when a transaction is to be prepared under a name that another one has, or had lately.
	ErrXIDInUse Code = 67
	// ErrXIDNotFound is returned when a transaction is to be decided that is neither prepared nor remembered.
	ErrXIDNotFound Code = 68
	// ErrTooManyPrepared is returned when as many transactions are prepared as may be, in number or in bytes.
	ErrTooManyPrepared Code = 69
	// ErrCommitted is returned when a transaction is to be rolled back that was committed.
	ErrCommitted Code = 70
	// ErrRolledBack is returned when a transaction is to be committed that was rolled back.
	ErrRolledBack Code = 71
	// ErrHeuristicCommit is ErrCommitted when an operator has decided.
	ErrHeuristicCommit Code = 72
	// ErrHeuristicRollback is ErrRolledBack when an operator or the time-out has decided.
	ErrHeuristicRollback Code = 73
	// ErrPreparedInUse is returned when a queue, a subscription or its messages are to be deleted that a prepared
	// transaction still needs.
	ErrPreparedInUse Code = 74
)

// Error implements error: what happened, what it means, what to do.
func (c Code) Error() string { //nolint:funlen // a table
	if text := c.ofPrepared(); text != "" {
		return text
	}
	switch c { //nolint:exhaustive // the others are in ofPrepared
	case ErrMalformed:
		return "malformed transaction: the bytes do not follow the format"
	case ErrNewerVersion:
		return "transaction of a newer version: this node cannot apply it; upgrade it"
	case ErrInvalidName:
		return "invalid name"
	case ErrMixed:
		return "a change of a queue or subscription must be the only operation of its transaction"
	case ErrTooLarge:
		return "too large"
	case ErrQueueExists:
		return "a queue of that name exists"
	case ErrQueueNotFound:
		return "no such queue"
	case ErrQueueNotEmpty:
		return "the queue still holds messages"
	case ErrQueueFull:
		return "the queue is full: consume from it, or raise its limits"
	case ErrTooManyQueues:
		return "too many queues: delete some first"
	case ErrQueueInUse:
		return "the queue is the dead-letter queue of another one, or messages are forwarded to it: change that one first"
	case ErrDeadLetterCycle:
		return "dead letters of the queue would come back to it: name a queue whose own dead letters go elsewhere"
	case ErrSubscriptionExists:
		return "a subscription of that name exists in the queue"
	case ErrSubscriptionNotFound:
		return "no such subscription"
	case ErrTooManySubscriptions:
		return "too many subscriptions in this queue: delete some first"
	case ErrBeyondEnd:
		return "a sequence was named that is not published yet"
	case ErrTooManyReleased:
		return "too many messages released in one transaction: use several"
	case ErrFenced:
		return "the producer was fenced: a higher epoch of the same id is in use; open a new producer"
	case ErrTooOld:
		return "the producer's sequence is older than the results that are kept: its outcome is not known any more"
	case ErrProducerForgotten:
		return "the producer is not known any more: the outcome of what it sent cannot be told; open a new producer"
	case ErrNoDeadLetter:
		return "overflow dead-letter-head needs a dead-letter queue: name one, or take another overflow first"
	case ErrPrioritiesFixed:
		return "whether a queue has priorities is decided when it is made: make another one and move the messages"
	case ErrForwardChain:
		return "a queue that messages are forwarded to cannot forward them itself: forward to each queue from the first one"
	case ErrForwardTwice:
		return "two forwards name the same queue: join their filters with ||"
	case ErrTooManyMeta:
		return "too many entries (settings, jobs): delete some first"
	case ErrAccessChanged:
		return "the rules were changed by another request at the same time: nothing was changed by this one; try again"
	case ErrTooManyAccess:
		return "too many rules, roles, tokens and quotas: remove some first, or use globs and groups"
	}
	return fmt.Sprintf("error code %d", uint8(c))
}

// Error is a Code together with the operation that caused it.
type Error struct {
	// Code says why.
	Code Code
	// Op is the index of the operation that was refused; -1 when it was the transaction as a whole.
	Op int
}

// Error implements error.
func (e *Error) Error() string {
	if e.Op < 0 {
		return e.Code.Error()
	}
	return fmt.Sprintf("operation %d: %s", e.Op, e.Code.Error())
}

// Unwrap makes errors.Is(err, Code) work.
func (e *Error) Unwrap() error { return e.Code }
