// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// inodes is a filesystem. If none is set, it has no free inode.
type inodes struct {
	vfs.FS

	none bool
}

func (f inodes) Usage(string) (vfs.Usage, error) {
	return vfs.Usage{TotalBytes: 1 << 30, AvailableBytes: 231 << 20, NoInodes: f.none}, nil
}

// The error distinguishes a lack of inodes from a lack of space.
func TestSpaceErrorWithoutInodes(t *testing.T) {
	for _, none := range []bool{false, true} {
		s := &spares{fs: inodes{memfs.New(), none}, dir: "/"}
		err := s.spaceError(syscall.ENOSPC)
		require.ErrorIs(t, err, ErrNoSpace)
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.Equal(t, none, strings.Contains(err.Error(), "inode"))
	}
}
