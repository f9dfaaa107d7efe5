// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Op and Message are small: they are cleared and filled for each operation and each delivered message. Rarely used
// fields belong behind a pointer.
func TestStructSizes(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Op{}), uintptr(168))
	require.LessOrEqual(t, unsafe.Sizeof(Message{}), uintptr(136))
}
