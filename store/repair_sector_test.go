// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A page that the disk cannot read (EIO) is treated like a page with a wrong checksum, and repaired from the other
// node.
func TestBadSectorsAreRepaired(t *testing.T) {
	mem := memfs.New()
	fault := faultfs.New(mem)
	n, m := filled(t, options(fault))
	o := options(memfs.New())
	o.PageSize = 4096
	remote, _ := filled(t, o)
	n.s.Repair().SetSource(&other{s: remote.s})
	want := mustDigest(t, n.s)

	var mu sync.Mutex
	bad := make(map[page.No]bool)
	info, err := mem.Stat(datadir.PageFile("/data"))
	require.NoError(t, err)
	for no := page.No(1); page.OffsetOf(no, 2048) < info.SizeBytes; no++ {
		if kind := kindAt(t, mem, no); kind == page.KindPacked.String() || kind == page.KindLarge.String() {
			bad[no] = true
		}
	}
	require.NotEmpty(t, bad)
	fault.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		no := page.NoAt(op.Offset, 2048)
		switch {
		case op.Name != datadir.PageFile("/data"):
		case op.Kind == faultfs.OpWrite: // a write remaps the sector
			for ; page.OffsetOf(no, 2048) < op.Offset+op.Length; no++ {
				delete(bad, no)
			}
		case op.Kind == faultfs.OpRead && bad[no]:
			return syscall.EIO
		}
		return nil
	})
	require.Equal(t, m.dump(), dumpStore(t, n.s))
	st := n.s.Repair().Status()
	require.Positive(t, st.RepairedPages)
	require.Zero(t, st.DamagedMessages)
	require.Equal(t, want.Content, mustDigest(t, n.s).Content)
	_, err = n.s.Repair().Scrub(context.Background(), nil)
	require.NoError(t, err)
	n.check()
}
