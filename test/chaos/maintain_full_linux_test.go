// SPDX-License-Identifier: Apache-2.0

//go:build deep

package chaos

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

const (
	// A rewrite checks the free space every 8 MiB, which is once a second at the configured rate. The disk is full
	// before the last check.
	fullFill = 48 << 20
	// fullDisk is the size of the disk: page.db, page.db_new, page.db_old and the log fit.
	fullDisk = "size=640m"
	// Before a rewrite, the free space suffices for replication, but not for another page file. During a rewrite, the
	// free space is below half a segment, so replication stops, and the standby leaves the in-sync set until space is
	// available.
	leftBefore = 30 << 20
	leftMiddle = 1 << 20
)

// The disk has too little space before a rewrite, or fills up during it. In the first case, the plan fails with the
// sizes in its reason, and page.db is unchanged. In the second case, the rewrite stops, or finishes in the space that
// it has allocated. The standby stops replication, and the plan continues when space is available. Nothing is lost.
// With enough space, the next plan succeeds.
//
// The test is skipped if the process is not permitted to mount a small disk. The tests of package store fill a
// simulated disk.
func TestResizeDiskFull(t *testing.T) {
	t.Parallel() // mostly idle
	settings := maintenanceSettings()
	settings["maintenance.rewrite-rate"] = fullSpeed
	settings["disk.low-watermark"] = "4MiB"
	p := start(t, cluster.Options{Settings: settings})
	r := &rolling{p: p, sizes: [2]uint32{2 << 10, 2 << 10}}
	r.backlog = fillBacklog(t, p, fullFill, 2)
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t), PerSecond: 100})
	_, standby := inSync(t, p)
	r.restart(t, standby, rewriteSeconds)
	inSync(t, p)
	fill, free := smallDisk(t, standby)
	inSync(t, p)

	fill(leftBefore)
	plan := startResize(t, r, 8<<10)
	plan = ended(t, p, plan.GetId())
	t.Logf("%v: %s", plan.GetState(), plan.GetReason())
	require.Equal(t, pb.PlanState_PLAN_STATE_FAILED, plan.GetState())
	acked(t, w)
	inSync(t, p)
	require.Equal(t, uint32(2<<10), pageSize(t, standby))
	onlyPageFile(t, standby)
	free()

	plan = startResize(t, r, 8<<10)
	require.NoError(t, p.Wait(limited(t), "a rewrite under way",
		func(a, b *pb.GetStatusResponse) bool { return copied(a, 0.0001) || copied(b, 0.0001) }))
	log := eventsOf(t, standby)
	stop := keepFull(fill) // the node also frees space, when it truncates its log
	log.condition(conditions.ReplicationStopped)
	// A node without space for its log exits, and is restarted when there is space.
	require.NoError(t, p.Wait(limited(t), "the rewrite to end", func(a, b *pb.GetStatusResponse) bool {
		return []*pb.GetStatusResponse{a, b}[index(p, standby)].GetMaintenance() == nil
	}))
	now := planNow(t, p)
	t.Logf("with the disk full: %v: %s", now.GetState(), now.GetReason())
	acked(t, w)
	stop()
	free()
	restartExited(t, p)
	plan = ended(t, p, plan.GetId())
	t.Logf("%v: %s; restarted %d times", plan.GetState(), plan.GetReason(), plan.GetRetries())
	restartExited(t, p)
	inSync(t, p)

	plan = startResize(t, r, 16<<10)
	r.done(t, plan, 16<<10)
	verify(t, p, w)
	r.backlog.check(t)
	checkFiles(t, p, r.sizes)
	checkOffline(t, p)
}

// planNow waits until a plan is reported, and returns it.
func planNow(t *testing.T, p *cluster.Pair) (plan *pb.Plan) {
	t.Helper()
	require.NoError(t, p.Wait(limited(t), "a plan", func(a, b *pb.GetStatusResponse) bool {
		plan = planOf(a, b)
		return plan != nil
	}))
	return plan
}

// keepFull keeps the disk full until stop is called.
func keepFull(fill func(left int64)) (stop func()) {
	done := make(chan struct{})
	var filling sync.WaitGroup
	filling.Go(func() {
		for {
			fill(leftMiddle)
			select {
			case <-done:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	return func() { close(done); filling.Wait() }
}

// restartExited starts nodes that have exited.
func restartExited(t *testing.T, p *cluster.Pair) {
	t.Helper()
	for _, n := range p.Nodes() {
		select {
		case <-n.Exited():
			t.Logf("node %s had exited unexpectedly", n.Name)
			_ = n.Kill()
			require.NoError(t, n.Start())
		default:
		}
	}
}

// smallDisk moves a node's data to a small disk. fill enlarges a file until only the given number of bytes is free on
// the disk, and free deletes that file.
func smallDisk(t *testing.T, n *cluster.Node) (fill func(left int64), free func()) {
	t.Helper()
	dir := n.DataDir()
	require.NoError(t, n.Stop())
	require.NoError(t, os.Rename(dir, dir+"-before"))
	require.NoError(t, os.Mkdir(dir, 0o750))
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fullDisk); err != nil {
		missingFeature(t, needsMount, "a separate disk cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if n.Running() {
			_ = n.Kill()
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	out, err := exec.CommandContext(t.Context(), "cp", "-a", dir+"-before/.", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, n.Start())
	filler := filepath.Join(dir, "filler")
	fill = func(left int64) { // also called by goroutines other than the test's
		err := extend(dir, filler, left)
		for retries := 0; err != nil && retries < 1000; retries++ { // the node uses some space concurrently
			err = extend(dir, filler, left)
		}
		if err != nil {
			t.Errorf("the disk cannot be filled: %v", err)
		}
	}
	return fill, func() { require.NoError(t, os.Remove(filler)) }
}

// extend enlarges a file until only the given number of bytes is free on the disk of dir.
func extend(dir, name string, left int64) error {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	more := int64(st.Bavail)*st.Bsize - left
	if more <= 0 {
		return nil
	}
	return unix.Fallocate(int(f.Fd()), 0, size, more)
}
