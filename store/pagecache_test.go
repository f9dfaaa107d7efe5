// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/vfs/memfs"
)

func TestPageCachePolicy(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ serving, standby vfs.CacheUse }{
		"auto": {vfs.FasterPath, vfs.AvoidCache}, "keep": {vfs.UseCache, vfs.UseCache},
		"drop": {vfs.AvoidCache, vfs.AvoidCache},
	} {
		policy, err := ParsePageCache(name)
		require.NoError(t, err)
		s, err := Open(Options{FS: memfs.New(), Dir: "data", PageCache: policy})
		require.NoError(t, err)
		require.Equal(t, want.serving, s.cacheUse(), name)
		s.ServeReaders(false)
		require.Equal(t, want.standby, s.cacheUse(), name)
		s.ServeReaders(true)
		require.Equal(t, want.serving, s.cacheUse(), name)
		require.NoError(t, s.Close())
	}
	_, err := ParsePageCache("some")
	require.ErrorContains(t, err, "auto, keep, drop")
}
