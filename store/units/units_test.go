// SPDX-License-Identifier: Apache-2.0

package units

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1_114_112: "1.1 MiB", 5 << 30: "5.0 GiB", math.MaxInt64: "8.0 EiB",
	} {
		require.Equal(t, want, Bytes(n))
	}
}
