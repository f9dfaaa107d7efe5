// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestSizes limits the size of structs that are cleared and filled for each operation and each delivered message.
// Fields that few of them need belong behind a pointer.
func TestSizes(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Op{}), uintptr(168))
	require.LessOrEqual(t, unsafe.Sizeof(Message{}), uintptr(136))
}
