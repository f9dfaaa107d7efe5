// SPDX-License-Identifier: Apache-2.0

// Package reason converts error reasons to their wire format: google.rpc.ErrorInfo and RequestError contain the name of
// an ErrorReason without the common prefix of the enum. Code and kind of a reason are options in errors.proto.
package reason

import (
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Domain is the domain of google.rpc.ErrorInfo in all errors of Lockstep.
const Domain = "lockstep.v1"

// Settled is a metadata key of google.rpc.ErrorInfo. The value is "true" if the log retains the refusal; see
// RequestError.settled.
const Settled = "settled"

// Metadata keys of SITE_DIVERGED from a former primary. They contain the number of its transactions that the promoted
// site lacks, the name of the file on this node to which their records were written, and the first and last LSN in the
// file. The name is empty if the file could not be written.
const (
	LostTransactions = "lost_transactions"
	LostFile         = "lost_file"
	LostFirst        = "lost_first_lsn"
	LostLast         = "lost_last_lsn"
)

const prefix = "ERROR_REASON_"

// Name returns the wire name of a reason, such as QUEUE_NOT_FOUND.
func Name(r pb.ErrorReason) string { return strings.TrimPrefix(r.String(), prefix) }

// Parse is the inverse of Name. It returns ERROR_REASON_UNSPECIFIED for an unknown name.
func Parse(name string) pb.ErrorReason { return pb.ErrorReason(pb.ErrorReason_value[prefix+name]) }

// Code returns the gRPC code of a reason; codes.Unknown for an unknown reason.
func Code(r pb.ErrorReason) codes.Code {
	if o, ok := options()[r]; ok {
		return o.code
	}
	return codes.Unknown
}

// Kind returns the kind of a reason; ERROR_KIND_UNSPECIFIED for an unknown reason.
func Kind(r pb.ErrorReason) pb.ErrorKind { return options()[r].kind }

type option struct {
	code codes.Code
	kind pb.ErrorKind
}

var options = sync.OnceValue(func() map[pb.ErrorReason]option { //nolint:gochecknoglobals // a constant
	values := pb.ErrorReason(0).Descriptor().Values()
	all := make(map[pb.ErrorReason]option, values.Len())
	for i := range values.Len() {
		v := values.Get(i)
		o, ok := proto.GetExtension(v.Options(), pb.E_Reason).(*pb.ErrorReasonOptions)
		if !ok || v.Number() == 0 {
			continue
		}
		var code codes.Code
		if err := code.UnmarshalJSON([]byte(`"` + o.GetCode() + `"`)); err != nil {
			panic(fmt.Sprintf("errors.proto: %s: %v", v.Name(), err)) // TestOptions
		}
		all[pb.ErrorReason(v.Number())] = option{code, o.GetKind()}
	}
	return all
})
