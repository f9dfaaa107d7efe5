// SPDX-License-Identifier: Apache-2.0

// Package reason gives the reasons of errors the form that they have on the wire: google.rpc.ErrorInfo and RequestError
// carry an ErrorReason by name, without the prefix that the enum's values share.
package reason

import (
	"strings"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Domain of google.rpc.ErrorInfo in all of Lockstep's errors.
const Domain = "lockstep.v1"

// Settled is the key of google.rpc.ErrorInfo's metadata that is "true" when the log keeps the refusal; see
// RequestError.settled.
const Settled = "settled"

// prefix of the enum's values.
const prefix = "ERROR_REASON_"

// Name is a reason as it is sent, such as QUEUE_NOT_FOUND.
func Name(r pb.ErrorReason) string { return strings.TrimPrefix(r.String(), prefix) }

// Parse is the reverse of Name. It returns ERROR_REASON_UNSPECIFIED for a name that this build does not know.
func Parse(name string) pb.ErrorReason { return pb.ErrorReason(pb.ErrorReason_value[prefix+name]) }
