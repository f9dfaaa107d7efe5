// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// rollbackRun is a running case of TestRolledBackStore.
type rollbackRun struct {
	c               rollback
	seed            uint64
	p               *cluster.Pair
	w               *cluster.Workload
	pins            *pins
	active, standby *cluster.Node
	images          map[*cluster.Node]string // copies of directories
	own             map[*cluster.Node]string // original directories that were replaced
	etcdImage       string
	term            uint64 // at the start
}

func (r *rollbackRun) run(t *testing.T) {
	settings := map[string]string{"wal.segment-bytes": "1MiB", "memory.budget": "16MiB"}
	r.p = start(t, cluster.Options{Raft: r.c.raft, Settings: settings})
	r.active, r.standby = inSync(t, r.p)
	r.w = work(t, r.p, cluster.WorkloadOptions{Seed: r.seed, PerSecond: 100, LargeBytes: 16 << 10})
	r.pins = pin(t, r.w, "work-0", r.p.A, r.p.B)
	acked(t, r.w)
	s, err := r.active.Status(limited(t))
	require.NoError(t, err)
	r.term = s.GetPair().GetTerm()

	r.take(t)
	acked(t, r.w)
	r.live(t)
	switch r.c.location {
	case "back":
		r.rollBack(t)
	case "at the other's address":
		r.onPeer(t)
	default:
		r.onThirdNode(t)
	}
	acked(t, r.w)
	inSync(t, r.p)
	r.pins.end()
	r.requireTakeovers(t)
	verify(t, r.p, r.w)
}

// note writes a step to the test's log and to the history.
func (r *rollbackRun) note(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("%v: %s", r.w.History().Now().Round(time.Millisecond), fmt.Sprintf(format, args...))
	r.w.History().Note(format, args...)
}

// live waits while the pair runs after the copy was taken. For the age "old", it waits until the coordinator has a
// later mark.
func (r *rollbackRun) live(t *testing.T) {
	t.Helper()
	if r.c.age == "young" {
		<-time.After(rollbackYoung) // the age of the copy: not a wait for an event
		return
	}
	before := r.pins.acked()
	<-time.After(rollbackOld)
	r.pins.more(t, before)
}

// victims returns the nodes with the directories to copy.
func (r *rollbackRun) victims() []*cluster.Node {
	switch r.c.label {
	case "active":
		return []*cluster.Node{r.active}
	case "standby":
		return []*cluster.Node{r.standby}
	default:
		return []*cluster.Node{r.standby, r.active} // one after the other, with as few role changes as possible
	}
}

// take copies the victims' directories and, if the case requires it, the coordinator's data. Then it restores the
// roles.
func (r *rollbackRun) take(t *testing.T) {
	t.Helper()
	for _, n := range r.victims() {
		image := filepath.Join(n.Dir, "image")
		switch r.c.how {
		case "stopped":
			require.NoError(t, n.Stop())
			copyDir(t, n.DataDir(), image)
			require.NoError(t, n.Start())
			inSync(t, r.p)
		case "running":
			copyDir(t, n.DataDir(), image)
		default:
			require.NoError(t, n.Pause())
			copyDir(t, n.DataDir(), image)
			require.NoError(t, n.Wake())
		}
		r.images[n] = image
		r.note(t, "the directory of %s is copied", n.Name)
	}
	if r.c.coordinator {
		etcd := filepath.Join(filepath.Dir(r.p.A.Dir), "etcd")
		r.etcdImage = etcd + "-image"
		require.NoError(t, r.p.StopEtcd())
		copyDir(t, etcd, r.etcdImage)
		require.NoError(t, r.p.StartEtcd(limited(t)))
		r.note(t, "the coordinator is copied")
	}
	// A stop or a long freeze may have changed the roles.
	for now, _ := inSync(t, r.p); now != r.active; now, _ = inSync(t, r.p) {
		// the switchover may be rejected; the loop retries
		_, _ = pb.NewAdminServiceClient(now.Conn()).Switchover(limited(t), &pb.SwitchoverRequest{})
	}
}

// replace renames a node's directory, and puts a copy of image in its place.
func (r *rollbackRun) replace(t *testing.T, n *cluster.Node, image string) {
	t.Helper()
	r.own[n] = n.DataDir() + "-own"
	require.NoError(t, os.Rename(n.DataDir(), r.own[n]))
	copyDir(t, image, n.DataDir())
	r.note(t, "directory of %s is replaced by a copy", n.Name)
}

// returnImage restores a node's original directory.
func (r *rollbackRun) returnImage(t *testing.T, n *cluster.Node) {
	t.Helper()
	own, ok := r.own[n]
	if !ok {
		return
	}
	require.NoError(t, os.RemoveAll(n.DataDir()))
	require.NoError(t, os.Rename(own, n.DataDir()))
	delete(r.own, n)
	r.note(t, "original directory of %s is restored", n.Name)
}

// rollBack kills the nodes, and starts each victim from the copy of its directory.
func (r *rollbackRun) rollBack(t *testing.T) {
	var other *cluster.Node // nil if both directories are replaced
	if r.c.label != "both" {
		other = r.p.Other(r.victims()[0])
	}
	r.crash(t, other)
	for n, image := range r.images {
		r.replace(t, n, image)
	}
	startCopies := func() {
		for n := range r.images {
			require.NoError(t, n.Start())
			r.note(t, "%s is started from its copy", n.Name)
		}
	}
	startOther := func() {
		if other != nil {
			require.NoError(t, other.Start())
			r.note(t, "%s is started", other.Name)
		}
	}
	switch r.c.order {
	case "other up":
		startCopies()
	case "original first":
		startOther()
		<-time.After(rollbackYoung)
		startCopies()
	case "copy first":
		startCopies()
		<-time.After(rollbackYoung)
		startOther()
	case "together":
		startCopies()
		startOther()
	case "later":
		startCopies()
		<-time.After(rollbackLater)
		startOther()
	case "alone":
		startCopies()
	}
	if r.c.want != "waits" {
		return
	}
	r.requireWaits(t)
	// The operator restores the original directories.
	for n := range r.images {
		require.NoError(t, n.Kill())
		r.returnImage(t, n)
		require.NoError(t, n.Start())
	}
	startOther()
}

// crash kills both nodes together, or only the replaced node if the other node keeps running.
func (r *rollbackRun) crash(t *testing.T, other *cluster.Node) {
	t.Helper()
	if r.c.order == "other up" {
		since := r.w.History().Now()
		n := r.p.Other(other)
		require.NoError(t, n.Kill())
		ackedSince(t, r.w, since, n)
		r.note(t, "%s was killed", n.Name)
		return
	}
	// Freeze first, so that neither node detects the loss of the other.
	for _, n := range r.p.Nodes() {
		require.NoError(t, n.Pause())
	}
	for _, n := range r.p.Nodes() {
		require.NoError(t, n.Kill())
	}
	r.note(t, "both were killed")
	if r.c.coordinator {
		etcd := filepath.Join(filepath.Dir(r.p.A.Dir), "etcd")
		require.NoError(t, r.p.StopEtcd())
		require.NoError(t, os.RemoveAll(etcd))
		copyDir(t, r.etcdImage, etcd)
		require.NoError(t, r.p.StartEtcd(limited(t)))
		r.note(t, "the coordinator was rolled back")
	}
}

// requireWaits requires that no node serves, and that a node reports the required action.
func (r *rollbackRun) requireWaits(t *testing.T) {
	t.Helper()
	var running []*cluster.Node
	for _, n := range r.p.Nodes() {
		if n.Running() {
			running = append(running, n)
		}
	}
	since, before := r.w.History().Now(), r.pins.acked()
	<-time.After(rollbackPause)
	_, served := r.w.History().AckedAfter(since, "none")
	require.False(t, served || r.pins.acked() > before, "a node serves although acknowledged messages are missing")
	states := false
	for _, n := range running {
		require.False(t, n.Ended(), "%s exited unexpectedly, see %s", n.Name, n.LogFile())
		s, err := n.Status(limited(t))
		require.NoError(t, err)
		require.Contains(t, []pb.Role{pb.Role_ROLE_RECOVERING, pb.Role_ROLE_CATCHING_UP}, s.GetRole(), s.GetReason())
		states = states || strings.Contains(s.GetReason(), "lockstep ")
		r.note(t, "%s waits: %s", n.Name, s.GetReason())
	}
	require.True(t, states, "no node reports the cause and the action")
}

// onPeer starts a copy at the address of the other node, in place of that node's directory, while the original is
// running.
func (r *rollbackRun) onPeer(t *testing.T) {
	original := r.victims()[0]
	host := r.p.Other(original)
	require.NoError(t, host.Kill())
	r.replace(t, host, r.images[original])
	require.NoError(t, host.Start())
	r.note(t, "%s is started from a copy of %s", host.Name, original.Name)
	<-time.After(rollbackPause) // clients continue in the meantime
	r.loseOriginal(t, original)
	// The operator stops the process that does not serve, and restores the other node's directory at that address.
	stays, goes := r.choose(t, original, host)
	if err := goes.Kill(); !errors.Is(err, cluster.ErrNotRunning) {
		require.NoError(t, err)
	}
	if goes == host {
		r.returnImage(t, host)
	} else {
		require.NoError(t, os.RemoveAll(goes.DataDir()))
		require.NoError(t, os.Rename(r.own[host], goes.DataDir()))
		r.note(t, "%s has the directory that was at %s", goes.Name, host.Name)
	}
	require.NoError(t, goes.Start())
	r.restartIfEnded(t, stays)
}

// onThirdNode starts a copy at a third address, next to the pair.
func (r *rollbackRun) onThirdNode(t *testing.T) {
	original := r.victims()[0]
	third, err := r.p.Peer(original, "copy")
	require.NoError(t, err)
	copyDir(t, r.images[original], third.DataDir())
	r.pins.to(third)
	require.NoError(t, third.Start())
	r.note(t, "a copy of %s is started at %s", original.Name, third.Address)
	<-time.After(rollbackPause) // clients continue in the meantime
	r.loseOriginal(t, original)
	stays, goes := r.choose(t, original, third)
	if err := goes.Kill(); !errors.Is(err, cluster.ErrNotRunning) {
		require.NoError(t, err)
	}
	if stays == third {
		// The copy has all messages, and replaces the original.
		require.NoError(t, third.Kill())
		require.NoError(t, os.RemoveAll(original.DataDir()))
		require.NoError(t, os.Rename(third.DataDir(), original.DataDir()))
		require.NoError(t, original.Start())
		r.note(t, "%s continues with the directory of its copy", original.Name)
		return
	}
	r.restartIfEnded(t, stays)
}

// loseOriginal kills the original, if the case requires it, so that only its copy is running for a while.
func (r *rollbackRun) loseOriginal(t *testing.T, original *cluster.Node) {
	t.Helper()
	if r.c.order != originalDies {
		return
	}
	require.NoError(t, original.Kill())
	r.note(t, "%s is killed", original.Name)
	<-time.After(rollbackLater)
}

// choose selects one of two processes with the same identity to stay: the one that is active or standby, or the
// original if neither is.
func (r *rollbackRun) choose(t *testing.T, original, copied *cluster.Node) (stays, goes *cluster.Node) {
	t.Helper()
	rank := func(n *cluster.Node) int {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := n.Status(ctx)
		if err != nil {
			r.note(t, "%s does not respond: %v", n.Name, err)
			return -1
		}
		r.note(t, "%s is %v (%s)", n.Name, s.GetRole(), s.GetReason())
		switch s.GetRole() {
		case pb.Role_ROLE_ACTIVE, pb.Role_ROLE_ACTIVE_ALONE:
			return 2
		case pb.Role_ROLE_STANDBY:
			return 1
		default:
			return 0
		}
	}
	first, second := rank(original), rank(copied)
	require.False(t, first == 2 && second == 2, "two processes with the same identity serve")
	if second > max(first, 0) {
		return copied, original
	}
	return original, copied
}

// restartIfEnded restarts a node that does not respond, is recovering or is fenced, because its copy was running.
func (r *rollbackRun) restartIfEnded(t *testing.T, n *cluster.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	s, err := n.Status(ctx)
	if err == nil && s.GetRole() != pb.Role_ROLE_RECOVERING && s.GetRole() != pb.Role_ROLE_FENCED {
		return
	}
	if err := n.Kill(); !errors.Is(err, cluster.ErrNotRunning) {
		require.NoError(t, err)
	}
	require.NoError(t, n.Start())
	r.note(t, "%s is started again", n.Name)
}

// requireTakeovers requires that the acknowledging process changes only with the term. If two processes acknowledge
// concurrently, the acknowledging process changes without a new term.
func (r *rollbackRun) requireTakeovers(t *testing.T) {
	t.Helper()
	active, _ := inSync(t, r.p)
	s, err := active.Status(limited(t))
	require.NoError(t, err)
	turns, _ := r.pins.turns()
	t.Logf("%d acknowledgements to pinned clients, by %d processes in turn; term %d to %d", r.pins.acked(), turns,
		r.term, s.GetPair().GetTerm())
	require.LessOrEqual(t, turns, int(s.GetPair().GetTerm()-r.term)+1, "two processes acknowledged concurrently")
}

// copyDir copies a directory file by file, like `cp -r`. If a process writes to the directory, the files are copied
// at different moments, and files may be deleted during the copy.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return ignoreGone(err)
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o644)
	})
	require.NoError(t, err)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
