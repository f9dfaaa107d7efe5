// SPDX-License-Identifier: Apache-2.0

package client

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// The client knows every reason of the API. It classifies unknown reasons by their code.
func TestEveryReasonIsClassified(t *testing.T) {
	for n := range pb.ErrorReason_name {
		r := pb.ErrorReason(n)
		known, _ := kindOf(r)
		require.Equal(t, r != pb.ErrorReason_ERROR_REASON_UNSPECIFIED, known, r)
	}
	e := streamError(t.Context(), "node:1", &pb.RequestError{
		Code: uint32(codes.ResourceExhausted), Reason: "OF_A_NEWER_NODE",
	})
	require.ErrorIs(t, e, ErrLimit)
	require.True(t, e.answered())
}

// Among the retryable reasons, only NOT_ACTIVE, REPLICA, BLOCKED, SITE_LAG, AUTH_UNAVAILABLE, NOT_OWNER and
// DIRECTORY_UNAVAILABLE prove that the attempt was not executed.
func TestReasonsThatProveNonExecution(t *testing.T) {
	for n := range pb.ErrorReason_name {
		r := pb.ErrorReason(n)
		if known, kind := kindOf(r); !known || kind != nil {
			continue
		}
		e := streamError(t.Context(), "node:1", &pb.RequestError{
			Code: uint32(codes.Unavailable), Reason: reason.Name(r),
		})
		require.True(t, e.retry(), r)
		require.Equal(t, r == pb.ErrorReason_ERROR_REASON_NOT_ACTIVE || r == pb.ErrorReason_ERROR_REASON_REPLICA ||
			r == pb.ErrorReason_ERROR_REASON_BLOCKED || r == pb.ErrorReason_ERROR_REASON_SITE_LAG ||
			r == pb.ErrorReason_ERROR_REASON_AUTH_UNAVAILABLE || r == pb.ErrorReason_ERROR_REASON_NOT_OWNER ||
			r == pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE, e.answered(), r)
	}
}

// Each reason of the API has a name, as does a reason from a later release.
func TestDeadLetterReasons(t *testing.T) {
	var names []string
	for n := range pb.DeadLetterReason_name {
		names = append(names, deadLetterReason(pb.DeadLetterReason(n)))
	}
	require.ElementsMatch(t, []string{"unspecified", "max-deliveries", "rejected", "expired", "overflow"}, names)
	require.Equal(t, "reason-1000", deadLetterReason(1000))
}
