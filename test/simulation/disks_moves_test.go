// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand"
	"strings"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// This file executes the moves of disks.

const (
	// operatorAfter is the simulated reaction time of an operator.
	operatorAfter = 4 * time.Second
	// leaseOver exceeds the time that the coordinator considers an unreachable node to be running.
	leaseOver = 6 * time.Second
	// inTransit exceeds the latency of any sent message.
	inTransit = 10 * time.Millisecond
)

// moveDisks executes the plan.
func (w *world) moveDisks(h *historycheck.History, plan []diskMove) error {
	for i, m := range plan {
		ctx, cancel := context.WithTimeout(context.Background(), faultsLimit)
		sleep(ctx, m.After)
		w.record("%v", m)
		err := w.moveDisk(ctx, h, m)
		cancel()
		if err != nil {
			return fmt.Errorf("move %d (%v): %w", i+1, m, err)
		}
		w.heal()
		if err := w.recovered(h); err != nil {
			return fmt.Errorf("after move %d (%v): %w", i+1, m, err)
		}
	}
	return nil
}

// moveDisk executes one move and the operator's response. Afterwards the pair recovers automatically.
func (w *world) moveDisk(ctx context.Context, h *historycheck.History, m diskMove) error {
	hosts := w.find(ctx, m.Target)
	switch m.Move {
	case oldImages:
		return w.rollBackBoth(ctx, h, m, hosts)
	case clone:
		return w.cloneNextTo(ctx, m, hosts[0], hosts[1])
	case cloneFirst:
		return w.cloneBefore(ctx, m, hosts[0], hosts[1])
	case cloneIsolated:
		return w.cloneUnreachable(ctx, m, hosts[0], hosts[1])
	case swapDisks:
		return w.swapBoth(ctx, m, hosts)
	case restored:
		return w.restoreNextTo(ctx, h, m, hosts[0], hosts[1])
	default:
		return w.replace(ctx, h, m, hosts[0], hosts[1])
	}
}

// imageFor returns the image that a move requires: an old one may be from long ago.
func (w *world) imageFor(ctx context.Context, m diskMove, h *host) (image, error) {
	var rng *mathrand.Rand
	if m.Rand%2 == 0 {
		rng = mathrand.New(mathrand.NewSource(w.rand().Int64()))
	}
	i, err := w.takeImage(ctx, h, rng)
	if err != nil {
		return i, err
	}
	if m.Move == recentImage {
		sleep(ctx, m.Age)
		return i, nil
	}
	h.mu.Lock()
	all := h.vol.images
	h.mu.Unlock()
	i = all[m.Rand/2%uint64(len(all))]
	return i, w.makeOutdated(ctx, i)
}

// crash ends processes at the same instant, and waits until they have exited. It reports whether both nodes are in
// sync according to the cluster record, so that each disk has all acknowledged messages.
func (w *world) crash(ctx context.Context, m diskMove, hosts ...*host) (bool, error) {
	for _, h := range hosts {
		if !h.kill(m.Power) {
			return false, fmt.Errorf("%s does not run", h.name)
		}
	}
	for _, h := range hosts {
		h.mu.Lock()
		r := h.run
		h.mu.Unlock()
		<-r.done
	}
	rec, _, err := w.store.within.Load(ctx)
	return len(rec.InSync) == 2, err
}

// startMoved starts the node of a host on a moved disk. The move is counted when the node responds, because it has
// then accepted the disk.
func (w *world) startMoved(ctx context.Context, h *host, count string) error {
	h.restart()
	w.record("%s is started", h.name)
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).GetStatus(ctx, &pb.GetStatusRequest{}); err == nil {
			w.countMove(count)
			return nil
		}
		sleep(ctx, poll)
	}
	return fmt.Errorf("%s does not answer with the disk that was moved into it", h.name)
}

// startBoth starts the nodes after a crash, in the order of the plan, except for those that it omits.
func (w *world) startBoth(ctx context.Context, m diskMove, moved, other *host) error {
	switch m.Order {
	case otherFirst:
		other.restart()
		sleep(ctx, m.Gap)
	case together:
		other.restart()
	case otherUp, movedFirst, alone:
	}
	if m.Order == movedFirst {
		w.running.Go(func() {
			sleep(ctx, m.Gap)
			other.restart()
		})
	}
	return w.startMoved(ctx, moved, m.Move.String())
}

// replace replaces a node's disk by an older image or an empty disk.
func (w *world) replace(ctx context.Context, h *historycheck.History, m diskMove, victim, other *host) error {
	by := newVolume()
	if m.Move != emptyDisk {
		i, err := w.imageFor(ctx, m, victim)
		if err != nil {
			return err
		}
		by = victim.vol.copied(i)
	}
	down := []*host{victim, other}
	if m.Order == otherUp {
		down = down[:1]
	}
	if both, err := w.crash(ctx, m, down...); err != nil || !both && m.Order != otherUp {
		return err // if they were not in sync, one may have been alone, with the only complete disk
	}
	if sleep(ctx, m.Down); m.Rand%3 == 0 {
		sleep(ctx, leaseOver)
	}
	own := victim.put(by)
	since := h.Now()
	if err := w.startBoth(ctx, m, victim, other); err != nil || m.Order != alone {
		return err
	}
	sleep(ctx, operatorAfter)
	if at, ok := h.AckedAfter(since, ""); ok {
		return fmt.Errorf("%s serves at %v with a disk without acknowledged messages", victim.name, at)
	}
	if m.Move == emptyDisk {
		return nil // it waits for the other one, which starts next
	}
	if err := w.requireWaits(ctx, victim); err != nil {
		return err
	}
	if _, err := w.crash(ctx, m, victim); err != nil {
		return err
	}
	victim.put(own)
	return nil
}

// rollBackBoth restores older images of both disks: both nodes wait.
func (w *world) rollBackBoth(ctx context.Context, h *historycheck.History, m diskMove, hosts [2]*host) error {
	var by, own [2]*volume
	for i, x := range hosts {
		img, err := w.imageFor(ctx, m, x)
		if err != nil {
			return err
		}
		by[i] = x.vol.copied(img)
	}
	if both, err := w.crash(ctx, m, hosts[:]...); err != nil || !both {
		return err
	}
	sleep(ctx, m.Down)
	for i, x := range hosts {
		own[i] = x.put(by[i])
	}
	since := h.Now()
	hosts[1].restart()
	sleep(ctx, m.Gap)
	if err := w.startMoved(ctx, hosts[0], m.Move.String()); err != nil {
		return err
	}
	sleep(ctx, operatorAfter)
	if at, ok := h.AckedAfter(since, ""); ok {
		return fmt.Errorf("one serves at %v, and both disks lack acknowledged messages", at)
	}
	if err := w.requireWaits(ctx, hosts[:]...); err != nil {
		return err
	}
	if _, err := w.crash(ctx, m, hosts[:]...); err != nil {
		return err
	}
	for i, x := range hosts {
		x.put(own[i])
	}
	return nil
}

// requireWaits: the nodes have older images and no node with the missing data. One reports that it waits for the
// data, and none has a role.
func (w *world) requireWaits(ctx context.Context, hosts ...*host) error {
	var reported []string
	for _, h := range hosts {
		s, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).GetStatus(ctx, &pb.GetStatusRequest{})
		if err != nil {
			return fmt.Errorf("%s waits, and does not answer: %w", h.name, err)
		}
		w.record("%s is %v: %s", h.name, s.GetRole(), s.GetReason())
		if r := s.GetRole(); r != pb.Role_ROLE_RECOVERING && r != pb.Role_ROLE_CATCHING_UP {
			return fmt.Errorf("%s has an older disk, and is %v (%s)", h.name, r, s.GetReason())
		}
		for _, label := range []string{waitedRollback, waitedOtherStore, waitedActive, waitedTakeover} {
			if strings.Contains(s.GetReason(), label) {
				w.countMove(label)
				reported = append(reported, label)
			}
		}
	}
	if len(reported) == 0 {
		return errors.New("no node reports the action for an older disk")
	}
	return nil
}

// cloneNextTo starts a copy of a node's disk in the other host while the original runs.
func (w *world) cloneNextTo(ctx context.Context, m diskMove, original, other *host) error {
	i, err := w.imageFor(ctx, m, original)
	if err != nil {
		return err
	}
	if _, err := w.crash(ctx, m, other); err != nil {
		return err
	}
	sleep(ctx, m.Down)
	moved := other.put(original.vol.copied(i))
	if err := w.startMoved(ctx, other, m.Move.String()); err != nil {
		return err
	}
	sleep(ctx, operatorAfter)
	if m.Order == alone {
		if _, err := w.crash(ctx, m, original); err != nil {
			return err
		}
		w.record("the original dies")
		sleep(ctx, leaseOver)
	}
	return w.stopOne(ctx, m, original, other, moved)
}

// cloneBefore starts a copy of a disk in the other host after both went down, and then the original.
func (w *world) cloneBefore(ctx context.Context, m diskMove, original, other *host) error {
	if both, err := w.crash(ctx, m, original, other); err != nil || !both {
		return err
	}
	sleep(ctx, m.Down)
	original.mu.Lock()
	v := original.vol
	original.mu.Unlock()
	moved := other.put(v.copied(image{mem: v.mem}))
	if err := w.startMoved(ctx, other, m.Move.String()); err != nil {
		return err
	}
	sleep(ctx, time.Duration(m.Rand%uint64(3*time.Second)))
	original.restart()
	w.record("the original is started")
	sleep(ctx, operatorAfter)
	return w.stopOne(ctx, m, original, other, moved)
}

// cloneUnreachable starts a copy of a disk in the other host while the original runs without any connection to other
// hosts. The original acknowledges nothing in the meantime, because the clients do not reach it. Otherwise a loss
// could not be prevented.
func (w *world) cloneUnreachable(ctx context.Context, m diskMove, original, other *host) error {
	if _, err := w.crash(ctx, m, other); err != nil {
		return err
	}
	sleep(ctx, m.Down+operatorAfter) // the original continues alone
	w.setAlone(original, true)
	w.store.stopResponding(original.name, true)
	w.store.notify(original.name, false)
	sleep(ctx, time.Second) // earlier requests are on its disk
	original.mu.Lock()
	v := original.vol
	i := image{mem: v.mem.CrashClone(nil)}
	original.mu.Unlock()
	moved := other.put(v.copied(i))
	if err := w.startMoved(ctx, other, m.Move.String()); err != nil {
		return err
	}
	sleep(ctx, leaseOver)
	w.net.ResetLink(original.name, clientHost) // drop requests sent in the meantime
	w.store.stopResponding(original.name, false)
	w.store.notify(original.name, true)
	w.isolate(original, other, false)
	sleep(ctx, m.Gap+inTransit*10)
	w.setAlone(original, false)
	sleep(ctx, operatorAfter)
	return w.stopOne(ctx, m, original, other, moved)
}

// stopOne is the operator who has found two processes of one identity. The one that is active or standby stays, and
// the other host gets its original disk.
func (w *world) stopOne(ctx context.Context, m diskMove, original, copied *host, moved *volume) error {
	first, second := w.rank(ctx, original), w.rank(ctx, copied)
	if first == 2 && second == 2 {
		return errors.New("two processes of one identity have the active role")
	}
	stays, goes := original, copied
	if second > max(first, 0) {
		stays, goes = copied, original
	}
	w.record("%s stays, %s gets the stored disk", stays.name, goes.name)
	if goes.alive() {
		if _, err := w.crash(ctx, m, goes); err != nil {
			return err
		}
	}
	goes.put(moved)
	goes.restart()
	if w.rank(ctx, stays) == 0 && stays.stopForNow() {
		w.record("%s is started again", stays.name)
		stays.restart()
	}
	return nil
}

// rank returns the usefulness of a node: 2 active, 1 standby, 0 waiting, -1 no response.
func (w *world) rank(ctx context.Context, h *host) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		w.record("%s does not answer: %v", h.name, err)
		return -1
	}
	w.record("%s is %v: %s", h.name, s.GetRole(), s.GetReason())
	for _, label := range []string{waitedCopy, superseded} {
		if strings.Contains(s.GetReason(), label) {
			w.countMove(label)
		}
	}
	switch s.GetRole() {
	// with min_in_sync 2, alone, it does not serve
	case pb.Role_ROLE_ACTIVE, pb.Role_ROLE_ACTIVE_ALONE, pb.Role_ROLE_ACTIVATING:
		return 2
	case pb.Role_ROLE_STANDBY:
		return 1
	default:
		return 0
	}
}

// swapBoth exchanges the disks of both hosts.
func (w *world) swapBoth(ctx context.Context, m diskMove, hosts [2]*host) error {
	if _, err := w.crash(ctx, m, hosts[:]...); err != nil {
		return err
	}
	sleep(ctx, m.Down)
	hosts[1].put(hosts[0].put(hosts[1].vol))
	return w.startBoth(ctx, m, hosts[0], hosts[1])
}
