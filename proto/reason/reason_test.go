// SPDX-License-Identifier: Apache-2.0

package reason_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// Each reason converts to a name and back. Unknown names are unspecified.
func TestNames(t *testing.T) {
	for n := range pb.ErrorReason_name {
		r := pb.ErrorReason(n)
		require.Equal(t, r, reason.Parse(reason.Name(r)))
		require.NotContains(t, reason.Name(r), "ERROR_REASON")
	}
	require.Equal(t, "QUEUE_NOT_FOUND", reason.Name(pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND))
	require.Equal(t, pb.ErrorReason_ERROR_REASON_UNSPECIFIED, reason.Parse("OF_A_NEWER_NODE"))
	require.Equal(t, pb.ErrorReason_ERROR_REASON_UNSPECIFIED, reason.Parse(""))
}

// Each reason has a code and a kind, and each kind has a reason.
func TestOptions(t *testing.T) {
	kinds := map[pb.ErrorKind]bool{pb.ErrorKind_ERROR_KIND_UNSPECIFIED: true}
	for n := range pb.ErrorReason_name {
		if r := pb.ErrorReason(n); n != 0 {
			require.NotContains(t, []codes.Code{codes.OK, codes.Unknown}, reason.Code(r), r)
			require.NotZero(t, reason.Kind(r), r)
			kinds[reason.Kind(r)] = true
		}
	}
	require.Len(t, kinds, len(pb.ErrorKind_name))
	require.Equal(t, codes.NotFound, reason.Code(pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND))
	require.Equal(t, codes.Unknown, reason.Code(-1))
	require.Zero(t, reason.Kind(-1))
}
