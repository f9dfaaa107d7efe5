// SPDX-License-Identifier: Apache-2.0

// Package reason converts error reasons to their wire format: google.rpc.ErrorInfo and RequestError contain the name of
// an ErrorReason without the common prefix of the enum.
package reason

import (
	"strings"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Domain of google.rpc.ErrorInfo in all errors of Lockstep.
const Domain = "lockstep.v1"

// Settled is the metadata key of google.rpc.ErrorInfo that is "true" when the log keeps the refusal; see
// RequestError.settled.
const Settled = "settled"

const prefix = "ERROR_REASON_"

// Name returns the wire name of a reason, such as QUEUE_NOT_FOUND.
func Name(r pb.ErrorReason) string { return strings.TrimPrefix(r.String(), prefix) }

// Parse is the inverse of Name. It returns ERROR_REASON_UNSPECIFIED for an unknown name.
func Parse(name string) pb.ErrorReason { return pb.ErrorReason(pb.ErrorReason_value[prefix+name]) }
