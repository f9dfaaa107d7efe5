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

// This file executes the disk moves, which disks_test.go generates.

const (
	// operatorAfter is the simulated reaction time of an operator.
	operatorAfter = 4 * time.Second
	// leaseOver is longer than the coordinator considers an unreachable node to be running.
	leaseOver = 6 * time.Second
	// inTransit is longer than the latency of any message.
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

// moveDisk executes one move and the response of the operator. After that the pair recovers without an operator.
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

// imageFor returns the image for a move: a recent image, or a random image that is behind the coordinator's high-water
// mark.
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

// crash ends the processes of hosts at the same instant, and waits until they have exited. It reports whether both
// nodes are in sync according to the cluster record. If they are, each disk contains all acknowledged messages.
func (w *world) crash(ctx context.Context, m diskMove, hosts ...*host) (bool, error) {
	for _, h := range hosts {
		if !h.kill(m.Power) {
			return false, fmt.Errorf("%s is not running", h.name)
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

// startMoved starts the node of h, which has a moved disk, waits until the node responds, and counts the move. A
// response means that the node has accepted the disk.
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
	return fmt.Errorf("%s does not respond with the moved disk", h.name)
}

// startBoth starts the nodes that m.Order includes after a crash, in that order.
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

// replace replaces the disk of a node with an older image or an empty disk.
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
		return err // without a pair in sync, the replaced disk may be the only complete one
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
		return fmt.Errorf("%s serves at %v, but acknowledged messages are missing on its disk", victim.name, at)
	}
	if m.Move == emptyDisk {
		return nil // the node waits for the other one, which starts next
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

// rollBackBoth restores older images of both disks. Both nodes must wait for an operator.
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
		return fmt.Errorf("a node serves at %v, but acknowledged messages are missing on both disks", at)
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

// requireWaits checks nodes that started with older images, while no running node has the missing data. No node may be
// active or standby, and at least one node must report that its disk is older.
func (w *world) requireWaits(ctx context.Context, hosts ...*host) error {
	var reported []string
	for _, h := range hosts {
		s, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).GetStatus(ctx, &pb.GetStatusRequest{})
		if err != nil {
			return fmt.Errorf("%s should wait, but does not respond: %w", h.name, err)
		}
		w.record("%s is %v: %s", h.name, s.GetRole(), s.GetReason())
		if r := s.GetRole(); r != pb.Role_ROLE_RECOVERING && r != pb.Role_ROLE_CATCHING_UP {
			return fmt.Errorf("%s has an older disk, but is %v (%s)", h.name, r, s.GetReason())
		}
		for _, label := range []string{waitedRollback, waitedOtherStore, waitedActive, waitedTakeover} {
			if strings.Contains(s.GetReason(), label) {
				w.countMove(label)
				reported = append(reported, label)
			}
		}
	}
	if len(reported) == 0 {
		return errors.New("no node reports that its disk is older")
	}
	return nil
}

// cloneNextTo starts a copy of a node's disk on the other host while the original is running.
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
		w.record("the original is killed")
		sleep(ctx, leaseOver)
	}
	return w.stopOne(ctx, m, original, other, moved)
}

// cloneBefore stops both nodes, starts a copy of a node's disk on the other host, and then the original.
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

// cloneUnreachable starts a copy of a node's disk on the other host while the original is running without a connection
// to any host. The clients do not reach the original either: with a message that only the original acknowledges, no
// node could prevent a loss.
func (w *world) cloneUnreachable(ctx context.Context, m diskMove, original, other *host) error {
	if _, err := w.crash(ctx, m, other); err != nil {
		return err
	}
	sleep(ctx, m.Down+operatorAfter) // the original continues alone
	w.setAlone(original, true)
	w.store.stopResponding(original.name, true)
	w.store.notify(original.name, false)
	sleep(ctx, time.Second) // until all earlier requests are on its disk
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

// stopOne acts as an operator after a report of two processes with the same identity. The process that is active or
// standby continues, and the other host receives its original disk.
func (w *world) stopOne(ctx context.Context, m diskMove, original, copied *host, moved *volume) error {
	first, second := w.rank(ctx, original), w.rank(ctx, copied)
	if first == 2 && second == 2 {
		return errors.New("two processes with one identity are active")
	}
	kept, ended := original, copied
	if second > max(first, 0) {
		kept, ended = copied, original
	}
	w.record("%s continues, %s receives its original disk", kept.name, ended.name)
	if ended.alive() {
		if _, err := w.crash(ctx, m, ended); err != nil {
			return err
		}
	}
	ended.put(moved)
	ended.restart()
	if w.rank(ctx, kept) == 0 && kept.stopForNow() {
		w.record("%s is restarted", kept.name)
		kept.restart()
	}
	return nil
}

// rank returns 2 for an active, 1 for a standby, 0 for a waiting node, and -1 for no response.
func (w *world) rank(ctx context.Context, h *host) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		w.record("%s does not respond: %v", h.name, err)
		return -1
	}
	w.record("%s is %v: %s", h.name, s.GetRole(), s.GetReason())
	for _, label := range []string{waitedCopy, superseded} {
		if strings.Contains(s.GetReason(), label) {
			w.countMove(label)
		}
	}
	switch s.GetRole() {
	// with min_in_sync 2, an active without a standby does not serve
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
