// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFindMemoryMount(t *testing.T) {
	v1 := `30 29 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 29 0:29 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
40 29 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	mount, v2 := findMemoryMount(v1)
	require.Equal(t, "/sys/fs/cgroup/memory", mount)
	require.False(t, v2)
	mount, _ = findMemoryMount("25 1 0:22 / /proc rw - proc proc rw\n")
	require.Empty(t, mount)
}
