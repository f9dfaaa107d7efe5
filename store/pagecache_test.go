// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Each policy selects the cache use of an active and of a standby. The error for an unknown policy lists the valid
// policies.
func TestPageCachePolicy(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ serving, standby vfs.CacheUse }{
		"auto": {vfs.FasterPath, vfs.AvoidCache}, "keep": {vfs.UseCache, vfs.UseCache},
		"drop": {vfs.AvoidCache, vfs.AvoidCache},
	} {
		policy, err := ParsePageCache(name)
		require.NoError(t, err)
		require.Equal(t, want.serving, policy.use(true), name)
		require.Equal(t, want.standby, policy.use(false), name)
	}
	_, err := ParsePageCache("some")
	require.Error(t, err)
	for _, name := range []string{"auto", "keep", "drop"} {
		require.Contains(t, err.Error(), name)
	}
}
