// SPDX-License-Identifier: Apache-2.0

package client

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// TestEveryReasonHasAMeaning: the client knows every reason of the API; what it does not know it judges by the code.
func TestEveryReasonHasAMeaning(t *testing.T) {
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

// TestOnlyAnswersProveAnything: of the retryable reasons, only NOT_ACTIVE, BLOCKED and AUTH_UNAVAILABLE report that the
// attempt was not applied.
func TestOnlyAnswersProveAnything(t *testing.T) {
	for n := range pb.ErrorReason_name {
		r := pb.ErrorReason(n)
		if known, kind := kindOf(r); !known || kind != nil {
			continue
		}
		e := streamError(t.Context(), "node:1", &pb.RequestError{
			Code: uint32(codes.Unavailable), Reason: reason.Name(r),
		})
		require.True(t, e.retry(), r)
		require.Equal(t, r == pb.ErrorReason_ERROR_REASON_NOT_ACTIVE ||
			r == pb.ErrorReason_ERROR_REASON_BLOCKED || r == pb.ErrorReason_ERROR_REASON_AUTH_UNAVAILABLE, e.answered(), r)
	}
}
