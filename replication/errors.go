// SPDX-License-Identifier: Apache-2.0

package replication

import "errors"

// Errors of Commit and Submit.
var (
	// ErrNotActive is returned if the primary has stopped or failed, and the transaction was not logged.
	ErrNotActive = errors.New("this node is not active")
	// ErrBlocked is returned while the primary must not acknowledge, or if the context ends while a switchover delays the
	// transaction. The transaction was not logged.
	ErrBlocked = errors.New("writes are currently rejected")
	// ErrOutcomeUnknown is returned if the transaction was accepted and may be logged, but the primary stopped, was
	// blocked or failed before the transaction was completed. Commit also returns it if the caller's context ends after
	// the transaction was accepted. A retry with the same producer sequence is safe (INV-10).
	ErrOutcomeUnknown = errors.New("outcome of the transaction is unknown")
	ErrTooLarge       = errors.New("transaction is too large")
)

// Errors of the stream.
var (
	ErrRefused   = errors.New("connection refused: the process is not running")
	ErrOtherPair = errors.New("other node belongs to another pair")
	ErrNotPeer   = errors.New("other node rejects this one")
	ErrProtocol  = errors.New("replication protocol error")
	// ErrStale is returned for a message with a configuration and term below this node's fence (INV-1).
	ErrStale = errors.New("message of an older configuration")
	// ErrAhead is returned to a standby with a fence above the configuration and term of the active (INV-1).
	ErrAhead    = errors.New("fence of the standby is above the active's configuration")
	ErrReplaced = errors.New("replaced by a newer connection of the standby")
	// ErrSecondStandby is returned to a standby while another node or process is connected as the standby; see
	// Primary.Replicate.
	ErrSecondStandby = errors.New("another standby is connected")
	// ErrDropped is returned if the active ended the connection: it no longer requires the standby's acks. The standby
	// may reconnect immediately.
	ErrDropped     = errors.New("dropped by the active")
	ErrSilent      = errors.New("no message received")
	ErrSlow        = errors.New("standby does not acknowledge in time")
	ErrLostRecords = errors.New("standby has lost records that it had acknowledged")
	ErrSameNode    = errors.New("other node has the identity of this node")
	ErrNoSpace     = errors.New("disk of this standby is nearly full, replication is suspended")
	// ErrBehind is returned if records that the standby knows to be committed are missing from the active's log (INV-13).
	ErrBehind   = errors.New("committed records of the standby are missing on the active")
	ErrChecksum = errors.New("checksum mismatch in received bytes")
)

// Errors of StartPrimary.
var (
	// ErrTermUsed is returned if the log has records of the primary's term or a later one.
	ErrTermUsed = errors.New("term was already used")
	// ErrFence is returned if the configuration and term are below the node's persisted fence (INV-1).
	ErrFence = errors.New("configuration is below the node's fence")
)
