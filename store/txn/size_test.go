// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestSizes: what is set to zero and filled for each operation and each delivered message does not grow unnoticed. What
// only few of them have belongs behind a pointer.
func TestSizes(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Op{}), uintptr(304))
	require.LessOrEqual(t, unsafe.Sizeof(Message{}), uintptr(136))
}
