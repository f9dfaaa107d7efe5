// SPDX-License-Identifier: Apache-2.0

package reason_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// Every reason is converted to a name and back; the names are unchanged.
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
