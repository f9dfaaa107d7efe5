package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

func TestPageCachePolicy(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ serving, standby bool }{
		"auto": {true, false}, "keep": {true, true}, "drop": {false, false},
	} {
		policy, err := ParsePageCache(name)
		require.NoError(t, err)
		s, err := Open(Options{FS: vfs.NewMem(), Dir: "data", PageCache: policy})
		require.NoError(t, err)
		require.Equal(t, want.serving, s.keepCached(), name)
		s.ServeReaders(false)
		require.Equal(t, want.standby, s.keepCached(), name)
		s.ServeReaders(true)
		require.Equal(t, want.serving, s.keepCached(), name)
		require.NoError(t, s.Close())
	}
	_, err := ParsePageCache("some")
	require.ErrorContains(t, err, "auto, keep, drop")
}
