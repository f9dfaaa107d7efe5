// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/nodes"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/objects"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Phases of a drain.
const (
	phaseDraining = "Draining"
	phaseStopping = "Stopping"
)

// maxMoveQueues is the maximum number of queues of a move.
const maxMoveQueues = 50

// errWait is returned by a step of a drain that must be repeated later.
var errWait = errors.New("waiting")

func wait(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errWait}, args...)...)
}

// finalize executes one step of the removal of a pair from its fleet. After the last step, it permits the deletion of
// the resource.
func (r *PairReconciler) finalize(ctx context.Context, pair *v1alpha1.LockstepPair) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(pair, drainFinalizer) {
		return ctrl.Result{}, nil
	}
	drain, err := r.mustDrain(ctx, pair)
	if err != nil {
		return ctrl.Result{}, err
	}
	if drain {
		if pair.Status.Drain == nil {
			pair.Status.Drain = &v1alpha1.DrainStatus{Phase: phaseDraining}
		}
		limited, cancel := context.WithTimeout(ctx, requestLimit)
		defer cancel()
		done, err := r.drainStep(limited, pair)
		if err != nil || !done {
			return r.draining(pair, err)
		}
	}
	base := pair.DeepCopy()
	controllerutil.RemoveFinalizer(pair, drainFinalizer)
	if err := client.IgnoreNotFound(r.Patch(ctx, pair, client.MergeFrom(base))); err != nil {
		return ctrl.Result{}, fmt.Errorf("remove the finalizer: %w", err)
	}
	return ctrl.Result{}, nil
}

func (r *PairReconciler) draining(pair *v1alpha1.LockstepPair, err error) (ctrl.Result, error) {
	d := pair.Status.Drain
	d.Message = ""
	if err != nil {
		d.Message = strings.TrimPrefix(err.Error(), errWait.Error()+": ")
	}
	r.condition(pair, v1alpha1.ConditionProgressing, true, d.Phase,
		fmt.Sprintf("%d queues remain%s", d.Queues, because(err)))
	failed := err != nil && !errors.Is(err, errWait)
	if failed {
		r.condition(pair, v1alpha1.ConditionDegraded, true, "DrainFailed", because(err))
	} else {
		r.condition(pair, v1alpha1.ConditionDegraded, false, "AsExpected", "the pair is being drained")
	}
	pair.Status.ObservedGeneration = pair.Generation
	if apierrors.IsConflict(err) {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.StepInterval}, nil
}

// mustDrain reports whether the queues of a deleted pair must be moved. It returns false for a pair without a fleet, if
// the LockstepFleet is deleted, or if SkipDrainAnnotation is set.
func (r *PairReconciler) mustDrain(ctx context.Context, pair *v1alpha1.LockstepPair) (bool, error) {
	if pair.Spec.Fleet.Pair == "" || pair.Annotations[v1alpha1.SkipDrainAnnotation] == "true" {
		return false, nil
	}
	owner := metav1.GetControllerOf(pair)
	if owner == nil {
		return true, nil
	}
	var fleet v1alpha1.LockstepFleet
	err := r.Get(ctx, types.NamespacedName{Namespace: pair.Namespace, Name: owner.Name}, &fleet)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read LockstepFleet %s: %w", owner.Name, err)
	}
	return fleet.UID == owner.UID && fleet.DeletionTimestamp.IsZero(), nil
}

func (r *PairReconciler) drainStep(ctx context.Context, pair *v1alpha1.LockstepPair) (done bool, _ error) {
	o := &observed{p: objects.New(pair)}
	defer o.close()
	if err := r.observe(ctx, pair, o); err != nil {
		return false, err
	}
	if o.conn == nil {
		return false, o.err
	}
	if pair.Status.Drain.Phase == phaseStopping {
		return r.stop(ctx, pair, o)
	}
	if o.set == nil {
		return true, nil // it was never created
	}
	if err := r.apply(ctx, pair, o); err != nil { // restores deleted objects
		return false, err
	}
	i := o.active()
	if i < 0 {
		return false, wait("the pair has no active node%s; if it is lost permanently, set the annotation %s=true",
			because(o.err), v1alpha1.SkipDrainAnnotation)
	}
	node, err := o.conn.Node(i)
	if err != nil {
		return false, err
	}
	left, err := r.leave(ctx, pair, o, node)
	if err != nil || !left {
		return false, err
	}
	pair.Status.Drain.Phase = phaseStopping
	r.Events.Eventf(pair, nil, corev1.EventTypeNormal, "LeftFleet", "LeaveFleet", "the pair has left the fleet")
	return false, nil
}

// leave moves the queues, and removes the pair from the fleet when it has none. It reports whether the pair has left.
func (r *PairReconciler) leave(
	ctx context.Context, pair *v1alpha1.LockstepPair, o *observed, node *admin.Node,
) (bool, error) {
	fleet, err := node.Fleet(ctx)
	if err != nil {
		return false, err
	}
	name := pair.Spec.Fleet.Pair
	i := slices.IndexFunc(fleet.GetPairs(), func(p *pb.FleetPair) bool { return p.GetName() == name })
	if fleet.GetMembership().GetLeft() || i < 0 && fleet.GetMembership().GetFleetId() == "" &&
		fleet.GetDirectory().GetCurrent() {
		return true, nil
	}
	if i >= 0 && fleet.GetPairs()[i].GetState() != pb.PairState_PAIR_STATE_DRAINING {
		if err := node.SetPairState(ctx, name, pb.PairState_PAIR_STATE_DRAINING); err != nil {
			return false, err
		}
		r.Events.Eventf(pair, nil, corev1.EventTypeNormal, "Draining", "Drain", "the pair is draining")
	}
	queues, err := ownQueues(ctx, o.conn, node, name)
	if err != nil {
		return false, err
	}
	pair.Status.Drain.Queues = int64(len(queues))
	moves, err := node.Moves(ctx)
	if err != nil {
		return false, err
	}
	busy, unfinished := targets(moves.GetMoves(), name)
	switch {
	case len(queues) > 0:
		return false, r.move(ctx, pair, fleet.GetPairs(), queues, busy)
	case unfinished > 0:
		return false, wait("%d moves have not ended", unfinished)
	}
	return true, node.LeaveFleet(ctx)
}

// targets returns the queues in the unfinished moves from and to a pair, by target, and the number of these moves.
func targets(moves []*pb.FleetMove, pair string) (busy map[string][]string, unfinished int) {
	busy = map[string][]string{}
	for _, m := range moves {
		if m.GetPhase() == pb.MovePhase_MOVE_PHASE_DONE || m.GetPhase() == pb.MovePhase_MOVE_PHASE_NOT_MOVED ||
			m.GetFrom() != pair && m.GetTo() != pair {
			continue
		}
		unfinished++
		busy[m.GetTo()] = append(busy[m.GetTo()], m.GetQueues()...)
	}
	return busy, unfinished
}

// queueLinks contains the name of a queue, its placement group, and the queues that must be moved with it.
type queueLinks struct {
	name, group string
	with        []string
}

// ownQueues returns the queues of the pair, and those that the directory assigns to it.
func ownQueues(ctx context.Context, conn *nodes.Conn, node *admin.Node, pair string) ([]queueLinks, error) {
	groups := map[string]string{}
	for p, err := range node.Placements(ctx, admin.PlacementOptions{Pair: pair}) {
		if err != nil {
			return nil, err
		}
		groups[p.GetQueue()] = p.GetGroup()
	}
	var queues []queueLinks
	for q, err := range conn.Admin.Queues(ctx, "") {
		if err != nil {
			return nil, err
		}
		l := queueLinks{name: q.Name, group: groups[q.Name]}
		if q.Config.DeadLetter != "" {
			l.with = append(l.with, q.Config.DeadLetter)
		}
		for _, f := range q.Forwards {
			l.with = append(l.with, f.To)
		}
		queues = append(queues, l)
		delete(groups, q.Name)
	}
	for name, group := range groups { // being created, or already moved
		queues = append(queues, queueLinks{name: name, group: group})
	}
	slices.SortFunc(queues, func(a, b queueLinks) int { return strings.Compare(a.name, b.name) })
	return queues, nil
}

// move begins a move to each target that is open, live and not busy.
func (r *PairReconciler) move(
	ctx context.Context, pair *v1alpha1.LockstepPair, pairs []*pb.FleetPair, queues []queueLinks,
	busy map[string][]string,
) error {
	moving := map[string]bool{}
	for _, names := range busy {
		for _, name := range names {
			moving[name] = true
		}
	}
	open := slices.DeleteFunc(slices.Clone(pairs), func(p *pb.FleetPair) bool {
		return p.GetName() == pair.Spec.Fleet.Pair || !p.GetLive() || p.GetState() != pb.PairState_PAIR_STATE_OPEN
	})
	if len(open) == 0 {
		return wait("no other pair of the fleet is open and live")
	}
	slices.SortFunc(open, func(a, b *pb.FleetPair) int { // the most free space first
		switch x, y := a.GetLoad().GetFreeBytes(), b.GetLoad().GetFreeBytes(); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return strings.Compare(a.GetName(), b.GetName())
	})
	open = slices.DeleteFunc(open, func(p *pb.FleetPair) bool { return len(busy[p.GetName()]) > 0 })
	batches, err := batch(queues, moving, len(open))
	for i, names := range batches {
		if moved := r.begin(ctx, pair, open[i], names); moved != nil {
			err = errors.Join(err, moved)
		}
	}
	if err == nil && len(batches) == 0 {
		return wait("queues are being moved")
	}
	return err
}

func (r *PairReconciler) begin(
	ctx context.Context, pair *v1alpha1.LockstepPair, target *pb.FleetPair, names []string,
) error {
	conn, err := r.Nodes.OpenOther(ctx, pair, target.GetAddresses())
	if err != nil {
		return err
	}
	defer conn.Close()
	node, err := conn.Active(ctx, target.GetAddresses())
	if err != nil {
		return fmt.Errorf("pair %s: %w", target.GetName(), err)
	}
	if _, err := node.MoveQueues(ctx, names, ""); err != nil {
		return fmt.Errorf("move to pair %s: %w", target.GetName(), err)
	}
	r.Events.Eventf(pair, nil, corev1.EventTypeNormal, "Moving", "Move",
		"%d queues are moved to pair %s, beginning with %s", len(names), target.GetName(), names[0])
	return nil
}

// batch returns up to n sets of at most 50 queues for moves. Queues that depend on each other, or have the same
// placement group, are in the same set. Queues that are moving are omitted, together with those that depend on them.
func batch(queues []queueLinks, moving map[string]bool, n int) (batches [][]string, err error) {
	components := connected(queues)
	for _, c := range components {
		switch {
		case slices.ContainsFunc(c, func(name string) bool { return moving[name] }):
			continue
		case len(c) > maxMoveQueues:
			err = fmt.Errorf("%d queues depend on each other, beginning with %s: a move has at most %d", len(c), c[0],
				maxMoveQueues)
			continue
		}
		i := slices.IndexFunc(batches, func(b []string) bool { return len(b)+len(c) <= maxMoveQueues })
		if i < 0 && len(batches) < n {
			batches, i = append(batches, nil), len(batches)
		}
		if i >= 0 {
			batches[i] = append(batches[i], c...)
		}
	}
	return batches, err
}

// connected returns the connected components of the queues, in the order of their first queues.
func connected(queues []queueLinks) [][]string {
	parent := map[string]string{}
	var root func(string) string
	root = func(name string) string {
		if parent[name] != name {
			parent[name] = root(parent[name])
		}
		return parent[name]
	}
	for _, q := range queues {
		parent[q.name] = q.name
	}
	groups := map[string]string{}
	for _, q := range queues {
		for _, other := range q.with {
			if _, here := parent[other]; here {
				parent[root(q.name)] = root(other)
			}
		}
		if q.group == "" {
			continue
		}
		if first, known := groups[q.group]; known {
			parent[root(q.name)] = root(first)
		} else {
			groups[q.group] = q.name
		}
	}
	var order []string
	members := map[string][]string{}
	for _, q := range queues {
		r := root(q.name)
		if members[r] == nil {
			order = append(order, r)
		}
		members[r] = append(members[r], q.name)
	}
	components := make([][]string, 0, len(order))
	for _, r := range order {
		components = append(components, members[r])
	}
	return components
}

// stop stops the standby first and then the active node. If the standby ran while the active node stops, it would
// become active, and the pair would join the fleet again.
func (r *PairReconciler) stop(ctx context.Context, pair *v1alpha1.LockstepPair, o *observed) (done bool, _ error) {
	if o.set == nil {
		return o.pods[0] == nil && o.pods[1] == nil, nil
	}
	start := 0
	if o.set.Spec.Ordinals != nil {
		start = int(o.set.Spec.Ordinals.Start)
	}
	switch *o.set.Spec.Replicas {
	case objects.Nodes:
		i := o.active()
		if i < 0 {
			return false, wait("the pair has no active node%s", because(o.err))
		}
		return false, r.scale(ctx, o.set, 1, i)
	case 1:
		if o.pods[1-start] != nil {
			return false, wait("pod %s is being stopped", o.p.PodName(1-start))
		}
		node, err := o.conn.Node(start)
		if err != nil {
			return false, err
		}
		left, err := r.leave(ctx, pair, o, node) // again, if the node was restarted
		if err != nil || !left {
			return false, err
		}
		return false, r.scale(ctx, o.set, 0, start)
	}
	if o.pods[0] != nil || o.pods[1] != nil {
		return false, wait("the pods are being stopped")
	}
	return true, nil
}

// scale changes the number of pods, and the number of the first pod. After a success, it returns errWait.
func (r *PairReconciler) scale(ctx context.Context, set *appsv1.StatefulSet, replicas, start int) error {
	base := set.DeepCopy()
	number := int32(replicas)
	set.Spec.Replicas, set.Spec.Ordinals = &number, &appsv1.StatefulSetOrdinals{Start: int32(start)}
	if err := r.Patch(ctx, set, client.MergeFrom(base)); err != nil {
		return fmt.Errorf("scale StatefulSet %s: %w", set.Name, err)
	}
	return wait("scaling StatefulSet %s to %d", set.Name, replicas)
}
