// SPDX-License-Identifier: Apache-2.0

package memfs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
	"github.com/lockstep-mq/lockstep/test/vfs/vfstest"
)

func TestConformance(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
		mem := memfs.New()
		require.NoError(t, mem.MkdirAll("/some/dir", 0o700))
		return mem, "/some/dir"
	})
}
