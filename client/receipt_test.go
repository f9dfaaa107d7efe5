// SPDX-License-Identifier: Apache-2.0

package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Each entry of a request has its own receipt if some messages are duplicates.
func TestReceiptOfDuplicates(t *testing.T) {
	r := Receipt{Sequence: 10, LSN: 5}
	left := []*pb.DuplicateMessage{{Index: 0, Sequence: 3}, {Index: 3, Sequence: 10}, {Index: 5, Sequence: 4}}
	end := uint32(0)
	for _, c := range []struct {
		count uint32
		want  Receipt
	}{
		{1, Receipt{Sequence: 3, LSN: 5, Duplicate: true, Discarded: 1}},
		{3, Receipt{Sequence: 10, LSN: 5, Discarded: 1}},
		{1, Receipt{Sequence: 12, LSN: 5}},
		{1, Receipt{Sequence: 4, LSN: 5, Duplicate: true, Discarded: 1}},
		{2, Receipt{Sequence: 13, LSN: 5}},
	} {
		end += c.count
		var got Receipt
		got, left = receiptOf(&r, c.count, end, left)
		require.Equal(t, c.want, got)
	}
	require.Empty(t, left)
}
