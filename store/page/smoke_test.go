package page

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

func TestSmoke(t *testing.T) {
	fs := vfs.NewMem()
	require.NoError(t, fs.MkdirAll("d", 0o755))
	f, err := Create(fs, "d/page.db", CreateOptions{})
	require.NoError(t, err)
	r, err := f.Alloc(3)
	require.NoError(t, err)
	require.NoError(t, f.WriteRun(r, KindLarge, make([]byte, 6000)))
	m, err := f.Checkpoint(Meta{Root: r})
	require.NoError(t, err)
	require.EqualValues(t, 5, m.UsedPages)
	require.NoError(t, f.Close())
	f, err = Open(fs, "d/page.db", Options{})
	require.NoError(t, err)
	k, p, err := f.ReadRun(f.Meta().Root, nil)
	require.NoError(t, err)
	require.Equal(t, KindLarge, k)
	require.Len(t, p, 6000)
	require.NoError(t, f.Close())
}
