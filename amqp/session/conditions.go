// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Error conditions of the specification (2.8.15 to 2.8.18).
const (
	InternalError         wire.Symbol = "amqp:internal-error"
	NotFound              wire.Symbol = "amqp:not-found"
	UnauthorizedAccess    wire.Symbol = "amqp:unauthorized-access"
	ResourceLimitExceeded wire.Symbol = "amqp:resource-limit-exceeded"
	NotAllowed            wire.Symbol = "amqp:not-allowed"
	InvalidField          wire.Symbol = "amqp:invalid-field"
	NotImplemented        wire.Symbol = "amqp:not-implemented"
	ResourceLocked        wire.Symbol = "amqp:resource-locked"
	PreconditionFailed    wire.Symbol = "amqp:precondition-failed"
	ResourceDeleted       wire.Symbol = "amqp:resource-deleted"
	IllegalState          wire.Symbol = "amqp:illegal-state"
	FrameSizeTooSmall     wire.Symbol = "amqp:frame-size-too-small"

	ConnectionForced       wire.Symbol = "amqp:connection:forced"
	ConnectionFramingError wire.Symbol = "amqp:connection:framing-error"
	ConnectionRedirect     wire.Symbol = "amqp:connection:redirect"

	SessionWindowViolation  wire.Symbol = "amqp:session:window-violation"
	SessionHandleInUse      wire.Symbol = "amqp:session:handle-in-use"
	SessionUnattachedHandle wire.Symbol = "amqp:session:unattached-handle"

	LinkDetachForced          wire.Symbol = "amqp:link:detach-forced"
	LinkTransferLimitExceeded wire.Symbol = "amqp:link:transfer-limit-exceeded"
	LinkMessageSizeExceeded   wire.Symbol = "amqp:link:message-size-exceeded"
	LinkStolen                wire.Symbol = "amqp:link:stolen"
)

// Errorf returns an error with a condition.
func Errorf(condition wire.Symbol, format string, args ...any) *wire.Error {
	return &wire.Error{Condition: condition, Description: fmt.Sprintf(format, args...)}
}
