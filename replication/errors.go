// SPDX-License-Identifier: Apache-2.0

package replication

import "errors"

// Errors of Commit and Submit.
var (
	// ErrNotActive is returned when the primary stopped before it logged the transaction: it can be sent to the node
	// that is active now.
	ErrNotActive = errors.New("this node is not active")
	// ErrBlocked is returned while the primary must not acknowledge: the transaction was not logged.
	ErrBlocked = errors.New("writes are refused for now")
	// ErrOutcomeUnknown is returned when the primary stopped, was blocked or failed, or the caller's context ended,
	// after the transaction was accepted: it may be committed or not. Sending it again with the same producer sequence
	// is safe (INV-10).
	ErrOutcomeUnknown = errors.New("the outcome of the transaction is unknown; send it again with the same producer " +
		"sequence")
	// ErrTooLarge is returned when a transaction is larger than a log record may be.
	ErrTooLarge = errors.New("transaction is too large")
)

// Errors of the stream.
var (
	// ErrRefused is returned by a Dialer when the address can be reached and no process listens there.
	ErrRefused = errors.New("connection refused: the process is not running")
	// ErrOtherPair is returned when the two nodes belong to different pairs.
	ErrOtherPair = errors.New("the other node belongs to another pair")
	// ErrNotPeer is returned when the other node does not take this one for a node of its pair.
	ErrNotPeer = errors.New("the other node refuses this one")
	// ErrProtocol is returned when the other end breaks the protocol or speaks another version.
	ErrProtocol = errors.New("replication protocol error")
	// ErrStale is returned when a message is of a lower configuration than this node obeys (INV-1).
	ErrStale = errors.New("message of an older configuration")
	// ErrAhead is returned to a standby that obeys a higher configuration than the active that it connected to (INV-1).
	ErrAhead = errors.New("the standby obeys a higher configuration than this active")
	// ErrReplaced is returned when a new connection of a standby replaced this one.
	ErrReplaced = errors.New("replaced by a newer connection of the standby")
	// ErrSecondStandby is returned to a standby while another one is connected: a pair has one.
	ErrSecondStandby = errors.New("another standby is connected")
	// ErrDropped is returned when the active ended the connection because the standby left in_sync; it may connect
	// again at once.
	ErrDropped = errors.New("dropped by the active")
	// ErrSilent is returned when the other end sent nothing for too long.
	ErrSilent = errors.New("the other end is silent")
	// ErrSlow is returned when a standby did not acknowledge records in time.
	ErrSlow = errors.New("the standby does not acknowledge in time")
	// ErrLostRecords is returned when a standby no longer has records that it had acknowledged.
	ErrLostRecords = errors.New("the standby has lost records that it had acknowledged")
	// ErrSameNode is returned when the other end has this node's own identity.
	ErrSameNode = errors.New("the other node has this node's own identity")
	// ErrNoRoom is returned when a standby takes nothing in because its disk is nearly full.
	ErrNoRoom = errors.New("this standby's disk is nearly full, so that it takes nothing in")
	// ErrBehind is returned when the active lacks records that the standby knows to be committed: nothing that is
	// committed is cut, whatever an active asks for (INV-13).
	ErrBehind = errors.New("the active lacks committed records that the standby has")
	// ErrChecksum is returned when received bytes fail their checksum.
	ErrChecksum = errors.New("received bytes fail their checksum")
)

// Errors of StartPrimary.
var (
	// ErrTermUsed is returned when the log has records of the primary's term or a later one: each activation needs a
	// new term, since (term, LSN) names a record for good.
	ErrTermUsed = errors.New("term was used before")
	// ErrFence is returned when the configuration and term are below the node's persisted fence (INV-1).
	ErrFence = errors.New("configuration is below the node's fence")
)
