// SPDX-License-Identifier: Apache-2.0

//go:build deep

package chaos

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// Requests of ioctl(2) that suspend and resume all writes to a filesystem (linux/fs.h).
const (
	freezeRequest = 0xc0045877 // FIFREEZE
	thawRequest   = 0xc0045878 // FITHAW
)

// behindBound limits the wait for VoterBehind, which is reported after 30 seconds.
const behindBound = bound + 30*time.Second

// If the filesystem of the witness is frozen while its process responds, the witness is behind, but not missing. The
// pair continues to serve, both nodes report the condition, and it ends when the disk responds again.
func TestVoterBehind(t *testing.T) {
	t.Parallel() // mostly idle
	p := start(t, cluster.Options{Raft: true})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	inSync(t, p)
	require.NoError(t, p.Witness.Stop())
	freeze, thaw := freezable(t, p.Witness.DataDir())
	reported(t, p, conditions.VoterMissing, true)
	require.NoError(t, p.Witness.Start())
	reported(t, p, conditions.VoterMissing, false)

	freeze()
	reportedWithin(t, p, conditions.VoterBehind, true, behindBound)
	reported(t, p, conditions.VoterMissing, false)
	acked(t, w)
	thaw()
	reportedWithin(t, p, conditions.VoterBehind, false, behindBound)
	inSync(t, p)
	verify(t, p, w)
}

// freezable moves a directory to a filesystem in a file. freeze and thaw suspend and resume all writes to this
// filesystem.
func freezable(t *testing.T, dir string) (freeze, thaw func()) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 64<<20))
	before := dir + "-before"
	require.NoError(t, os.Rename(dir, before))
	require.NoError(t, os.Mkdir(dir, 0o750))
	for _, cmd := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.CommandContext(t.Context(), cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			missingFeature(t, needsFreeze, "a filesystem in a file: %v: %v, %s", cmd, err, out)
		}
	}
	mounted, err := os.Open(dir)
	require.NoError(t, err)
	set := func(request uint) error { return unix.IoctlSetInt(int(mounted.Fd()), request, 0) }
	t.Cleanup(func() {
		_ = set(thawRequest) // so that a failed test leaves no blocked process
		_ = mounted.Close()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	require.NoError(t, os.CopyFS(dir, os.DirFS(before)))
	return func() { require.NoError(t, set(freezeRequest)) }, func() { require.NoError(t, set(thawRequest)) }
}
